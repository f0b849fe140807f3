import { absence, badge, call, element, instant, keepFresh, money, since, table, words } from "./page.js";

const root = document.getElementById("run");
const runId = root.dataset.run;
const form = document.getElementById("decision");
const answerBox = document.getElementById("answer");
let open = null;
let shown = "";
let notes = [];

form.elements.reviewer.value = localStorage.getItem("lockkeeper.reviewer") || "";

function put(id, ...children) {
  document.getElementById(id).replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

function cites(names) {
  return names.length ? element("span", { class: "quiet" }, " — ", names.map((name, at) => [
    at ? ", " : "", element("a", { href: `#${name}` }, words(name))]).flat()) : null;
}

function recommendation(found) {
  if (!found) return element("p", { class: "quiet" }, "There is no recommendation.");
  const parts = [element("p", {}, "The agent recommends ", badge(found.recommendation), " ", found.summary || "")];
  if (found.overruled) {
    parts.push(element("p", { class: "notice warn" },
      `The model said ${found.overruled.model_said}; ${found.overruled.because}, so a person must look.`));
  }
  if (found.source === "fallback") {
    parts.push(element("p", { class: "notice bad" }, "The model gave no usable recommendation; decide on the evidence."));
  }
  parts.push(element("ul", {}, found.reasons.map((reason) => element("li", {}, reason.text, cites(reason.cites)))));
  return element("div", {}, parts);
}

function ruleTable(policy) {
  const passed = (rule) => (rule.passed === null ? badge("refer", "not judged") : badge(rule.passed ? "approve" : "deny", rule.passed ? "passes" : "fails"));
  return table(["Rule", "Threshold", "Actual", "Result", "Means", "Why", "Source"], policy.rules.map((rule) => [
    element("span", { id: rule.rule }, words(rule.rule)), String(rule.threshold), rule.actual === null ? "–" : String(rule.actual),
    passed(rule), badge(rule.recommendation), rule.rationale, element("a", { href: `#${rule.source}` }, words(rule.source))]));
}

function policyLine(policy) {
  const line = [`${policy.policy_name} ${policy.policy_version}`, `from ${words(policy.source)}`];
  if (policy.synced_at) line.push(`synced ${new Date(policy.synced_at).toLocaleString()}`);
  const parts = [element("p", {}, element("strong", {}, line.join(" · ")))];
  if (policy.source === "fixture_fallback") {
    parts.push(element("p", { class: "notice bad" }, "The policy's row was missing: built-in limits stood in."));
  }
  if (policy.stale) parts.push(element("p", { class: "notice warn" }, "The policy was not synced for long; it may have changed."));
  return parts;
}

function review(run) {
  const section = document.getElementById("review");
  const present = run.reviews.find((each) => each.state === "open");
  open = present || null;
  section.hidden = !present;
  if (!present) return;
  put("review-title", `Review of turn ${present.turn} of ${run.turn_limit}`);
  const approvals = present.decisions.filter((each) => each.effect === "first_approval");
  put("review-body",
    element("p", { class: "quiet" }, `Open for ${since(present.opened_at)}, expires `, instant(present.expires_at),
      run.review.reminded_at ? " · reviewers were reminded" : ""),
    run.four_eyes ? element("p", { class: "notice" }, approvals.length
      ? `${approvals[0].reviewer} has approved; one more person must.` : "An approval needs two people, neither of them who asked.") : null,
    recommendation(present.recommendation),
    present.policy ? policyLine(present.policy) : element("p", { class: "notice bad" }, "No policy could be looked up in this turn."));
  form.elements.decision[2].disabled = run.turn >= run.turn_limit;
}

const MONEY = new Set(["monthly_debt", "annual_income", "stated_annual_income", "stated_monthly_debt"]);

function figure(name, value) {
  if (name.endsWith("_at")) return instant(value);
  if (MONEY.has(name) && value !== null) return money(value);
  if (name.endsWith("_percent")) return `${value} %`;
  return value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function figures(result) {
  const hidden = new Set(["rules", "contradictions", "delinquencies"]);
  return element("dl", {}, Object.entries(result).filter(([name]) => !hidden.has(name)).flatMap(([name, value]) => [
    element("dt", {}, words(name.replace(/_percent$/, ""))), element("dd", {}, figure(name, value))]));
}

function evidence(run) {
  put("evidence", run.tool_calls.filter((call) => call.tool !== "policy_lookup").map((call) => element("article", { class: "card", id: call.tool },
    element("h3", {}, words(call.tool), " ", badge(call.state), element("span", { class: "quiet" }, ` turn ${call.turn}`,
      call.attempt > 1 ? ` · attempt ${call.attempt}` : "")),
    call.state === "failed" ? element("p", { class: "notice bad" }, `${words(call.error.reason)}: ${call.error.message}`) : null,
    call.result ? figures(call.result) : null,
    call.result && call.result.contradictions && call.result.contradictions.length
      ? element("p", { class: "notice warn" }, call.result.contradictions.join("; ")) : null,
    call.result && call.result.delinquencies ? element("ul", {}, call.result.delinquencies.map((each) => element("li", {},
      `${words(each.kind)}, ${each.reported_on}, ${money(each.amount)}, ${each.material ? "material" : "not material"}`))) : null)));
  const lookups = run.tool_calls.filter((call) => call.tool === "policy_lookup");
  put("policy", lookups.reverse().map((call, at) => element("div", { class: "card", id: at ? `policy_${call.turn}` : "policy_lookup" },
    element("h3", {}, `Turn ${call.turn} `, badge(call.state)),
    call.result ? [policyLine(call.result), ruleTable(call.result)].flat()
      : element("p", { class: "notice bad" }, call.error ? `${words(call.error.reason)}: ${call.error.message}` : "is being looked up"))));
}

function reviews(run) {
  const rows = run.reviews.flatMap((each) => each.decisions.map((decision) => [
    each.turn === null ? "unknown" : String(each.turn), decision.reviewer, words(decision.decision), badge(decision.status),
    decision.refusal ? words(decision.refusal) : words(decision.effect), decision.note || "–", instant(decision.received_at)]));
  put("reviews", rows.length ? table(["Turn", "Reviewer", "Decision", "Became", "Why", "Note", "When"], rows)
    : element("p", { class: "quiet" }, "Nobody has decided yet."));
}

function conversation(run) {
  put("conversation", run.messages.map((message) => element("div", { class: `said ${message.role}` },
    element("small", {}, `turn ${message.turn} · ${message.role}`, message.model ? ` · ${message.model}` : "",
      message.input_tokens === null ? "" : ` · ${message.input_tokens} + ${message.output_tokens} tokens`, message.state === "complete" ? "" : ` · ${message.state}`),
    message.content || "",
    message.tool_calls.length ? element("small", {}, `asks for ${message.tool_calls.map((each) => words(each.tool)).join(", ")}`) : null,
    message.reading && message.reading.recommendation ? element("small", {}, `recommends ${message.reading.recommendation.recommendation}`) : null,
    message.reading && message.reading.trouble ? element("small", {}, `could not be used: ${message.reading.trouble}`) : null)));
}

function timeline(run) {
  put("timeline", run.events.map((event) => element("li", {}, instant(event.at), element("span", {},
    element("strong", {}, words(event.name.replace("agent.", ""))), ` · turn ${event.turn}`,
    element("span", { class: "quiet" }, Object.keys(event.details).length ? ` ${Object.entries(event.details).map(([name, value]) =>
      `${words(name)}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ")}` : "")))));
  const took = (each) => (each.finished_at ? `${((new Date(each.finished_at) - new Date(each.started_at)) / 1000).toFixed(2)} s` : "…");
  put("attempts", table(["Turn", "Activity", "Round", "Attempt", "Ended", "Took", "Worker", "Error"], run.attempts.map((each) => [
    String(each.turn), words(each.activity), String(each.round), String(each.attempt), badge(each.outcome), took(each), each.worker || "–",
    each.error ? `${words(each.error.type)}: ${each.error.message}` : "–"])));
}

function condition(run) {
  put("condition", badge(run.condition, run.condition_text), " ", run.outcome ? badge(run.outcome) : "");
  const notes = [];
  const temporal = run.temporal || {};
  for (const pending of temporal.pending_activities || []) {
    if (pending.attempt > 1) {
      notes.push(element("p", { class: "notice warn" }, `${words(pending.activity)} is at attempt ${pending.attempt}`
        + (pending.last_error ? `; the last one ended with: ${pending.last_error}` : "")));
    }
  }
  if (run.error) notes.push(element("p", { class: "notice bad" }, `${words(run.error.reason)}: ${run.error.message}`));
  return notes;
}

async function refresh() {
  const run = await call(`runs/${runId}`);
  const text = JSON.stringify(run);
  document.getElementById("cancel").hidden = ["completed", "failed", "cancelled", "expired"].includes(run.state);
  if (text !== shown) show(run);
  shown = text;
  return run.temporal && run.temporal.unavailable ? [...notes, await absence()] : notes;
}

function show(run) {
  document.title = `${run.applicant} · Lockkeeper`;
  put("title", `${run.applicant}: ${money(run.amount)} for ${words(run.purpose)}`);
  put("facts", `Asked by ${run.user} · turn ${run.turn} of ${run.turn_limit} · ${run.model} · ${run.input_tokens + run.output_tokens} tokens, ${money(run.llm_cost)} · ${run.workflow_id}`);
  notes = condition(run);
  review(run);
  evidence(run);
  reviews(run);
  conversation(run);
  timeline(run);
}

const again = keepFresh(refresh, 1.5);

function tell(kind, text) {
  answerBox.className = `notice ${kind}`;
  answerBox.textContent = text;
  answerBox.hidden = false;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!open) return;
  const word = event.submitter.value;
  const body = {
    decision: word, reviewer: form.elements.reviewer.value.trim(), note: form.elements.note.value.trim(),
    decision_id: crypto.randomUUID(),
  };
  if (word === "request_more_info" && !body.note) {
    tell("warn", "Say what you want to know.");
    form.elements.note.focus();
    return;
  }
  localStorage.setItem("lockkeeper.reviewer", body.reviewer);
  for (const button of form.querySelectorAll("button")) button.disabled = true;
  try {
    const done = await call(`runs/${runId}/reviews/${open.review_id}/decision`, body);
    const words = { received: "Your decision is on record and on its way.", accepted: done.effect === "first_approval"
      ? "Your approval counts; a second person must approve too." : "Your decision counts." };
    tell("good", words[done.status]);
    form.elements.note.value = "";
  } catch (error) {
    tell(error.status === 409 ? "warn" : "bad", error.status === 409
      ? `${error.message} Nothing was changed; what you see now is the present state.` : error.message);
  } finally {
    for (const button of form.querySelectorAll("button")) button.disabled = false;
    shown = "";
    again();
  }
});

document.getElementById("cancel").addEventListener("click", async () => {
  try {
    await call(`runs/${runId}/cancel`, {});
    tell("good", "The run is being cancelled.");
  } catch (error) {
    tell("warn", error.message);
  }
  again();
});
