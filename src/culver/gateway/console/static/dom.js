// Makes elements; text from the cluster only ever becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** An HTML element: h("a", {href: "/", onclick: f}, "text", otherElement). */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Replaces what an element holds. */
export function show(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** A link to another page of the console; the router takes the click. */
export function link(href, text, attributes = {}) {
  return h("a", { href, ...attributes }, text);
}

/** Calls `action` once nothing has called it for `delayMs`. */
export function settled(action, delayMs = 200) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), delayMs);
  };
}
