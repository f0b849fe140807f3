import { absence, badge, call, element, keepFresh, money, since, words } from "./page.js";

const filter = document.getElementById("filter");
const list = document.getElementById("runs");
const more = document.getElementById("more");
const request = document.getElementById("request");
let pages = 1;
let samples = [];

for (const [name, value] of new URLSearchParams(location.search)) {
  if (filter.elements[name]) filter.elements[name].value = value;
}

function query() {
  const chosen = new URLSearchParams();
  for (const [name, value] of new FormData(filter)) if (value) chosen.set(name, value);
  return chosen;
}

function doing(run) {
  const cell = [badge(run.condition, run.condition_text)];
  const details = [];
  if (run.condition === "waiting_for_person") details.push(`for ${since(run.review.opened_at)}`);
  if (run.activity && run.condition !== "working") details.push(`${words(run.activity)}, attempt ${run.activity_attempt}`);
  if (run.activity_error && run.condition !== "working") details.push(run.activity_error.message);
  if (run.failed_tools) details.push(`${run.failed_tools} failed tool${run.failed_tools > 1 ? "s" : ""}`);
  if (run.outcome) details.push(run.outcome);
  if (details.length) cell.push(element("div", { class: "quiet" }, details.join(" · ")));
  return cell;
}

function row(run) {
  const recommendation = run.recommendation;
  return element("tr", {},
    element("td", {}, element("a", { href: `/underwriting/runs/${run.run_id}` }, run.applicant)),
    element("td", { class: "number", "data-label": "Amount" }, money(run.amount)),
    element("td", { "data-label": "Purpose" }, words(run.purpose)),
    element("td", { "data-label": "Now" }, doing(run)),
    element("td", { "data-label": "Recommendation" }, recommendation ? badge(recommendation.recommendation) : "–",
      run.policy ? element("div", { class: "quiet" }, `${run.policy.policy_name} ${run.policy.policy_version}`) : null),
    element("td", { "data-label": "Turn" }, `${run.turn} of ${run.turn_limit}`),
    element("td", { "data-label": "Asked by" }, run.user),
    element("td", { class: "number", "data-label": "Cost" }, money(run.llm_cost)),
    element("td", { "data-label": "Since" }, since(run.created_at)));
}

async function refresh() {
  const runs = [];
  let cursor = null;
  for (let page = 0; page < pages; page += 1) {
    const asked = query();
    if (cursor) asked.set("cursor", cursor);
    const answer = await call(`runs?${asked}`);
    runs.push(...answer.runs);
    cursor = answer.next_cursor;
    if (!cursor) break;
  }
  more.hidden = !cursor;
  list.replaceChildren(...(runs.length ? runs.map(row)
    : [element("tr", {}, element("td", { colSpan: 9, class: "quiet" }, "No runs. Start one above."))]));
  return absence();
}

const again = keepFresh(refresh);
filter.addEventListener("input", () => {
  pages = 1;
  history.replaceState(null, "", `?${query()}`);
  again();
});
filter.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", () => { pages += 1; again(); });

call("samples").then((answer) => {
  samples = answer.samples;
  const chooser = document.getElementById("sample");
  samples.forEach((sample, at) => chooser.append(
    element("option", { value: String(at) }, `${sample.request.applicant}: ${sample.title}`)));
  chooser.addEventListener("change", () => {
    const sample = samples[Number(chooser.value)];
    if (!sample || chooser.value === "") return;
    for (const name of ["applicant", "amount", "purpose", "stated_annual_income"]) {
      request.elements[name].value = sample.request[name] ?? "";
    }
    request.elements.stated_monthly_debt.value = "";
  });
}).catch(() => { /* the form works without samples */ });

let key = crypto.randomUUID();
request.addEventListener("submit", async (event) => {
  event.preventDefault();
  const error = document.getElementById("request-error");
  const button = request.querySelector("button");
  const body = {};
  for (const name of ["user", "applicant", "amount", "purpose"]) body[name] = request.elements[name].value.trim();
  for (const name of ["stated_annual_income", "stated_monthly_debt"]) {
    const given = request.elements[name].value.trim();
    if (given) body[name] = given;
  }
  body.turn_limit = Number(request.elements.turn_limit.value);
  body.four_eyes = request.elements.four_eyes.checked;
  button.disabled = true;
  error.textContent = "";
  try {
    // The same key again is the same run: a second click or a lost answer starts nothing twice.
    const answer = await fetch("/api/v1/underwriting/runs", {
      method: "POST", headers: { "Content-Type": "application/json", "Idempotency-Key": key }, body: JSON.stringify(body),
    });
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.detail || content.title);
    key = crypto.randomUUID();
    location.href = `/underwriting/runs/${content.run_id}`;
  } catch (failure) {
    error.textContent = failure.message;
    key = failure instanceof TypeError ? key : crypto.randomUUID();
  } finally {
    button.disabled = false;
  }
});
