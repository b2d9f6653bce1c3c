// The head of a page: where it is, what it is called, what can be done there.

import { append, h } from "../dom.js";

/** crumbs: [[text, href], …]; returns the element, with `summary` and `actions` to be filled later. */
export function heading({ title, crumbs = [], actions = [] }) {
  document.title = `${title} · Culver`;
  const summary = h("div", { class: "summary" });
  const element = h(
    "div",
    { class: "heading" },
    h(
      "div",
      { class: "titles" },
      crumbs.length > 0 &&
        h(
          "nav",
          { class: "crumbs", "aria-label": "Where this is" },
          crumbs.map(([text, href]) => [h("a", { href }, text), " / "]),
        ),
      h("h1", {}, title),
      summary,
    ),
    h("div", { class: "actions" }, actions),
  );
  return { element, summary };
}

export function block(title, ...content) {
  return h("section", { class: "block", "aria-label": title }, h("h2", {}, title), content);
}

/** entries: [{label, amount, note, bad}], set in a row; amount may be an element. */
export function figures(entries) {
  return h(
    "div",
    { class: "figures" },
    entries.map(({ label, amount, note, bad }) =>
      h(
        "div",
        { class: bad ? "figure bad" : "figure" },
        h("div", { class: "label" }, label),
        h("div", { class: "amount" }, amount),
        note && h("div", { class: "note" }, note),
      ),
    ),
  );
}

/** entries: [[text, href, isCurrent]]. */
export function tabs(label, entries) {
  return h(
    "nav",
    { class: "tabs", "aria-label": label },
    entries.map(([text, href, current]) => h("a", { href, "aria-current": current ? "page" : null }, text)),
  );
}

export function mark(text, look = "") {
  return h("span", { class: `mark ${look}` }, text);
}

export function button(text, onclick, look = "", attributes = {}) {
  return h("button", { class: `button ${look}`, type: "button", onclick, ...attributes }, text);
}

/** A labelled control. */
export function field(label, control, hint) {
  return append(h("label", { class: "field" }, h("span", { class: "label" }, label)), [
    control,
    hint && h("span", { class: "hint" }, hint),
  ]);
}

export function select(options, value, attributes = {}) {
  return h(
    "select",
    attributes,
    options.map(([key, text]) =>
      h("option", { value: key, selected: String(key) === String(value ?? "") }, text),
    ),
  );
}
