// The head of a page: where it is, what it is called, what can be done there.

import { h } from "../dom.js";

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

/** Documentation of a setting: what stands in backticks is code. */
export function prose(text) {
  return text.split("`").map((piece, index) => (index % 2 ? h("code", {}, piece) : piece));
}

let lastId = 0;

/** A labelled control; the hint below it is read out after its name. */
export function field(label, control, hint) {
  lastId += 1;
  control.id ||= `field-${lastId}`;
  if (hint) control.setAttribute("aria-describedby", `hint-${lastId}`);
  return h(
    "div",
    { class: "field" },
    h("label", { class: "label", for: control.id }, label),
    control,
    hint && h("span", { class: "hint", id: `hint-${lastId}` }, hint),
  );
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
