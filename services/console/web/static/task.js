// One task: where it stands and why, its result, attempts, history and cost.
import { api } from "./api.js";
import { byId, fill, h, notice } from "./dom.js";
import { count, fullTime, money, NONE, percent, seconds } from "./format.js";
import { Live } from "./live.js";
import { result } from "./result.js";
import "./rights.js";
import { chip, shortId, title, took } from "./rows.js";
import { Viewer } from "./viewer.js";
import { nextStep, plain, STATUS, VERB, waitingFor } from "./words.js";

const { id, traces } = byId("task").dataset;
const TERMINAL = new Set(["completed", "failed", "cancelled"]);
let shown = null;
let agents = [];
const viewer = new Viewer();

async function act(button, verb, body) {
  button.disabled = true;
  try {
    const task = await api(verb === "priority" ? `/tasks/${id}` : `/tasks/${id}/${verb}`, { method: verb === "priority" ? "PATCH" : "POST", body });
    notice(null);
    if (task.id !== id) location.assign(`/tasks/${task.id}`);
    else show(task);
  } catch (error) { notice(error.message); }
  button.disabled = false;
}

function actions(task) {
  const button = (words, verb, kind = "", body = undefined) => h("button", { type: "button", class: kind, "data-right": "operate", onclick: (event) => act(event.target, verb, body) }, words);
  const list = [];
  if (task.status === "failed" || task.status === "cancelled") list.push(button("Retry", "retry", "primary"));
  if (task.status === "enqueued" && ["backoff", "scheduled"].includes(task.waiting?.reason)) list.push(button("Start now", "retry", "primary"));
  if (TERMINAL.has(task.status)) {
    const other = h("select", { "aria-label": "Agent to reprocess with", "data-right": "operate" }, ...[task.agent, ...agents.filter((name) => name !== task.agent)].map((name) => h("option", { value: name }, name)));
    list.push(h("button", { type: "button", "data-right": "operate", onclick: (event) => act(event.target, "reprocess", { agent: other.value }) }, "Reprocess with"), other);
  }
  if (task.status === "enqueued" && task.priority < 100) list.push(button("Raise priority", "priority", "", { priority: Math.min(100, task.priority + 25) }));
  if (!TERMINAL.has(task.status)) list.push(button("Cancel", "cancel", "danger"));
  if (task.document) list.push(h("a", { class: "button", href: `/api/v1/documents/${task.document.id}/content?inline=true`, target: "_blank", rel: "noopener" }, "Open PDF"));
  return h("div", { class: "actions" }, ...list);
}

function trouble(task) {
  const place = byId("task-error");
  place.hidden = false;
  if (task.error && task.status !== "completed") {
    const { reason, message } = task.error;
    return fill(place, h("div", { class: "trouble" }, h("b", {}, task.status === "failed" ? "It failed" : "Its last attempt failed"), reason && [" · ", h("code", {}, reason)], h("p", {}, message ?? plain(reason)), nextStep(reason) && h("p", {}, h("strong", {}, "What to do: "), nextStep(reason))));
  }
  if (task.waiting) {
    const { reason, place: position, estimated_start: start } = task.waiting;
    return fill(place, h("div", { class: "trouble waits" }, h("b", {}, `It waits: ${waitingFor(reason)}`), h("p", {}, position ? `Place ${count(position)} for its agent` : "", start ? [position ? ", expected to start about " : "Expected to start about ", fullTime(start)] : "")));
  }
  place.hidden = true;
  return undefined;
}

function facts(task) {
  const elapsed = took(task);
  const { pages_done: done, pages_total: total } = task.progress;
  const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
  fill(byId("task-facts"),
    fact("Agent", task.agent), fact("Customer", task.customer ?? NONE), fact("Priority", count(task.priority)),
    fact("Attempt", `${task.attempt} of ${task.max_attempts}`),
    fact("Pages", total && task.status === "processing" ? `${done ?? 0} of ${total}` : count(task.document?.pages ?? total)),
    fact("Confidence", percent(task.confidence)),
    fact("Took", elapsed === null ? NONE : seconds(elapsed)),
    fact("Tokens in", count(task.input_tokens)), fact("Tokens out", count(task.output_tokens)),
    fact("LLM cost", money(task.cost.llm_cost, task.cost.currency)), fact("Compute cost", money(task.cost.compute_cost, task.cost.currency)),
    fact("Accepted", fullTime(task.created_at)));
}

const ATTEMPT_TONE = { completed: "completed", failed: "failed", lost: "failed", cancelled: "cancelled", superseded: "cancelled", released: "enqueued", leased: "processing", submitted: "processing", running: "processing" };

function steps(attempt, since) {
  const end = attempt.finished_at ?? new Date().toISOString();
  const marks = [["queued", since, attempt.leased_at], ["waited", attempt.leased_at, attempt.submitted_at], ["started", attempt.submitted_at, attempt.started_at], ["ran", attempt.started_at ?? attempt.submitted_at, end]];
  const spans = marks.filter(([, from, to]) => from && to).map(([name, from, to]) => [name, Math.max(0, (Date.parse(to) - Date.parse(from)) / 1000)]);
  const words = { queued: "waited", waited: "submitted after", started: "started after", ran: attempt.started_at ? (attempt.finished_at ? "ran for" : "running for") : attempt.finished_at ? "started and ran for" : "starting for" };
  return [
    h("div", { class: "steps", role: "img", "aria-label": spans.map(([name, length]) => `${words[name]} ${seconds(length)}`).join(", ") }, ...spans.map(([name, length]) => h("i", { class: name, title: `${words[name]} ${seconds(length)}`, vars: { "--seconds": Math.max(length, 0.05) } }))),
    h("small", {}, spans.map(([name, length]) => `${words[name]} ${seconds(length)}`).join(" · ")),
  ];
}

// Pages of other programs; the console finds out where they are when somebody goes there.
const elsewhere = (attempt, what, name) => h("a", { href: `/tasks/${id}/attempts/${attempt.id}/${what}`, target: "_blank", rel: "noopener" }, `${what} ${name}`);

function attempts(task) {
  if (!task.attempts.length) return fill(byId("task-attempts"), h("p", { class: "empty" }, "None yet."));
  const before = (index) => (index ? task.attempts[index - 1].finished_at : task.created_at);
  return fill(byId("task-attempts"), ...task.attempts.map((attempt, index) => h("div", { class: "attempt" },
    h("div", { class: "attempt-head" }, h("b", {}, `Attempt ${attempt.attempt}`), h("span", { class: `chip tone-${ATTEMPT_TONE[attempt.status]}` }, plain(attempt.status)),
      h("span", {}, money(attempt.llm_cost, attempt.currency), " + ", money(attempt.compute_cost, attempt.currency))),
    steps(attempt, before(index)),
    attempt.input_tokens !== null && h("small", {}, `${count(attempt.input_tokens)} tokens in, ${count(attempt.output_tokens)} out, ${count(attempt.cache_read_tokens)} from cache`),
    attempt.error && h("small", { class: "bad" }, attempt.error.message ?? plain(attempt.error.reason)),
    h("small", { class: "ways" }, attempt.run_id && elsewhere(attempt, "run", attempt.run_id), attempt.trace_id && (traces === undefined ? h("span", { title: "No tracking server is named to this console" }, `trace ${attempt.trace_id}`) : elsewhere(attempt, "trace", attempt.trace_id)), attempt.locked_by && h("span", {}, `by ${attempt.locked_by}`)))).toReversed());
}

function history(task) {
  fill(byId("task-events"), ...task.events.toReversed().map((event) => h("li", { class: `tone-${event.status}` },
    h("span", {}, VERB[event.verb] ?? plain(event.verb), event.reason && event.verb !== "enqueue" ? ` – ${plain(event.reason)}` : ""),
    h("small", {}, fullTime(event.at), ` · ${event.actor.replace(/^lockkeeper_/, "").replaceAll("_", " ")}`))));
}

const ENDS_WHEN = { all_completed: "all children completed", any_completed: "all children ended; one must complete", all_ended: "all children ended, however" };

function given(task) {
  const names = Object.entries(task.labels);
  const link = (other) => h("a", { href: `/tasks/${other}`, class: "mono" }, shortId(other));
  const family = task.family;
  const lines = [["Accepted by", task.created_by]];
  if (!family) lines.push(["Available from", fullTime(task.available_at)]);
  if (family) lines.push([`Children (${family.children})`, Object.keys(STATUS).filter((each) => family[each]).map((each) => `${family[each]} ${STATUS[each].toLowerCase()}`).join(", ") || "none"], ["Ends when", ENDS_WHEN[family.gather]]);
  if (task.source_task_id) lines.push(["Redoes", link(task.source_task_id)]);
  if (task.redone_by.length) lines.push(["Redone by", h("span", {}, ...task.redone_by.flatMap((each) => [link(each), " "]))]);
  if (task.parent_task_id) lines.push(["Belongs to", link(task.parent_task_id)]);
  if (task.estimated_tokens) lines.push(["Estimate", `${count(task.estimated_tokens)} tokens`]);
  fill(byId("task-input"), h("dl", { class: "pairs" }, ...lines.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    names.length ? h("ul", { class: "labels", "aria-label": "Labels" }, ...names.map(([name, value]) => h("li", {}, `${name}: ${value}`))) : null,
    Object.keys(task.input).length ? h("details", { class: "block" }, h("summary", {}, "Input"), h("pre", {}, JSON.stringify(task.input, null, 2))) : null);
}

function show(task) {
  const before = shown;
  shown = task;
  document.title = `${STATUS[task.status]} · ${title(task)} · Lockkeeper`;
  if (JSON.stringify(before) === JSON.stringify(task)) return;
  byId("task-head").replaceChildren(h("h1", {}, title(task)), chip(task.status), actions(task));
  trouble(task);
  facts(task);
  if (JSON.stringify(before?.result) !== JSON.stringify(task.result) || before?.status !== task.status) fill(byId("task-result"), result(task, (page, words) => viewer.show(page, words)));
  viewer.open(task.document);
  attempts(task);
  history(task);
  given(task);
  // All at once: nothing moves that somebody reads already.
  byId("task-loading").hidden = true;
  byId("task-body").hidden = false;
}

async function poll() {
  try {
    if (!agents.length) agents = (await api("/agents")).agents.map((agent) => agent.name);
    show(await api(`/tasks/${id}`));
  } catch (error) {
    if (error.status === 404 || error.status === 422) { notice("There is no such task."); byId("task-loading").hidden = true; }
    throw error;
  }
}

// Many events may come for one task; each asks for the whole of it once more, at most every quarter second.
let asking = null;
const changed = () => { asking ??= setTimeout(() => { asking = null; live.refresh(); }, 250); };

const live = new Live(new URLSearchParams({ text: id, only: "tasks" }).toString(), { task: changed, cost: changed, snapshot: changed }, poll);
live.start();
setInterval(() => { if (shown && !shown.finished_at) facts(shown); }, 1000);
