// The charts: drawn by the server from its totals, put in place as they come.
export class Charts {
  #place; #filters; #asking = null; #shown = "";

  constructor(place, filters) { this.#place = place; this.#filters = filters; }

  async refresh() {
    const filters = this.#filters();
    const { range } = filters.values;
    const asked = new URLSearchParams([...filters.query].filter(([name]) => ["status", "agent", "customer"].includes(name)));
    asked.set("range", range);
    asked.set("zone", Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC");
    this.#asking?.abort();
    const { signal } = (this.#asking = new AbortController());
    try {
      const answer = await fetch(`/charts?${asked}`, { signal });
      if (!answer.ok) return;
      const text = await answer.text();
      if (text === this.#shown) return;
      this.#shown = text;
      // Made by our own server from numbers and escaped names; nothing in it is a script.
      this.#place.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
    } catch { /* the next poll asks again */ }
  }
}
