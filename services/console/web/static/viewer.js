// A document page by page beside what was read from it; a field shows its place.
import { api } from "./api.js";
import { byId, h } from "./dom.js";

export class Viewer {
  #id = null; #page = 1; #pages = 1; #asked = 0;

  constructor() {
    byId("page-back").addEventListener("click", () => this.show(this.#page - 1));
    byId("page-on").addEventListener("click", () => this.show(this.#page + 1));
  }

  open(document) {
    if (!document || document.id === this.#id) return;
    this.#id = document.id;
    this.#pages = document.pages ?? 1;
    byId("viewer").hidden = false;
    this.show(1);
  }

  // A page, with these words marked on it.
  async show(page, text = "") {
    if (!this.#id || page < 1 || page > this.#pages) return;
    const mine = ++this.#asked;
    this.#page = page;
    this.#tell();
    const says = byId("page-says");
    try {
      const view = await api(`/documents/${this.#id}/pages/${page}?${new URLSearchParams(text ? { text: text.slice(0, 2000) } : {})}`);
      if (mine !== this.#asked) return;
      this.#pages = view.pages;
      const image = byId("page-image");
      image.width = view.width;
      image.height = view.height;
      image.src = view.image;
      image.alt = `Page ${page} of the document`;
      image.hidden = false;
      byId("page").dataset.known = "";
      byId("page-marks").replaceChildren(...view.marks.map(([left, top, width, height]) => h("div", { class: "mark", vars: { "--left": left, "--top": top, "--width": width, "--height": height } })));
      says.hidden = !text || view.marks.length > 0;
      says.textContent = "These words are on this page, but their exact place is not known: it was read by recognition.";
      if (text) (byId("page-marks").firstChild ?? byId("viewer")).scrollIntoView({ block: "nearest", behavior: "smooth" });
      this.#tell();
    } catch (error) {
      if (mine !== this.#asked) return;
      says.hidden = false;
      says.textContent = error.message;
    }
  }

  #tell() {
    byId("page-which").textContent = `${this.#page} of ${this.#pages}`;
    byId("page-back").disabled = this.#page <= 1;
    byId("page-on").disabled = this.#page >= this.#pages;
  }
}
