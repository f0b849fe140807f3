// The live table of tasks with its totals; the overview and the page of tasks both show it.
import { api } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { Filters } from "./filters.js";
import { brief, count, fullTime, money, NONE, percent, seconds } from "./format.js";
import { Live } from "./live.js";
import { Rows } from "./rows.js";
import { STATUS } from "./words.js";

const PAGE = 50;
const newestFirst = (one, two) => Date.parse(two.created_at) - Date.parse(one.created_at) || (one.id < two.id ? 1 : -1);

export class TaskTable {
  tasks = new Map();
  summary = null;
  #room = PAGE; #cursor = null; #isFirst = true; #isDrawing = false; #asked; #rows; #live; #options;

  // `onAgents`, `onSummary`, `onPoll` and `onDraw` hear what else came; `selection` makes rows that can be chosen.
  constructor(options = {}) {
    this.#options = options;
    this.#rows = new Rows(byId("rows"), options.selection);
    this.filters = new Filters(byId("filters"), () => this.#ask(), options.fixed);
    this.#asked = this.filters.query.toString();
    this.#live = new Live(this.#asked, {
      snapshot: (data) => { this.#showPage(data.tasks, data.is_whole); this.#showSummary(data.summary); this.#showAgents(data.agents); },
      task: (task) => { this.#keep(task); this.#draw(); },
      gone: ({ id }) => { this.tasks.delete(id); this.#draw(); },
      cost: (cost) => { if (this.tasks.has(cost.id)) this.#keep(cost); this.#draw(); },
      summary: (summary) => this.#showSummary(summary),
      agents: (agents) => this.#showAgents(agents),
    }, () => this.#poll());
    byId("older").addEventListener("click", (event) => this.#older(event.target));
  }

  start() {
    this.#live.start();
    setInterval(() => this.#rows.tick(), 1000);
  }

  refresh() { this.#live.refresh(); }

  get shown() { return [...this.tasks.values()].sort(newestFirst).slice(0, this.#room); }

  redraw() { this.#rows.forget(); this.#draw(); }

  #ask() {
    this.#asked = this.filters.query.toString();
    this.tasks.clear();
    this.#room = PAGE;
    this.#isFirst = true;
    this.#cursor = null;
    this.#showPressed();
    this.#options.onFilter?.();
    this.#live.ask(this.#asked);
  }

  async #poll() {
    const at = this.filters.query.toString();
    this.#asked = at;
    const [page, summary, all] = await Promise.all([api(`/tasks?${at}&limit=${PAGE}`), api(`/summary?${at}`), api("/agents")]);
    if (at !== this.#asked) return;
    if (this.#cursor === null || this.#room === PAGE) this.#cursor = page.next_cursor;
    byId("older").hidden = this.#cursor === null;
    this.#showPage(page.tasks, page.next_cursor === null);
    this.#showSummary(summary);
    this.#showAgents(all.agents);
    this.#options.onPoll?.();
  }

  async #older(button) {
    button.disabled = true;
    try {
      const page = await api(`/tasks?${this.#asked}&limit=${PAGE}&cursor=${this.#cursor}`);
      this.#room += PAGE;
      this.#cursor = page.next_cursor;
      byId("older").hidden = this.#cursor === null;
      page.tasks.forEach((task) => this.#keep(task));
      this.#draw();
    } finally { button.disabled = false; }
  }

  #keep(task) {
    const known = this.tasks.get(task.id);
    if (!known || task.version >= known.version) this.tasks.set(task.id, known ? { ...known, ...task } : task);
  }

  // However many events come, the rows are drawn once a frame.
  #draw() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      const shown = this.shown;
      const kept = new Set(shown.map((task) => task.id));
      for (const id of this.tasks.keys()) if (!kept.has(id)) this.tasks.delete(id);
      this.#rows.show(shown, { isFirst: this.#isFirst });
      this.#isFirst = false;
      byId("tasks-empty").hidden = shown.length > 0;
      this.#options.onDraw?.(shown);
    });
  }

  #showPage(page, isWhole) {
    const listed = new Set(page.map((task) => task.id));
    const oldest = page.length ? Date.parse(page.at(-1).created_at) : Infinity;
    // What the page does not list is gone, unless it is older than where the page ends.
    for (const [id, task] of this.tasks) if (!listed.has(id) && (isWhole || Date.parse(task.created_at) >= oldest)) this.tasks.delete(id);
    page.forEach((task) => this.#keep(task));
    fill(byId("tasks-empty"), this.filters.isNarrow ? "No task fits these filters." : this.#options.empty ?? "No task was accepted in this range.");
    this.#draw();
  }

  #showAgents(agents) {
    this.filters.offer(agents.map((agent) => agent.name));
    this.#options.onAgents?.(agents);
  }

  #showPressed() {
    const { status } = this.filters.values;
    byId("tiles").querySelectorAll("button").forEach((button, index) => button.setAttribute("aria-pressed", String(status === Object.keys(STATUS)[index])));
  }

  #showSummary(summary) {
    this.summary = summary;
    const place = byId("tiles");
    const names = Object.keys(STATUS);
    if (!place.childElementCount) {
      place.replaceChildren(...names.map((name) => h("button", { type: "button", class: `tile tone-${name}`, onclick: () => this.filters.set({ status: this.filters.values.status === name ? null : name }) }, h("b", {}), h("span", {}, STATUS[name]))));
    }
    [...place.children].forEach((button, index) => { button.querySelector("b").textContent = count(summary.counts[names[index]]); });
    this.#showPressed();
    this.#showFacts(summary);
    this.#options.onSummary?.(summary);
  }

  #showFacts(summary) {
    const left = (pending) => (pending ? h("small", {}, ` + ${brief(pending)} pending`) : null);
    const known = (value, pending) => [money(value, summary.currency), /\d$/.test(value) ? left(pending) : null];
    const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
    const age = summary.oldest_waiting_at ? Math.max(0, (Date.now() - Date.parse(summary.oldest_waiting_at)) / 1000) : null;
    fill(byId("facts"),
      fact("Response, median", seconds(summary.median_response_seconds)),
      fact("Response, p95", seconds(summary.p95_response_seconds)),
      fact("Oldest waiting", age === null ? NONE : seconds(Math.round(age))),
      fact("Tokens in", brief(summary.input_tokens)),
      fact("Tokens out", brief(summary.output_tokens)),
      fact("LLM cost", ...known(summary.llm_cost, summary.llm_cost_pending)),
      fact("Compute cost", ...known(summary.compute_cost, summary.compute_cost_pending)),
      fact("Confidence, mean", summary.confidence === null ? NONE : percent(summary.confidence)));
    const place = byId("counted");
    place.hidden = summary.is_exact !== false;
    if (!place.hidden) fill(place, summary.counted_from ? ["Totals of the newest tasks only, since ", fullTime(summary.counted_from), "; text and labels are counted no further back."] : ["Totals as of ", fullTime(summary.counted_at), "; response times to 5 %."]);
  }
}
