// The agents: their limits edited live, with what an edit will do said before it is saved, and who changed what and why.
import { Agents } from "./agents.js";
import { api } from "./api.js";
import { byId, fill, h, notice } from "./dom.js";
import { count, fullTime } from "./format.js";
import { Live } from "./live.js";
import { effects } from "./effects.js";
import { allowed } from "./rights.js";
import { plain } from "./words.js";

const GROUPS = [
  ["Limits", [["max_concurrent_tasks", "Tasks at once", "empty: no limit"], ["max_tpm", "Tokens per minute", "empty: no limit"], ["max_attempts", "Attempts per task"], ["lease_seconds", "Lease, seconds"], ["max_run_seconds", "Longest run, seconds"]]],
  ["Budget", [["daily_budget", "US dollars a day", "empty: no budget"], ["monthly_budget", "US dollars a month", "empty: no budget"], ["expected_cost", "Expected cost of a task"]]],
  ["Order and packing", [["backfill", "Smaller tasks may overtake"], ["backfill_limit", "Most that may overtake one"], ["fair_share", "Customers take turns"], ["tasks_per_run", "Attempts in one run"]]],
  ["Estimates", [["learn_estimates", "Learn from what was measured"], ["expected_seconds", "Expected seconds"], ["default_tokens", "Tokens of a task"], ["tokens_per_page", "Tokens per page"]]],
  ["Circuit", [["circuit_failures", "Failures in a row that stop it", "empty: never"], ["circuit_seconds", "Seconds until one is tried"]]],
];
const NULLABLE = new Set(["max_concurrent_tasks", "max_tpm", "daily_budget", "monthly_budget", "circuit_failures"]);
const MONEY = new Set(["daily_budget", "monthly_budget", "expected_cost"]);

let all = [];
let edited = null;

const list = new Agents(byId("agents"), () => live.refresh(), (name) => { location.hash = name; });

function given(form) {
  const settings = {};
  for (const [, fields] of GROUPS) {
    for (const [name] of fields) {
      const input = form.elements[name];
      if (!input) continue;
      if (input.type === "checkbox") settings[name] = input.checked;
      else if (input.value.trim() === "") { if (NULLABLE.has(name)) settings[name] = null; }
      else settings[name] = MONEY.has(name) ? input.value.trim() : Number(input.value);
    }
  }
  return settings;
}

const same = (one, two) => one === two || (one !== null && two !== null && one !== "" && Number(one) === Number(two) && typeof one !== "boolean");
const changed = (form) => Object.fromEntries(Object.entries(given(form)).filter(([name, value]) => !same(value, edited[name] ?? null)));

function preview() {
  const form = byId("settings");
  const change = changed(form);
  const names = Object.keys(change);
  form.querySelector("[type=submit]").disabled = !names.length || !allowed("administer");
  fill(byId("effect"), names.length ? h("ul", {}, ...effects(edited, change).map((words) => h("li", {}, words))) : "Nothing is changed yet. What a change will do is said here before it is saved.");
}

function field(agent, [name, words, hint]) {
  if (!(name in agent)) return null;
  const value = agent[name];
  if (typeof value === "boolean") return h("label", { class: "check" }, h("input", { type: "checkbox", name, checked: value, onchange: preview }), words);
  return h("label", {}, words, h("input", { name, type: "number", min: 0, step: MONEY.has(name) ? "any" : 1, value: value ?? "", placeholder: hint ?? "", oninput: preview }));
}

async function save(event) {
  event.preventDefault();
  const form = byId("settings");
  const why = form.elements.note.value.trim();
  try {
    edited = await api(`/agents/${encodeURIComponent(edited.name)}`, { method: "PUT", body: { ...changed(form), version: edited.version, ...(why ? { note: why } : {}) } });
    notice(`${edited.name} is changed; dispatchers heard of it at once.`, "good");
    edit(edited);
    live.refresh();
  } catch (error) {
    notice(error.status === 409 ? `Somebody else changed ${edited.name} meanwhile. ${error.message}` : error.message);
  }
}

async function history(name) {
  const { entries } = await api(`/audit?${new URLSearchParams({ target: `agent/${name}`, limit: 50 })}`);
  const words = (each) => Object.entries(each.after ?? {}).map(([setting, value]) => (each.before ? `${plain(setting)}: ${JSON.stringify(each.before[setting] ?? null)} → ${JSON.stringify(value)}` : `${plain(setting)}: ${JSON.stringify(value)}`)).join(", ");
  fill(byId("changes"), ...(entries.length ? entries.map((each) => h("li", {}, h("span", {}, plain(each.action), ` – ${words(each)}`), each.note && h("small", {}, `“${each.note}”`), h("small", {}, fullTime(each.at), ` · ${each.actor}`))) : [h("li", {}, "Not changed here yet.")]));
}

function edit(agent) {
  edited = agent;
  byId("editor").hidden = false;
  byId("editor-title").replaceChildren(agent.name, " ", h("small", {}, `version ${count(agent.version)}, by ${agent.updated_by}`));
  const form = byId("settings");
  form.replaceChildren(
    ...GROUPS.map(([title, fields]) => [title, fields.map((each) => field(agent, each)).filter(Boolean)]).filter(([, fields]) => fields.length)
      .map(([title, fields]) => h("fieldset", { class: "settings-group", disabled: !allowed("administer") }, h("legend", {}, title), ...fields)),
    h("fieldset", { class: "settings-group", disabled: !allowed("administer") }, h("legend", {}, "Why"), h("label", { class: "wide" }, "Stands in the audit", h("input", { name: "note", maxlength: 500, placeholder: "the reason, for whoever reads this later" }))),
    h("div", { id: "effect", class: "effect", role: "status" }),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => edit(all.find((each) => each.name === edited.name) ?? edited) }, "As it was"), h("button", { type: "submit", class: "primary" }, "Save")));
  preview();
  history(agent.name).catch((error) => notice(error.message));
}

function choose() {
  const agent = all.find((each) => each.name === decodeURIComponent(location.hash.slice(1)));
  if (agent && agent.name !== edited?.name) { edit(agent); byId("editor").scrollIntoView({ block: "start" }); }
}

async function poll() {
  const { agents } = await api("/agents");
  all = agents;
  list.show(agents);
  if (edited) { edited = { ...edited, state: agents.find((each) => each.name === edited.name)?.state ?? edited.state }; preview(); }
  choose();
}

byId("settings").addEventListener("submit", save);
addEventListener("hashchange", choose);
// The stream of no task: only the use of limits is looked at here.
const live = new Live("agent=-", { agents: () => live.refresh(), snapshot: () => {}, summary: () => {} }, poll);
live.start();
