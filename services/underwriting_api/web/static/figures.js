import { absence, badge, call, element, instant, keepFresh, money, table, words } from "./page.js";

const span = document.getElementById("span");
const seconds = (value) => (value === null || value === undefined ? "–" : value < 10 ? `${value.toFixed(2)} s`
  : value < 600 ? `${value.toFixed(0)} s` : `${(value / 3600).toFixed(1)} h`);
const pair = (values) => (values ? values.map(seconds).join(" / ") : "–");

function tile(title, value) {
  return element("div", { class: "card" }, element("strong", {}, value), title);
}

async function refresh() {
  const hours = span.elements.hours.value;
  const [runs, retries, policy] = await Promise.all([
    call(`metrics/workflow?hours=${hours}`), call(`metrics/retries?hours=${hours}`), call("policy").catch((error) => ({ limits: [], trouble: error.message }))]);
  document.getElementById("workflow").replaceChildren(
    element("div", { class: "tiles" },
      tile("runs", String(runs.runs)),
      tile("to the review (p50 / p95)", pair(runs.to_review)),
      tile("in review (p50 / p95)", pair(runs.in_review)),
      tile("from start to end (p50 / p95)", pair(runs.whole)),
      tile("turns on average", runs.turns.toFixed(1)),
      tile("tokens", String(runs.input_tokens + runs.output_tokens)),
      tile("model cost", money(runs.llm_cost))),
    table(["What runs do now", "Runs"], Object.entries(runs.conditions).map(([name, count]) => [badge(name), String(count)])),
    element("p", {}),
    Object.keys(runs.outcomes).length
      ? table(["Outcome", "Runs"], Object.entries(runs.outcomes).map(([name, count]) => [badge(name), String(count)])) : "");
  document.getElementById("retries").replaceChildren(table(
    ["Activity", "Round", "Attempt", "Attempts", "Succeeded", "Reused", "Failed", "Lost", "Running", "p50 / p95", "Last error"],
    retries.activities.map((each) => [words(each.activity), String(each.round), String(each.attempt), String(each.attempts),
      String(each.succeeded), String(each.reused), String(each.failed), String(each.lost), String(each.running),
      pair(each.seconds), each.last_error ? `${words(each.last_error.type)}: ${each.last_error.message}` : "–"])));
  document.getElementById("limits").replaceChildren(policy.limits.length ? table(
    ["Purpose", "Policy", "Version", "Minimum score", "Automatic approval up to", "Rejected below", "Rejected above", "Source", "Synced"],
    policy.limits.map((each) => [words(each.purpose), each.policy_name, element("span", { class: "whole" }, each.policy_version), String(each.minimum_score),
      `${each.automatic_approval_dti} %`, String(each.hard_reject_score), `${each.hard_reject_dti} %`, words(each.source),
      instant(each.synced_at)]))
    : element("p", { class: "notice bad" }, policy.trouble || "There is no policy: the sync has not delivered any row."));
  return absence();
}

const again = keepFresh(refresh, 5);
span.addEventListener("input", again);
