// The task table: a row per task, changed in place.
import { h } from "./dom.js";
import { brief, confidence, count, meter, money, NONE, seconds, shortInstant } from "./format.js";
import { STATUS, why } from "./words.js";

export const chip = (status) => h("span", { class: `chip tone-${status}` }, STATUS[status] ?? status);

export const shortId = (id) => id.slice(-12);

export function took(task, now = Date.now()) {
  const from = Date.parse(task.created_at);
  const to = task.finished_at ? Date.parse(task.finished_at) : task.started_at ? now : null;
  return to === null ? null : Math.max(0, (to - from) / 1000);
}

export const title = (task) => task.document?.name ?? "Without a document";

const tokens = (task) => {
  const known = [task.input_tokens, task.output_tokens].filter((each) => each !== null);
  if (!known.length) return NONE;
  const exact = `${count(task.input_tokens)} in, ${count(task.output_tokens)} out, ${count(task.cache_read_tokens)} from cache`;
  return h("span", { title: exact }, brief(known.reduce((sum, each) => sum + each, 0)));
};

function progress(task) {
  const { pages_done: done, pages_total: total, step } = task.progress;
  if (task.status !== "processing") return null;
  if (!total) return step ? h("small", {}, step) : null;
  return [meter((done ?? 0) / total, `${done ?? 0} of ${total} pages`), h("small", {}, `page ${done ?? 0} of ${total}${step ? ` · ${step}` : ""}`)];
}

function cells(task, selection) {
  const pages = task.document?.pages ?? task.progress.pages_total;
  const elapsed = took(task);
  return [
    selection && h("td", { class: "pick" }, h("input", { type: "checkbox", checked: selection.has(task.id), "aria-label": `Choose ${title(task)}`, onchange: (event) => selection.toggle(task.id, event.target.checked) })),
    h("td", { class: "doc" }, h("a", { href: `/tasks/${task.id}`, title: title(task) }, title(task)),
      h("small", {}, h("span", { class: "mono" }, shortId(task.id)), task.customer ? ` · ${task.customer}` : "")),
    h("td", { "data-label": "Agent" }, task.agent, task.priority !== 50 && h("small", {}, `priority ${task.priority}`)),
    h("td", { class: "state" }, chip(task.status), progress(task), why(task) && h("small", { class: "why", title: why(task) }, why(task))),
    h("td", { class: "number", "data-label": "Attempt" }, task.attempt ? `${task.attempt} of ${task.max_attempts}` : NONE),
    h("td", { class: "number", "data-label": "Pages" }, count(pages)),
    h("td", { class: "number", "data-label": "Tokens" }, tokens(task)),
    h("td", { class: "number", "data-label": "LLM cost" }, money(task.llm_cost, task.currency)),
    h("td", { class: "number", "data-label": "Compute" }, money(task.compute_cost, task.currency)),
    h("td", { class: "number", "data-label": "Confidence" }, confidence(task.confidence)),
    h("td", { class: "number", "data-label": "Accepted" }, shortInstant(task.created_at)),
    h("td", { class: "number took", "data-label": "Took" }, elapsed === null ? NONE : seconds(elapsed)),
  ].filter(Boolean);
}

export class Rows {
  #body; #shown = new Map(); #order = []; #selection;

  // With a selection (`has`, `toggle`), every row can be chosen.
  constructor(body, selection = null) { this.#body = body; this.#selection = selection; }

  // Draw every row anew the next time.
  forget() { for (const each of this.#shown.values()) each.mark = null; }

  // Shows exactly these tasks in this order; rows that look the same are left alone.
  show(tasks, { isFirst }) {
    const wanted = new Set(tasks.map((task) => task.id));
    for (const [id, { row }] of this.#shown) if (!wanted.has(id)) { row.remove(); this.#shown.delete(id); }
    for (const task of tasks) this.#draw(task, isFirst);
    const order = tasks.map((task) => task.id);
    if (order.join() !== this.#order.join()) {
      let next = this.#body.firstChild;
      for (const id of order) {
        const { row } = this.#shown.get(id);
        if (row === next) next = next.nextSibling;
        else this.#body.insertBefore(row, next);
      }
      this.#order = order;
    }
  }

  tick() {
    for (const { row, task } of this.#shown.values()) {
      if (task.started_at && !task.finished_at) row.querySelector(".took").textContent = seconds(took(task));
    }
  }

  #draw(task, isFirst) {
    const mark = JSON.stringify(task);
    const known = this.#shown.get(task.id);
    if (known?.mark === mark) return;
    const row = known?.row ?? h("tr", { class: isFirst ? "" : "fresh" });
    if (known && row.contains(document.activeElement)) {
      // Keep the keyboard where it is.
      const focused = document.activeElement.tagName;
      row.replaceChildren(...cells(task, this.#selection));
      row.querySelector(focused === "INPUT" ? "input" : "a")?.focus();
    } else row.replaceChildren(...cells(task, this.#selection));
    this.#shown.set(task.id, { row, mark, task });
  }
}
