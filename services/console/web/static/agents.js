// The agents with their limits and how far they are used.
import { api } from "./api.js";
import { h, notice } from "./dom.js";
import { brief, count, meter, seconds } from "./format.js";

function limit(used, cap, unit, label) {
  if (cap === null || cap === undefined) return h("div", { class: "limit" }, h("span", {}, `${brief(used)} ${unit}`), h("small", {}, "no limit"));
  const text = `${brief(used)} of ${brief(cap)} ${unit}`;
  return h("div", { class: "limit" }, h("span", { title: `${count(used)} of ${count(cap)}` }, text), meter(cap ? used / cap : 1, `${label}: ${text}`, { full: used >= cap }));
}

function waiting(state) {
  const parts = [`${count(state.waiting)} waiting`];
  if (state.deferred) parts.push(`${count(state.deferred)} for later`);
  if (state.oldest_waiting_seconds > 1) parts.push(`oldest ${seconds(state.oldest_waiting_seconds)}`);
  return parts.join(" · ");
}

export class Agents {
  #place; #agents = []; #onChange; #onEdit; #mark = "";

  // `onEdit` hears the name of the agent to be edited; without it, editing is on the page of agents.
  constructor(place, onChange, onEdit = (name) => location.assign(`/agents#${name}`)) { this.#place = place; this.#onChange = onChange; this.#onEdit = onEdit; }

  get names() { return this.#agents.map((agent) => agent.name); }

  show(agents) {
    this.#agents = agents;
    // The age of the oldest grows by itself; redrawing for it alone would take buttons from under the pointer.
    const mark = JSON.stringify(agents, (key, value) => (key === "oldest_waiting_seconds" && value !== null ? Math.floor(value / 5) : value));
    if (mark === this.#mark) return;
    this.#mark = mark;
    if (!agents.length) {
      this.#place.replaceChildren(h("p", { class: "empty" }, "No agent yet. Make one with ", h("code", {}, "lockkeeper agents apply agents.yaml"), "."));
      return;
    }
    this.#place.replaceChildren(...agents.map((agent) => this.#row(agent)));
  }

  #row(agent) {
    const { state } = agent;
    const verb = agent.paused ? "resume" : "pause";
    return h("div", { class: "agent" },
      h("div", { class: "who" }, h("b", {}, agent.name), agent.paused && [" ", h("span", { class: "chip tone-cancelled" }, "paused")], h("small", {}, waiting(state))),
      limit(state.running, agent.max_concurrent_tasks, "running", `${agent.name} tasks`),
      limit(state.reserved_tpm + state.used_tpm, agent.max_tpm, "tokens/min", `${agent.name} tokens per minute`),
      h("div", { class: "do" },
        h("button", { type: "button", class: "quiet", onclick: () => this.#onEdit(agent.name), "aria-label": `edit ${agent.name}` }, "Edit"),
        h("button", { type: "button", "data-right": "operate", onclick: (event) => this.#act(event.target, agent.name, verb), "aria-label": `${verb} ${agent.name}` }, verb === "pause" ? "Pause" : "Resume")));
  }

  async #act(button, name, verb) {
    button.disabled = true;
    try {
      await api(`/agents/${encodeURIComponent(name)}/${verb}`, { method: "POST" });
      notice(`${name} is ${verb === "pause" ? "paused: nothing new starts" : "running again"}.`, "good");
    } catch (error) {
      notice(error.message);
    }
    button.disabled = false;
    this.#onChange();
  }
}
