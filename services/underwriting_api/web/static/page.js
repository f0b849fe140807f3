// What the pages share: elements without markup in strings, calls that explain their failures, and words.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name === "href" || name === "id" || name === "datetime" || /^(aria|data)-/.test(name)) made.setAttribute(name, value);
    else if (name === "colSpan") made.colSpan = value;
    else made[name] = value;
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) made.append(child);
  }
  return made;
}

export class CallError extends Error {
  constructor(problem, status) {
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;
    this.reason = problem.reason || "";
  }
}

export async function call(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(`/api/v1/underwriting/${path}`, options);
  } catch {
    throw new CallError({ detail: "The server cannot be reached; the page tries again by itself." }, 0);
  }
  const text = await answer.text();
  let content = {};
  try { content = JSON.parse(text); } catch { /* a proxy's page */ }
  if (!answer.ok) throw new CallError(content, answer.status);
  return content;
}

const KINDS = {
  waiting_for_person: "warn", working: "work", starting: "work", retrying_activity: "bad", database_fault: "bad",
  failed_tool: "bad", waiting_for_temporal: "bad", cancelling: "warn", completed: "good", failed: "bad",
  cancelled: "", expired: "warn", approve: "good", deny: "bad", refer: "warn", approved: "good", denied: "bad",
  accepted: "good", refused: "bad", received: "warn", succeeded: "good", reused: "good", running: "work", lost: "bad",
};

export function badge(word, text = words(word)) {
  return element("span", { class: `badge ${KINDS[word] || ""}` }, text);
}

export function words(value) {
  return String(value ?? "").replaceAll("_", " ");
}

export function money(amount, currency = "USD") {
  return amount === null || amount === undefined ? "–" : new Intl.NumberFormat("en", {
    style: "currency", currency, maximumFractionDigits: Number(amount) < 1 ? 6 : 2,
  }).format(Number(amount));
}

export function instant(text) {
  if (!text) return "–";
  return element("time", { datetime: text, title: text }, new Date(text).toLocaleString());
}

export function since(text) {
  const seconds = Math.max(0, (Date.now() - new Date(text)) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function table(heads, rows) {
  return element("table", {},
    element("thead", {}, element("tr", {}, heads.map((head) => element("th", {}, head)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell) => element("td", {}, cell ?? "–"))))));
}

// What to say when Temporal is away: runs wait then, and nothing is lost.
export async function absence() {
  const temporal = await call("temporal");
  if (temporal.available) return null;
  const parts = temporal.advice.split("`").map((text, at) => (at % 2 ? element("code", {}, text) : text));
  return element("p", { class: "notice warn", id: "temporal" }, parts);
}

// Calls `refresh` now and every few seconds while the page is looked at, one call at a time; shows the notes it returns.
export function keepFresh(refresh, seconds = 2) {
  const state = document.getElementById("connection");
  const notice = document.getElementById("notice");
  let timer;
  async function round() {
    clearTimeout(timer);
    try {
      const notes = await refresh();
      state.textContent = "up to date";
      notice.replaceChildren(...[notes].flat().filter(Boolean));
    } catch (error) {
      state.textContent = "not up to date";
      notice.replaceChildren(element("p", { class: "notice bad" }, error.message));
    }
    timer = setTimeout(round, (document.hidden ? 15 : seconds) * 1000);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });
  round();
  return round;
}
