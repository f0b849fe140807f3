// What was spent: by agent, customer, status, day or task; the bill on a click; the same as CSV.
import "./rights.js";
import { api } from "./api.js";
import { bill } from "./bill.js";
import { byId, h, notice } from "./dom.js";
import { Filters } from "./filters.js";
import { brief, count, money, NONE } from "./format.js";
import { shortId } from "./rows.js";

const COLUMNS = [["tasks", "Tasks", count], ["attempts", "Attempts", count], ["pages", "Pages", count], ["input_tokens", "Tokens in", brief], ["output_tokens", "Tokens out", brief], ["llm_cost", "LLM cost", null], ["compute_cost", "Compute", null], ["total_cost", "Together", null], ["retry_cost", "Of it retries", null], ["superseded_cost", "Of it superseded", null], ["cost_per_page", "Per page", null], ["pending_tasks", "Pending", count]];
const SUMMED = ["tasks", "attempts", "pages", "input_tokens", "output_tokens", "llm_cost", "compute_cost", "total_cost", "retry_cost", "superseded_cost", "pending_tasks"];
const PLAIN = new Set(["day", "month", "model", "outcome"]);
const group = byId("filters").elements.group;
let asked = 0;

function key(row) {
  if (group.value === "task") return h("a", { href: `/tasks/${row.key}`, class: "mono" }, shortId(row.key));
  if (row.key === null || PLAIN.has(group.value)) return row.key ?? "none";
  return h("a", { href: `/tasks?${new URLSearchParams({ [group.value]: row.key })}` }, row.key);
}

// An amount leads to the lines of the ledger that make it up.
const FIGURES = new Set(["total_cost", "llm_cost", "compute_cost", "retry_cost", "superseded_cost"]);
function cell(row, [name, words, form]) {
  const shown = form ? form(row[name]) : money(row[name], row.currency);
  const isFigure = row.why && FIGURES.has(name) && /\d$/.test(row[name] ?? "");
  return h("td", { class: "number", "data-label": words }, isFigure ? h("a", { href: `${row.why}&figure=${name}`, title: "the lines behind it" }, shown) : shown);
}

function foot(rows, columns) {
  const known = rows.filter((row) => row.currency === rows[0].currency);
  const sum = Object.fromEntries(SUMMED.map((name) => [name, known.reduce((total, row) => total + (Number(row[name]) || 0), 0)]));
  const line = columns.map(([name, words, form]) => h("td", { class: "number", "data-label": words }, !SUMMED.includes(name) ? NONE : form ? form(sum[name]) : money(String(sum[name]), rows[0].currency)));
  return h("tr", {}, h("th", { scope: "row" }, "All"), ...line);
}

async function load() {
  const mine = ++asked;
  const query = filters.query;
  query.set("group_by", group.value);
  query.set("tz", Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC");
  byId("csv").href = `/api/v1/costs?${query}&format=csv`;
  byId("costs-rows").setAttribute("aria-busy", "true");
  try {
    const { costs } = await api(`/costs?${query}`);
    if (mine !== asked) return;
    // Models and outcomes are groups of lines: they have no pages and no medians.
    const columns = COLUMNS.filter(([name]) => !costs.length || name in costs[0]);
    byId("costs-head").replaceChildren(h("tr", {}, h("th", { scope: "col" }, group.selectedOptions[0].textContent), ...columns.map(([, words]) => h("th", { scope: "col", class: "number" }, words))));
    byId("costs-rows").replaceChildren(...costs.map((row) => h("tr", {}, h("th", { scope: "row" }, key(row)), ...columns.map((column) => cell(row, column)))));
    byId("costs-foot").replaceChildren(...(costs.length > 1 && group.value !== "task" ? [foot(costs, columns)] : []));
    byId("costs-empty").hidden = costs.length > 0;
  } catch (error) { if (mine === asked) notice(error.message); }
  byId("costs-rows").removeAttribute("aria-busy");
}

group.value = new URLSearchParams(location.search).get("group") ?? "agent";
if (group.selectedIndex < 0) group.value = "agent";
const filters = new Filters(byId("filters"), load);
group.addEventListener("change", () => filters.set({ group: group.value === "agent" ? null : group.value }));
bill(byId("bill"), load);
api("/agents").then(({ agents }) => filters.offer(agents.map((agent) => agent.name)), () => {});
load();
