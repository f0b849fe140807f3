// What this person may do. A verb without the right is shown, disabled, with the reason: nobody searches for a button that
// is not there. The server decides all the same; where it names no rights, everything is allowed.
let rights = null;
let who = null;

export const allowed = (right) => rights === null || rights.includes(right);
export const reasonFor = (right) => `${who ?? "You"} may not do this: it needs the right to ${right}.`;

export function apply(place = document) {
  for (const element of place.querySelectorAll("[data-right]")) {
    if (allowed(element.dataset.right)) continue;
    element.disabled = true;
    element.title = reasonFor(element.dataset.right);
    element.setAttribute("aria-description", element.title);
  }
}

export async function learn() {
  try {
    const answer = await fetch("/api/v1/me", { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const me = await answer.json();
    who = me.name ?? me.actor ?? null;
    rights = me.rights ?? me.permissions ?? null;
    apply();
  } catch { /* the server decides */ }
}

// What is drawn later is held to the same.
export const known = learn();
new MutationObserver((changes) => { if (rights !== null) for (const { target } of changes) apply(target); }).observe(document.body, { childList: true, subtree: true });
