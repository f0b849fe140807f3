// Asks the billing tables on a click: slow, so it says at once that it asked, and what came of it when it is known.
import { api } from "./api.js";
import { notice } from "./dom.js";
import { count } from "./format.js";

const ASK_SECONDS = 2;
const LONGEST_SECONDS = 600;

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function answered(id) {
  for (let waited = 0; waited < LONGEST_SECONDS; waited += ASK_SECONDS) {
    await pause(ASK_SECONDS);
    const request = await api(`/costs/requests/${id}`);
    if (request.status === "done" || request.status === "failed") return request;
  }
  return { status: "failed", error: "The billing tables have not answered for ten minutes." };
}

export function bill(button, onArrived) {
  const words = button.textContent;
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Asking the billing tables…";
    try {
      const { request_id: id } = await api("/costs/refresh", { method: "POST", body: {} });
      const request = await answered(id);
      if (request.status === "failed") notice(`The bill could not be had: ${request.error ?? "no reason was given"}`);
      else notice(`The billing tables priced ${count(request.attempts_billed ?? 0)} attempt${request.attempts_billed === 1 ? "" : "s"}.`, "good");
      onArrived();
    } catch (error) { notice(error.message); }
    button.disabled = false;
    button.textContent = words;
  });
}
