// Keeps a page fresh: one event stream, and polling every ten seconds that never stops.
//
// A stream can die without a word, so silence counts: the notifier says something every eight seconds, and a
// stream that was silent for twenty is opened anew after the last event that arrived. What changes twice in
// between is sent once, as it is now. The badge tells which of the two feeds the page, and how old its data is.
import { byId } from "./dom.js";

const POLL_SECONDS = 10;
const SILENT_SECONDS = 20;
const STALE_SECONDS = 25;
const HIDDEN_SECONDS = 60;
const SLOTS = 4;

export class Live {
  #query; #poll; #handlers; #source = null; #lastId = null; #heardAt = 0; #polledAt = 0; #notifier = "unknown";
  #failures = 0; #reopening = null; #hiding = null; #release = null; #isStopped = false; #polling = null; #again = false;

  // `handlers` by event name; `poll` reads what the page shows and resolves when it is shown.
  constructor(query, handlers, poll) {
    this.#query = query;
    this.#handlers = handlers;
    this.#poll = poll;
  }

  start() {
    this.refresh();
    this.#open();
    setInterval(() => this.refresh(), POLL_SECONDS * 1000);
    setInterval(() => this.#watch(), 1000);
    document.addEventListener("visibilitychange", () => this.#onVisibility());
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", (event) => event.persisted && this.#reopen(0));
  }

  // Another filter: another stream, and nothing to go on from.
  ask(query) {
    if (query === this.#query) return;
    this.#query = query;
    this.#lastId = null;
    this.refresh();
    this.#reopen(0);
  }

  async refresh() {
    if (this.#polling) { this.#again = true; return; }
    this.#polling = this.#poll();
    try {
      await this.#polling;
      this.#polledAt = Date.now();
    } catch { /* the badge says how old the data is */ }
    this.#polling = null;
    this.#show();
    if (this.#again) { this.#again = false; this.refresh(); }
  }

  get mode() {
    const now = Date.now();
    const hears = this.#source?.readyState === EventSource.OPEN && now - this.#heardAt < SILENT_SECONDS * 1000;
    if (hears && this.#notifier === "live") return "live";
    if (now - this.#polledAt < STALE_SECONDS * 1000 || hears) return "polling";
    return this.#polledAt || this.#heardAt ? "stale" : "starting";
  }

  async #open() {
    if (this.#isStopped || this.#source || !(await this.#takeSlot()) || this.#source) return;
    const parameters = new URLSearchParams(this.#query);
    if (this.#lastId) parameters.set("last_event_id", this.#lastId);
    const source = (this.#source = new EventSource(`/events?${parameters}`));
    this.#heardAt = Date.now();
    source.addEventListener("open", () => { this.#failures = 0; this.#heard(); });
    source.addEventListener("state", (event) => { this.#notifier = JSON.parse(event.data).listener; this.#heard(); });
    source.addEventListener("close", () => this.#reopen(500 + Math.random() * 2500));
    // The browser reconnects by itself, except after an answer that is no stream: then it is over for good.
    source.addEventListener("error", () => {
      this.#show();
      if (source === this.#source && source.readyState === EventSource.CLOSED) this.#reopen(this.#delay());
    });
    for (const [name, handle] of Object.entries(this.#handlers)) {
      source.addEventListener(name, (event) => {
        if (source !== this.#source) return;
        if (event.lastEventId) this.#lastId = event.lastEventId;
        this.#heard();
        handle(JSON.parse(event.data));
      });
    }
  }

  #heard() { this.#heardAt = Date.now(); this.#show(); }

  #delay() { return Math.min(30_000, 1000 * 2 ** this.#failures++) * (0.5 + Math.random()); }

  #close() { this.#source?.close(); this.#source = null; }

  #reopen(milliseconds) {
    this.#close();
    clearTimeout(this.#reopening);
    this.#reopening = setTimeout(() => this.#open(), milliseconds);
    this.#show();
  }

  #watch() {
    if (this.#source && Date.now() - this.#heardAt > SILENT_SECONDS * 1000) { this.refresh(); this.#reopen(this.#delay()); }
    else if (!this.#source && !this.#release && !document.hidden && Math.random() < 0.1) this.#open();
    this.#show();
  }

  // A browser opens six connections to a place, and every stream keeps one. Four tabs may stream; others poll.
  async #takeSlot() {
    if (this.#release || !navigator.locks) return true;
    for (let slot = 0; slot < SLOTS; slot++) {
      const isMine = await new Promise((resolve) => {
        navigator.locks.request(`lockkeeper-stream-${slot}`, { ifAvailable: true }, (lock) => {
          if (!lock) return resolve(false);
          return new Promise((release) => { this.#release = release; resolve(true); });
        });
      });
      if (isMine) return true;
    }
    return false;
  }

  #onVisibility() {
    clearTimeout(this.#hiding);
    if (document.hidden) {
      this.#hiding = setTimeout(() => { this.#close(); this.#release?.(); this.#release = null; }, HIDDEN_SECONDS * 1000);
    } else {
      this.refresh();
      if (!this.#source) this.#reopen(0);
    }
  }

  #show() {
    const badge = byId("freshness");
    if (!badge) return;
    const mode = this.mode;
    const freshest = mode === "live" ? this.#heardAt : Math.max(this.#heardAt, this.#polledAt);
    const age = freshest ? Math.max(0, Math.round((Date.now() - freshest) / 1000)) : null;
    if (badge.dataset.mode !== mode) {
      badge.dataset.mode = mode;
      badge.querySelector(".mode").textContent = { live: "Live", polling: "Polling", stale: "Not reachable", starting: "Connecting" }[mode];
    }
    badge.querySelector(".age").textContent = age === null ? "" : age < 2 ? "now" : `${age} s old`;
  }
}
