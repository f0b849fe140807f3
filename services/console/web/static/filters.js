// The filters of a page, kept in its address, so that a link shows the same.
import { byId, h } from "./dom.js";

const HOUR = 3_600_000;
// Ranges begin at whole minutes, hours or days (UTC): pages opened together ask for the same and share the answer,
// and the totals of whole days are at hand.
const RANGES = { "1h": [HOUR, 60_000], "24h": [24 * HOUR, HOUR], "7d": [168 * HOUR, 24 * HOUR], "30d": [720 * HOUR, 24 * HOUR], all: null, custom: null };
const FALLBACK_RANGE = "7d";
const NAMES = ["status", "agent", "customer", "label", "text"];

export class Filters {
  #form; #onChange; #fixed;

  // `fixed` filters belong to the page and stand in no address.
  constructor(form, onChange, fixed = {}) {
    this.#form = form;
    this.#onChange = onChange;
    this.#fixed = fixed;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", (event) => { event.preventDefault(); this.set({ ...Object.fromEntries(NAMES.map((name) => [name, null])), range: null, from: null, to: null }); });
    for (const name of ["agent", "range"]) form.elements[name]?.addEventListener("change", (event) => this.set({ [name]: event.target.value }));
    for (const name of ["from", "to"]) form.elements[name]?.addEventListener("change", (event) => this.set({ [name]: event.target.value ? new Date(event.target.value).toISOString() : null }));
    let typing = null;
    for (const name of ["text", "customer", "label"]) {
      form.elements[name]?.addEventListener("input", (event) => { clearTimeout(typing); typing = setTimeout(() => this.set({ [name]: event.target.value.trim() }), 300); });
    }
    addEventListener("popstate", () => { this.show(); this.#onChange(); });
    this.show();
  }

  get values() {
    const given = new URLSearchParams(location.search);
    const range = given.get("range");
    return { ...Object.fromEntries(NAMES.map((name) => [name, given.get(name)])), from: given.get("from"), to: given.get("to"), range: range in RANGES ? range : this.#fallback, ...this.#fixed };
  }

  get #fallback() { return this.#fixed.label ? "all" : FALLBACK_RANGE; }

  get isNarrow() { const { status, agent, customer, label, text } = this.values; return Boolean(status || agent || customer || text || (label && !this.#fixed.label)); }

  // The same as the API takes it.
  get query() {
    const { range, from, to, ...named } = this.values;
    const asked = new URLSearchParams(Object.entries(named).filter(([, value]) => value));
    if (RANGES[range]) {
      const [length, step] = RANGES[range];
      asked.set("from", new Date(Math.floor((Date.now() - length) / step) * step).toISOString());
    } else if (range === "custom") {
      if (from) asked.set("from", from);
      if (to) asked.set("to", to);
    }
    return asked;
  }

  set(changes) {
    const given = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) value && !(name === "range" && value === this.#fallback) ? given.set(name, value) : given.delete(name);
    if (given.get("range") !== "custom") { given.delete("from"); given.delete("to"); }
    history.replaceState(null, "", `${location.pathname}${given.size ? `?${given}` : ""}`);
    this.show();
    this.#onChange();
  }

  offer(names) {
    const select = this.#form.elements.agent;
    const { agent } = this.values;
    for (const name of agent ? [...names, agent] : names) if (![...select.options].some((each) => each.value === name)) select.append(h("option", { value: name }, name));
    select.value = agent ?? "";
  }

  show() {
    const values = this.values;
    for (const name of ["agent", "range", "text", "customer", "label"]) {
      const input = this.#form.elements[name];
      if (input && document.activeElement !== input) input.value = values[name] ?? "";
    }
    for (const name of ["from", "to"]) {
      const input = this.#form.elements[name];
      if (!input) continue;
      input.closest("label").hidden = values.range !== "custom";
      const at = values[name] ? new Date(values[name]) : null;
      input.value = at ? new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : "";
    }
    byId("filters-reset").hidden = !(this.isNarrow || new URLSearchParams(location.search).has("range"));
  }
}
