// What operators did, newest first.
import { api } from "./api.js";
import { byId, h, notice } from "./dom.js";
import { fullTime } from "./format.js";
import { plain } from "./words.js";

const form = byId("filters");
let cursor = null;
let asked = 0;

const target = (name) => (name.startsWith("task/") ? h("a", { href: `/tasks/${name.slice(5)}`, class: "mono" }, name.slice(-12)) : name.startsWith("agent/") ? h("a", { href: `/agents#${name.slice(6)}` }, name.slice(6)) : name);

const cell = (label, ...shown) => h("td", { "data-label": label }, ...shown);

function shown(name, value) {
  if (name.endsWith("_at") && typeof value === "string") return fullTime(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function pairs(value) {
  if (value === null) return "–";
  return h("dl", { class: "pairs small" }, ...Object.entries(value).flatMap(([name, each]) => [h("dt", {}, plain(name)), h("dd", {}, shown(name, each))]));
}

async function load(isMore) {
  const mine = ++asked;
  const given = new URLSearchParams(location.search);
  form.elements.target.value ||= given.get("target") ?? "";
  const query = new URLSearchParams({ limit: 50 });
  if (form.elements.target.value.trim()) query.set("target", form.elements.target.value.trim());
  if (isMore && cursor) query.set("cursor", cursor);
  try {
    const page = await api(`/audit?${query}`);
    if (mine !== asked) return;
    cursor = page.next_cursor;
    const rows = page.entries.map((each) => h("tr", {}, cell("When", fullTime(each.at)), cell("Who", each.actor), cell("Did", plain(each.action), each.note && h("small", {}, ` ${each.note}`)), cell("To", target(each.target)), cell("Before", pairs(each.before)), cell("After", pairs(each.after))));
    isMore ? byId("audit-rows").append(...rows) : byId("audit-rows").replaceChildren(...rows);
    byId("audit-empty").hidden = byId("audit-rows").childElementCount > 0;
    byId("older").hidden = cursor === null;
    notice(null);
  } catch (error) { notice(error.message); }
}

let typing = null;
form.addEventListener("submit", (event) => event.preventDefault());
form.elements.target.addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const value = event.target.value.trim();
    history.replaceState(null, "", value ? `?${new URLSearchParams({ target: value })}` : location.pathname);
    load(false);
  }, 300);
});
byId("older").addEventListener("click", () => load(true));
load(false);
