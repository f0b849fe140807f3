// Builds elements. Text only ever goes in as text, so nothing that a document says can become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

// Replaces what an element holds, and leaves it alone when it would look the same: no flicker, no lost focus.
export function fill(element, ...children) {
  const fresh = h("div", {}, ...children);
  if (element.innerHTML === fresh.innerHTML && !fresh.querySelector("button")) return;
  element.replaceChildren(...fresh.childNodes);
}

export function notice(text, kind = "bad") {
  const place = byId("notice");
  place.hidden = !text;
  place.dataset.kind = kind;
  place.textContent = text ?? "";
}
