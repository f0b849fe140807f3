// Words for what the API says in short: statuses, why a task waits, why it failed and what to do next.

export const STATUS = { enqueued: "Waiting", processing: "Running", completed: "Completed", failed: "Failed", cancelled: "Cancelled" };

const WAITING = {
  next: "starts next",
  agent_full: "the agent works at its limit of tasks",
  token_budget: "waits for room in the tokens per minute",
  cost_budget: "the spending limit is reached",
  circuit_open: "the agent failed several times; it is tried again, one task at a time",
  cooldown: "the runner asked to wait a moment",
  paused: "the agent is paused",
  scheduled: "scheduled for later",
  backoff: "waits a moment before the next attempt",
  no_such_agent: "there is no such agent",
  children: "waits for its children to end",
};

const NEXT = {
  password_required: "Remove the password from the PDF and upload it again.",
  empty_file: "Export the document again; the file holds nothing.",
  not_a_pdf: "Convert it to PDF first.",
  document_damaged: "Export or scan the document again.",
  document_incomplete: "Upload it again; the stored file is not whole.",
  document_missing: "Upload it again; the stored file is gone.",
  document_crashed_parser: "Print the document to a new PDF and upload that.",
  document_too_large: "Split the document.",
  document_too_heavy: "Split the document.",
  too_many_pages: "Split the document.",
  parse_timeout: "Split the document, or print it to a new PDF.",
  no_pages: "Export the document again; it has no pages.",
  lease_exhausted: "Its runs died without a word; the attempts below say when. Retry it when the cause is known.",
  model_unavailable: "The model endpoint did not answer. Retry it later.",
  model_throttled: "The model endpoint is at its limit. Lower the agent's tokens per minute, then retry.",
  model_answer_invalid: "The model's answers did not fit the fields. Try another model or simpler fields.",
  children_failed: "Its children say why, each on its own page.",
  schema_invalid: "Correct the schema in the agent's options.",
  document_access_denied: "Let the agent's principal read the Volume.",
};

export const plain = (word) => (word ? word.replaceAll("_", " ") : "");
export const waitingFor = (reason) => WAITING[reason] ?? plain(reason);
export const nextStep = (reason) => NEXT[reason] ?? null;

// One line under the status of a task.
export function why(task) {
  if (task.status === "enqueued") return waitingFor(task.waiting?.reason ?? task.reason ?? "");
  if (task.status === "failed") return task.error?.message || plain(task.error?.reason ?? task.reason);
  if (task.status === "cancelled") return plain(task.reason);
  return "";
}

export const VERB = {
  enqueue: "accepted", claim: "leased for an attempt", submit: "submitted to the Jobs API", release: "given back before it ran", refuse: "refused by the runner",
  requeue: "put back after its run was lost", give_up: "given up", retry: "put back for another attempt", complete: "completed",
  fail: "failed", gather: "ended with its children", cancel: "cancelled", reprioritise: "priority changed", hasten: "allowed to start now", progress: "went on",
};
