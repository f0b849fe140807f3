// Uploads: each file on its own with its progress, three at a time. What breaks is tried again, with a key by which the
// server knows a file that it has. The files that are dropped together are a batch; how far it is stays in this browser,
// so that the same files, chosen again after a restart, are not sent twice.
import { api } from "./api.js";
import { byId, h } from "./dom.js";
import { meter } from "./format.js";

const AT_ONCE = 3;
const TRIES = 8;
const SHOWN = 200;
const STORE = "lockkeeper-batch";

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
const moment = (attempt) => pause(Math.min(15_000, 500 * 2 ** attempt) * (0.75 + Math.random() / 2));
const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((each) => each.toString(16).padStart(2, "0")).join("");
const keyOf = (file) => `${file.name}/${file.size}/${file.lastModified}`;
const AWAY = new Set([0, 502, 503, 504]);

// The agent that this person chose last.
let choice = null;
export function offerAgents(names) {
  const select = byId("upload-agent");
  if (choice === null) {
    try { choice = localStorage.getItem("lockkeeper-agent") ?? ""; } catch { choice = ""; }
    select.addEventListener("change", () => {
      choice = select.value;
      try { localStorage.setItem("lockkeeper-agent", choice); } catch { /* not kept then */ }
    });
  }
  for (const name of names) if (![...select.options].some((each) => each.value === name)) select.append(h("option", { value: name }, name));
  if (names.includes(choice)) select.value = choice;
}

export class Uploads {
  #waiting = []; #running = 0; #items = []; #onSubmitted; #batch;

  // `batch` is the id of one to go on with; without it the interrupted one is, or a new one begins.
  constructor(onSubmitted, batch = null) {
    this.#onSubmitted = onSubmitted;
    const kept = this.#read();
    this.#batch = batch && batch !== kept?.id ? { id: batch, files: {} } : kept ?? { id: newId(), files: {} };
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

  // How far the batch is that an earlier page left unfinished.
  get interrupted() {
    const states = Object.values(this.#batch.files);
    const done = states.filter(Boolean).length;
    return states.length > done ? { id: this.#batch.id, done, known: states.length } : null;
  }

  forget() {
    this.#batch = { id: newId(), files: {} };
    this.#write();
  }

  #read() {
    try { return JSON.parse(localStorage.getItem(STORE)); } catch { return null; }
  }

  #write() {
    try { localStorage.setItem(STORE, JSON.stringify(this.#batch)); } catch { /* then it cannot be gone on with */ }
  }

  add(files) {
    const isOver = Object.keys(this.#batch.files).length && !this.interrupted && !this.#running && !new URLSearchParams(location.search).has("batch");
    if (isOver) this.forget();
    const agent = byId("upload-agent").value;
    const customer = byId("upload-customer").value.trim() || null;
    for (const file of files) {
      const bar = meter(0, "progress");
      const said = h("span", { class: "said" }, "waits");
      const row = h("li", { "data-state": "waits" }, h("span", { class: "name", title: file.name }, file.name), said, bar);
      const item = { file, agent, customer, row, said, bar, state: "waits" };
      this.#items.push(item);
      if (this.#items.length <= SHOWN) byId("uploads-list").append(row);
      const before = this.#batch.files[keyOf(file)];
      if (before) this.#submitted(item, before, "submitted before");
      else {
        this.#batch.files[keyOf(file)] = null;
        this.#waiting.push(item);
      }
    }
    this.#write();
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
      const task = await this.#enqueued(item, document);
      this.#batch.files[keyOf(item.file)] = task.id;
      this.#submitted(item, task.id, document.reused ? "submitted again" : "submitted");
      this.#onSubmitted();
    } catch (error) {
      this.#set(item, "refused", error.message);
    }
    return undefined;
  }

  #submitted(item, taskId, words) {
    item.said.replaceChildren(h("a", { href: `/tasks/${taskId}` }, words));
    this.#write();
    this.#set(item, "submitted");
  }

  // An answer that is lost does not make a second task: the key is that of the document.
  async #enqueued(item, document) {
    const body = { agent: item.agent, document_id: document.id, labels: { batch: this.#batch.id }, idempotency_key: `upload/${this.#batch.id}/${item.agent}/${document.id}` };
    if (item.customer) body.customer = item.customer;
    for (let attempt = 1; ; attempt++) {
      try {
        return await api("/tasks", { method: "POST", body });
      } catch (error) {
        if (!AWAY.has(error.status) || attempt === TRIES) throw error;
        this.#set(item, "waits", "tries again in a moment");
        await moment(attempt);
      }
    }
  }

  async #stored(item) {
    for (let attempt = 1; ; attempt++) {
      this.#set(item, "uploading", "uploading");
      try {
        const { status, body } = await send(item.file, item.customer, (part) => item.bar.style.setProperty("--part", part));
        if (status === 201 && body.documents?.length) return body.documents[0];
        if (!AWAY.has(status) || attempt === TRIES) {
          this.#set(item, "refused", body.refused?.[0]?.message ?? body.detail ?? `The server answered ${status}.`);
          return null;
        }
      } catch (error) {
        if (attempt === TRIES) throw error;
      }
      this.#set(item, "waits", "tries again in a moment");
      await moment(attempt);
    }
  }

  #set(item, state, words) {
    item.state = item.row.dataset.state = state;
    if (words !== undefined) item.said.textContent = words;
    // A file that is refused will be refused again; it is no part of what is left to do.
    if (state === "refused") { delete this.#batch.files[keyOf(item.file)]; this.#write(); }
    item.bar.hidden = state !== "uploading" && (state !== "waits" || this.#running === 0);
    this.#tell();
  }

  #tell() {
    byId("uploads").hidden = !this.#items.length;
    const of = (state) => this.#items.filter((item) => item.state === state).length;
    const ended = of("submitted") + of("refused");
    const parts = [`${of("submitted")} of ${this.#items.length} submitted`];
    if (of("refused")) parts.push(`${of("refused")} refused`);
    const words = parts.join(", ");
    if (byId("uploads-total").textContent !== words) byId("uploads-total").textContent = words;
    byId("uploads-part").value = this.#items.length ? ended / this.#items.length : 0;
    byId("uploads-batch").href = `/batches/${this.#batch.id}`;
  }

  #clear() {
    const open = (item) => item.state !== "submitted" && item.state !== "refused";
    for (const item of this.#items) if (!open(item)) item.row.remove();
    this.#items = this.#items.filter(open);
    this.#tell();
  }
}
