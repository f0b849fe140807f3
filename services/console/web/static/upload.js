// Uploads: each file on its own with its progress, three at a time; a broken connection is tried again.
import { api } from "./api.js";
import { byId, h } from "./dom.js";
import { meter } from "./format.js";

const AT_ONCE = 3;
const TRIES = 6;
const SHOWN = 200;

function send(file, customer, onProgress) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    if (customer) form.append("customer", customer);
    form.append("files", file, file.name);
    const request = new XMLHttpRequest();
    request.open("POST", "/api/v1/documents");
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => event.lengthComputable && onProgress(event.loaded / event.total));
    request.addEventListener("load", () => resolve({ status: request.status, body: request.response ?? {} }));
    request.addEventListener("error", () => reject(new Error("The connection broke.")));
    request.send(form);
  });
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class Uploads {
  #waiting = []; #running = 0; #items = []; #onSubmitted;

  constructor(onSubmitted) {
    this.#onSubmitted = onSubmitted;
    const drop = byId("drop");
    const input = byId("upload-files");
    input.addEventListener("change", () => { this.add(input.files); input.value = ""; });
    for (const name of ["dragenter", "dragover"]) {
      document.addEventListener(name, (event) => { if (event.dataTransfer?.types.includes("Files")) { event.preventDefault(); drop.classList.add("over"); } });
    }
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && drop.classList.remove("over"));
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      drop.classList.remove("over");
      this.add(event.dataTransfer.files);
    });
    byId("upload").addEventListener("submit", (event) => event.preventDefault());
    byId("uploads-clear").addEventListener("click", () => this.#clear());
    addEventListener("beforeunload", (event) => { if (this.#running) event.preventDefault(); });
  }

  add(files) {
    const agent = byId("upload-agent").value;
    const customer = byId("upload-customer").value.trim() || null;
    for (const file of files) {
      const bar = meter(0, "progress");
      const said = h("span", { class: "said" }, "waits");
      const row = h("li", { "data-state": "waits" }, h("span", { class: "name", title: file.name }, file.name), said, bar);
      const item = { file, agent, customer, row, said, bar, state: "waits" };
      this.#items.push(item);
      this.#waiting.push(item);
      if (this.#items.length <= SHOWN) byId("uploads-list").append(row);
    }
    this.#go();
  }

  #go() {
    while (this.#running < AT_ONCE && this.#waiting.length) {
      this.#running += 1;
      this.#carry(this.#waiting.shift()).finally(() => { this.#running -= 1; this.#go(); });
    }
    this.#tell();
  }

  async #carry(item) {
    const limit = Number(byId("upload").dataset.maxBytes);
    if (!item.agent) return this.#set(item, "refused", "Choose an agent first.");
    if (item.file.size > limit) return this.#set(item, "refused", `The file is larger than ${Math.round(limit / 2 ** 20)} MB.`);
    try {
      const document = await this.#stored(item);
      if (!document) return undefined;
      this.#set(item, "stored", "stored");
      const body = { agent: item.agent, document_id: document.id };
      const task = await api("/tasks", { method: "POST", body: item.customer ? { ...body, customer: item.customer } : body });
      item.said.replaceChildren(h("a", { href: `/tasks/${task.id}` }, document.reused ? "submitted again" : "submitted"));
      this.#set(item, "submitted");
      this.#onSubmitted();
    } catch (error) {
      this.#set(item, "refused", error.message);
    }
    return undefined;
  }

  async #stored(item) {
    for (let attempt = 1; ; attempt++) {
      this.#set(item, "uploading", "uploading");
      try {
        const { status, body } = await send(item.file, item.customer, (part) => item.bar.style.setProperty("--part", part));
        if (status === 201 && body.documents?.length) return body.documents[0];
        if (status !== 503 || attempt === TRIES) {
          this.#set(item, "refused", body.refused?.[0]?.message ?? body.detail ?? `The server answered ${status}.`);
          return null;
        }
      } catch (error) {
        if (attempt === TRIES) throw error;
      }
      this.#set(item, "waits", "tries again in a moment");
      await pause(Math.min(15_000, 500 * 2 ** attempt) * (0.75 + Math.random() / 2));
    }
  }

  #set(item, state, words) {
    item.state = item.row.dataset.state = state;
    if (words !== undefined) item.said.textContent = words;
    if (state !== "uploading") item.bar.hidden = state !== "waits" || this.#running === 0;
    else item.bar.hidden = false;
    this.#tell();
  }

  #tell() {
    byId("uploads").hidden = !this.#items.length;
    const of = (state) => this.#items.filter((item) => item.state === state).length;
    const parts = [`${of("submitted")} of ${this.#items.length} submitted`];
    if (of("refused")) parts.push(`${of("refused")} refused`);
    byId("uploads-total").textContent = parts.join(", ");
  }

  #clear() {
    const open = (item) => item.state !== "submitted" && item.state !== "refused";
    for (const item of this.#items) if (!open(item)) item.row.remove();
    this.#items = this.#items.filter(open);
    this.#tell();
  }
}
