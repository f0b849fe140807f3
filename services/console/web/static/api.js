// Calls of the API; a refusal is an Error whose message is the sentence that the API gives.

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `The server answered ${status}.`);
    this.status = status;
    this.body = body;
  }
}

export async function api(path, { method = "GET", body, signal } = {}) {
  const options = { method, signal, headers: { Accept: "application/json" }, cache: "no-store" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, { ...options, signal: signal ?? AbortSignal.timeout(20_000) });
  } catch (error) {
    throw new ApiError(0, { detail: error.name === "TimeoutError" ? "The server did not answer in time." : "The server cannot be reached." });
  }
  const isJson = (answer.headers.get("Content-Type") ?? "").includes("json");
  const content = isJson ? await answer.json() : null;
  if (!answer.ok) throw new ApiError(answer.status, content);
  return content;
}
