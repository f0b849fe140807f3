// Acts on many tasks: first a dry run that says how many the action fits, then the action, then the way back if there is one.
import { api } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { count } from "./format.js";

const WORDS = {
  retry: ["Retry", "Failed and cancelled tasks are tried again as new tasks; waiting ones start now."],
  cancel: ["Cancel", "Tasks that have not ended are cancelled, and so are their runs."],
  reprioritise: ["Set priority", "Tasks that have not ended get this priority; 100 goes first."],
  reprocess: ["Reprocess", "Ended tasks are done anew as new tasks."],
};

export class Selection {
  #ids = new Set(); #onChange;

  constructor(onChange) { this.#onChange = onChange; }

  get size() { return this.#ids.size; }
  get ids() { return [...this.#ids]; }
  has(id) { return this.#ids.has(id); }
  toggle(id, isChosen) { isChosen ? this.#ids.add(id) : this.#ids.delete(id); this.#onChange(); }
  replace(ids) { this.#ids = new Set(ids); this.#onChange(); }
}

export class Bulk {
  #table; #selection; #agents = [];

  constructor(table, selection) {
    this.#table = table;
    this.#selection = selection;
    byId("bulk").addEventListener("click", (event) => { const { action } = event.target.dataset; if (action) this.#ask(action); });
    byId("pick-all").addEventListener("change", (event) => { selection.replace(event.target.checked ? table().shown.map((task) => task.id) : []); table().redraw(); });
    this.show();
  }

  set agents(names) { this.#agents = names; }

  show() {
    const { size } = this.#selection;
    byId("bulk-what").textContent = size ? `${count(size)} chosen` : "All that fit the filters";
    byId("pick-all").checked = size > 0 && this.#table()?.shown.every((task) => this.#selection.has(task.id));
  }

  #filter() {
    if (this.#selection.size) return { id: this.#selection.ids };
    const filter = {};
    for (const [name, value] of this.#table().filters.query) filter[name] = value;
    // Tasks that come in while the dialog is open are not meant.
    filter.to ??= new Date(Date.now() + 1000).toISOString();
    return filter;
  }

  async #ask(action) {
    const [verb, words] = WORDS[action];
    const dialog = byId("confirm");
    const filter = this.#filter();
    const body = { action, filter };
    const before = this.#selection.ids.map((id) => this.#table().tasks.get(id)).filter(Boolean);
    const says = h("p", { role: "status" }, "Counting…");
    const go = h("button", { type: "button", class: action === "cancel" ? "danger" : "primary", disabled: true }, verb);
    const tell = async () => {
      go.disabled = true;
      try {
        const { matched } = await api("/tasks/bulk", { method: "POST", body: { ...body, dry_run: true } });
        says.textContent = matched ? `${count(matched)} task${matched === 1 ? "" : "s"} would change. The state of any other forbids it.` : "No task would change: the state of each forbids it.";
        go.disabled = !matched;
      } catch (error) { says.textContent = error.message; }
    };
    const extra = [];
    if (action === "reprioritise") {
      body.priority = 75;
      extra.push(h("label", {}, "Priority ", h("input", { type: "number", min: 0, max: 100, value: 75, onchange: (event) => { body.priority = Math.max(0, Math.min(100, Number(event.target.value))); } })));
    }
    if (action === "reprocess") {
      extra.push(h("label", {}, "Agent ", h("select", { onchange: (event) => { if (event.target.value) body.agent = event.target.value; else delete body.agent; tell(); } }, h("option", { value: "" }, "the same"), ...this.#agents.map((name) => h("option", { value: name }, name)))));
    }
    go.addEventListener("click", async () => {
      go.disabled = true;
      says.textContent = "Working…";
      try {
        const { changed } = await api("/tasks/bulk", { method: "POST", body });
        dialog.close();
        this.#done(action, changed, before);
      } catch (error) { says.textContent = error.message; go.disabled = false; }
    });
    fill(dialog, h("h2", { id: "confirm-title" }, this.#selection.size ? `${verb}: ${count(this.#selection.size)} chosen` : `${verb}: all that fit the filters`), h("p", {}, words), ...extra, says,
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Leave it"), go));
    dialog.showModal();
    await tell();
  }

  #done(action, changed, before) {
    const said = { retry: "tried again", cancel: "cancelled", reprioritise: "given another priority", reprocess: "being done anew" }[action];
    const place = byId("notice");
    place.dataset.kind = "good";
    place.hidden = false;
    const undo = this.#undo(action, before);
    place.replaceChildren(`${count(changed)} task${changed === 1 ? "" : "s"} ${said}. `, undo ? h("button", { type: "button", class: "quiet", onclick: (event) => this.#run(event.target, undo) }, undo.words) : "");
    this.#selection.replace([]);
    this.#table().redraw();
    this.#table().refresh();
  }

  // A priority goes back to what it was; a cancelled task cannot come back, but its work can, as a new task.
  #undo(action, before) {
    if (!before.length) return null;
    if (action === "cancel") return { words: "Undo: enqueue them again", calls: [{ action: "retry", filter: { id: before.filter((task) => !task.finished_at).map((task) => task.id) } }] };
    if (action !== "reprioritise") return null;
    const byPriority = Map.groupBy ? Map.groupBy(before, (task) => task.priority) : new Map([[before[0].priority, before]]);
    return { words: "Undo", calls: [...byPriority].map(([priority, tasks]) => ({ action: "reprioritise", priority, filter: { id: tasks.map((task) => task.id) } })) };
  }

  async #run(button, { calls }) {
    button.disabled = true;
    try {
      for (const body of calls) await api("/tasks/bulk", { method: "POST", body });
      byId("notice").replaceChildren("It was undone.");
    } catch (error) { byId("notice").replaceChildren(error.message); }
    this.#table().refresh();
  }
}
