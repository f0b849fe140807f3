// Values for people: money, tokens, times in the reader's zone with UTC on hover.
import { h } from "./dom.js";

export const NONE = "–";
const locale = undefined;
const whole = new Intl.NumberFormat(locale);
const compact = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
const dayAndTime = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });
const shortTime = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit" });
const shortDay = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));
export const brief = (value) => (value === null || value === undefined ? NONE : value < 10_000 ? whole.format(value) : compact.format(value));

const UNKNOWN = { pending: "Not known yet", unknown: "It will not become known", unpriced: "The usage is known, its price is not" };

// Amounts are decimal strings; what is not known yet is a word, and never shown as nothing.
export function money(value, currency = "USD") {
  if (value === null || value === undefined) return NONE;
  if (!/\d$/.test(value)) return h("span", { class: "pending", title: UNKNOWN[value] }, value);
  const amount = Number(value);
  const digits = amount === 0 || amount >= 1 ? 2 : amount >= 0.01 ? 4 : 6;
  const shown = new Intl.NumberFormat(locale, { style: "currency", currency, minimumFractionDigits: 2, maximumFractionDigits: digits }).format(amount);
  return h("span", { title: `${value} ${currency}` }, shown);
}

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  const total = Math.round(value);
  if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60} s`;
  if (total < 86_400) return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
  return `${Math.floor(total / 86_400)} d ${Math.floor((total % 86_400) / 3600)} h`;
}

export const utc = (instant) => `${new Date(instant).toISOString().replace("T", " ").slice(0, 19)} UTC`;
export const fullTime = (instant) => (instant ? h("time", { datetime: instant, title: utc(instant) }, dayAndTime.format(new Date(instant))) : NONE);

export function shortInstant(instant) {
  if (!instant) return NONE;
  const at = new Date(instant);
  const isToday = at.toDateString() === new Date().toDateString();
  return h("time", { datetime: instant, title: `${dayAndTime.format(at)} · ${utc(instant)}` }, (isToday ? shortTime : shortDay).format(at));
}

export const percent = (value) => (value === null || value === undefined ? NONE : `${Math.round(value * 100)} %`);

export function meter(part, label, { full = false } = {}) {
  const bounded = Math.max(0, Math.min(1, part || 0));
  return h("span", { class: full ? "meter full" : "meter", role: "img", "aria-label": label, vars: { "--part": bounded } }, h("i"));
}

export function confidence(value) {
  if (value === null || value === undefined) return NONE;
  const level = value < 0.6 ? "low" : value < 0.85 ? "middle" : "high";
  const bar = h("span", { class: "meter", "aria-hidden": "true", vars: { "--part": value } }, h("i"));
  return h("span", { class: "confidence", "data-level": level, title: `confidence ${value}` }, percent(value), bar);
}
