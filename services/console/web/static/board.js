// The status page.
import { Agents } from "./agents.js";
import { api } from "./api.js";
import { bill } from "./bill.js";
import { byId, fill, h } from "./dom.js";
import { brief, count, money, NONE, percent, seconds } from "./format.js";
import { Live } from "./live.js";
import { Rows } from "./rows.js";
import { Uploads } from "./upload.js";
import { STATUS } from "./words.js";

const PAGE = 50;
const RANGES = { "1h": 3600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400, all: null };
const FALLBACK_RANGE = "7d";

const tasks = new Map();
let room = PAGE;
let cursor = null;
let isFirst = true;
let isDrawing = false;
const form = byId("filters");
const rows = new Rows(byId("rows"));

// The filters live in the address, so that a link shows the same.
const filters = () => {
  const given = new URLSearchParams(location.search);
  return { status: given.get("status"), agent: given.get("agent"), customer: given.get("customer"), label: given.get("label"), text: given.get("text"), range: given.get("range") in RANGES ? given.get("range") : FALLBACK_RANGE };
};

// The range begins at a whole minute, so that pages opened together ask for the same and share the answer.
function query() {
  const { range, ...named } = filters();
  const asked = new URLSearchParams(Object.entries(named).filter(([, value]) => value));
  if (RANGES[range]) asked.set("from", new Date(Math.floor(Date.now() / 60_000) * 60_000 - RANGES[range] * 1000).toISOString());
  return asked;
}

let asked = query().toString();

function set(changes) {
  const given = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) value ? given.set(name, value) : given.delete(name);
  history.replaceState(null, "", `${location.pathname}${given.size ? `?${given}` : ""}`);
  asked = query().toString();
  tasks.clear();
  room = PAGE;
  isFirst = true;
  showFilters();
  live.ask(asked);
}

const newestFirst = (one, two) => Date.parse(two.created_at) - Date.parse(one.created_at) || (one.id < two.id ? 1 : -1);

function keep(task) {
  const known = tasks.get(task.id);
  if (!known || task.version >= known.version) tasks.set(task.id, known ? { ...known, ...task } : task);
}

function draw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    const shown = [...tasks.values()].sort(newestFirst).slice(0, room);
    for (const id of [...tasks.keys()].filter((each) => !shown.some((task) => task.id === each))) tasks.delete(id);
    rows.show(shown, { isFirst });
    isFirst = false;
    byId("tasks-empty").hidden = shown.length > 0;
  });
}

function showPage(page, isWhole) {
  const listed = new Set(page.map((task) => task.id));
  const oldest = page.length ? Date.parse(page.at(-1).created_at) : Infinity;
  // What the page does not list is gone, unless it is older than where the page ends.
  for (const [id, task] of tasks) if (!listed.has(id) && (isWhole || Date.parse(task.created_at) >= oldest)) tasks.delete(id);
  page.forEach(keep);
  const { status, agent, text, customer } = filters();
  fill(byId("tasks-empty"), status || agent || text || customer ? "No task fits these filters." : "No tasks yet. Drop a PDF above, and watch it being read.");
  draw();
}

function showSummary(summary) {
  const { status } = filters();
  const tile = (name) => h("button", { type: "button", class: `tile tone-${name}`, "aria-pressed": String(status === name), onclick: () => set({ status: status === name ? null : name }) },
    h("b", {}, count(summary.counts[name])), h("span", {}, STATUS[name]));
  const place = byId("tiles");
  if (place.childElementCount) {
    [...place.children].forEach((button, index) => { button.querySelector("b").textContent = count(summary.counts[Object.keys(STATUS)[index]]); });
  } else place.replaceChildren(...Object.keys(STATUS).map(tile));
  const left = (pending) => (pending ? h("small", {}, ` + ${count(pending)} pending`) : null);
  const known = (value, pending) => [money(value, summary.currency), /\d$/.test(value) ? left(pending) : null];
  const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
  fill(byId("facts"),
    fact("Response, median", seconds(summary.median_response_seconds)),
    fact("Response, p95", seconds(summary.p95_response_seconds)),
    fact("Tokens in", brief(summary.input_tokens)),
    fact("Tokens out", brief(summary.output_tokens)),
    fact("LLM cost", ...known(summary.llm_cost, summary.llm_cost_pending)),
    fact("Compute cost", ...known(summary.compute_cost, summary.compute_cost_pending)),
    fact("Confidence, mean", summary.confidence === null ? NONE : percent(summary.confidence)));
}

function options(select, names, chosen) {
  for (const name of names) if (![...select.options].some((each) => each.value === name)) select.append(h("option", { value: name }, name));
  if (chosen && select.value !== chosen) {
    if (![...select.options].some((each) => each.value === chosen)) select.append(h("option", { value: chosen }, chosen));
    select.value = chosen;
  }
}

// The agent that this person chose last.
let choice = null;
function remembered() {
  if (choice === null) try { choice = localStorage.getItem("lockkeeper-agent") ?? ""; } catch { choice = ""; }
  return agents.names.includes(choice) ? choice : null;
}
byId("upload-agent").addEventListener("change", (event) => {
  choice = event.target.value;
  try { localStorage.setItem("lockkeeper-agent", choice); } catch { /* not kept then */ }
});

const agents = new Agents(byId("agents"), () => live.refresh());

function showAgents(list) {
  agents.show(list);
  options(byId("upload-agent"), agents.names, remembered());
  options(form.elements.agent, agents.names, filters().agent);
}

function showFilters() {
  const { status, agent, customer, label, text, range } = filters();
  form.elements.range.value = range;
  form.elements.agent.value = agent ?? "";
  if (document.activeElement !== form.elements.text) form.elements.text.value = text ?? "";
  byId("filters-reset").hidden = !(status || agent || customer || label || text || range !== FALLBACK_RANGE);
  byId("tiles").querySelectorAll("button").forEach((button, index) => button.setAttribute("aria-pressed", String(status === Object.keys(STATUS)[index])));
  byId("tiles").replaceChildren();
  if (lastSummary) showSummary(lastSummary);
}

let lastSummary = null;

async function poll() {
  const at = asked;
  const [page, summary, all] = await Promise.all([api(`/tasks?${at}&limit=${PAGE}`), api(`/summary?${at}`), api("/agents")]);
  if (at !== asked) return;
  cursor = cursor === null || room === PAGE ? page.next_cursor : cursor;
  byId("older").hidden = cursor === null;
  showPage(page.tasks, page.next_cursor === null);
  showSummary((lastSummary = summary));
  showAgents(all.agents);
}

const live = new Live(asked, {
  snapshot: (data) => { showPage(data.tasks, data.is_whole); showSummary((lastSummary = data.summary)); showAgents(data.agents); },
  task: (task) => { keep(task); draw(); },
  gone: ({ id }) => { tasks.delete(id); draw(); },
  cost: (cost) => { if (tasks.has(cost.id)) keep(cost); draw(); },
  summary: (summary) => showSummary((lastSummary = summary)),
  agents: showAgents,
}, poll);

form.addEventListener("submit", (event) => event.preventDefault());
form.elements.agent.addEventListener("change", (event) => set({ agent: event.target.value }));
form.elements.range.addEventListener("change", (event) => set({ range: event.target.value === FALLBACK_RANGE ? null : event.target.value }));
let typing = null;
form.elements.text.addEventListener("input", (event) => { clearTimeout(typing); typing = setTimeout(() => set({ text: event.target.value.trim() }), 300); });
form.addEventListener("reset", (event) => { event.preventDefault(); form.elements.text.value = ""; set({ status: null, agent: null, customer: null, label: null, text: null, range: null }); });
byId("older").addEventListener("click", async (event) => {
  event.target.disabled = true;
  try {
    const page = await api(`/tasks?${asked}&limit=${PAGE}&cursor=${cursor}`);
    room += PAGE;
    cursor = page.next_cursor;
    byId("older").hidden = cursor === null;
    page.tasks.forEach(keep);
    draw();
  } finally { event.target.disabled = false; }
});

new Uploads(() => live.refresh());
bill(byId("bill"), () => live.refresh());
showFilters();
live.start();
setInterval(() => rows.tick(), 1000);
