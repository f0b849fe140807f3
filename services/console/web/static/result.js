// The extracted fields with their confidence, quotes and pages; tables and text below; the raw JSON for the rest.
import { h } from "./dom.js";
import { confidence, count } from "./format.js";
import { plain } from "./words.js";

function words(value) {
  if (value === null || value === undefined || value === "") return "not found";
  if (typeof value !== "object") return String(value);
  const { label, name, role, date, value: amount, currency, ...rest } = value;
  const main = name ?? date ?? (amount !== undefined && amount !== null ? [amount, currency].filter(Boolean).join(" ") : null);
  const side = [label, role].filter(Boolean).join(", ");
  if (main === null) return JSON.stringify(value);
  const more = Object.keys(rest).length ? ` ${JSON.stringify(rest)}` : "";
  return h("span", {}, main, side || more ? h("span", { class: "parts" }, side ? ` – ${side}` : "", more) : "");
}

let onPlace = null;

// What stands on a known page can be shown there.
function shown(one) {
  const main = words(one.value);
  if (!onPlace || !one.page) return h("span", { class: "what" }, main);
  return h("span", { class: "what" }, h("button", { type: "button", class: "place", title: `show it on page ${one.page}`, onclick: () => onPlace(one.page, one.evidence ?? "") }, main));
}

function value(one) {
  const isJudged = one !== null && typeof one === "object" && "value" in one && "confidence" in one;
  if (!isJudged) return h("div", { class: "value" }, h("span", { class: "what" }, words(one)));
  const quote = one.evidence ? `“${one.evidence}”` : "";
  return h("div", { class: "value" }, shown(one), confidence(one.confidence),
    (quote || one.page) && h("span", { class: "quote" }, quote, one.page ? ` page ${one.page}` : ""));
}

function field([name, content]) {
  const values = Array.isArray(content) ? content : content === null || content === undefined ? [] : [content];
  const label = plain(name);
  return h("div", { class: "field" }, h("div", { class: "label" }, label[0].toUpperCase() + label.slice(1)),
    h("div", {}, ...(values.length ? values.map(value) : [h("span", { class: "pending" }, "not found in the document")])));
}

// The store sorts names; people expect what a document is before what stands in it.
const FIRST = ["document_type", "summary", "parties", "dates", "amounts", "totals"];
const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
const inOrder = (fields) => Object.entries(fields).sort(([one], [two]) => rank(one) - rank(two) || one.localeCompare(two));

function table(one) {
  const line = (cells, tag) => h("tr", {}, ...cells.map((cell) => h(tag, {}, cell)));
  return h("div", { class: "table-frame" }, h("table", { class: "plain" }, one.columns ? h("thead", {}, line(one.columns, "th")) : null, h("tbody", {}, ...one.rows.slice(0, 200).map((row) => line(row, "td")))));
}

// `onShow(page, words)` shows the place of a field.
export function result(task, onShow = null) {
  onPlace = task.document ? onShow : null;
  if (task.result === null) {
    const said = { completed: "It completed without a result.", failed: "It failed, so there is no result.", cancelled: "It was cancelled, so there is no result." };
    return h("p", { class: "empty" }, said[task.status] ?? "The result appears here when the task completes.");
  }
  const { fields, tables, text, ...rest } = task.result;
  const damage = rest.document?.damage ?? [];
  return h("div", {},
    damage.length ? h("div", { class: "trouble waits" }, h("b", {}, "Read with damage"), ...damage.map((each) => h("p", {}, each))) : null,
    fields ? h("div", { class: "fields-list" }, ...inOrder(fields).map(field)) : null,
    tables?.length ? h("details", { class: "block" }, h("summary", {}, `Tables (${count(tables.length)})`), ...tables.map(table)) : null,
    text ? h("details", { class: "block" }, h("summary", {}, "Text"), h("pre", {}, text)) : null,
    h("details", { class: "block" }, h("summary", {}, "All of it as JSON"), h("pre", {}, JSON.stringify(task.result, null, 2))));
}
