// JSON to look at: indented, coloured, folded where it is deep or long.

import { h, show } from "../dom.js";

const OPEN_DEPTH = 3;
const CHILDREN_MAX = 200;
const TEXT_MAX = 20_000;

/** An element for any JSON value. Objects and arrays below the third level, and long ones, start folded. */
export function jsonTree(value) {
  return h("div", { class: "json" }, node(value, null, 0, true));
}

function node(value, name, depth, last) {
  const label = name === null ? null : [h("span", { class: "json-name" }, name), ": "];
  const comma = last ? null : ",";
  if (value === null || typeof value !== "object")
    return h("div", { class: "json-node" }, label, leaf(value), comma);
  const entries = Array.isArray(value)
    ? value.map((child) => [null, child])
    : Object.entries(value).map(([key, child]) => [JSON.stringify(key), child]);
  const [begin, end] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return h("div", { class: "json-node" }, label, begin, end, comma);
  return branch({ label, comma, entries, begin, end, depth });
}

function branch({ label, comma, entries, begin, end, depth }) {
  const inside = h("div");
  const note = h("span", { class: "json-note" }, ` ${entries.length} … `);
  const closing = h("div", {}, end, comma);
  const closedTail = h("span", {}, note, end, comma);
  const fold = h("button", { class: "json-fold", type: "button", "aria-label": "Fold or unfold" });
  let open = depth < OPEN_DEPTH && (depth === 0 || entries.length <= 50);
  let shown = CHILDREN_MAX;

  function draw() {
    fold.setAttribute("aria-expanded", String(open));
    closedTail.hidden = open;
    closing.hidden = !open;
    inside.hidden = !open;
    if (!open || inside.childElementCount) return;
    fillInside();
  }

  function fillInside() {
    const rest = entries.length - shown;
    show(
      inside,
      entries
        .slice(0, shown)
        .map(([key, child], index) => node(child, key, depth + 1, index === entries.length - 1)),
      rest > 0 &&
        h(
          "div",
          { class: "json-node" },
          h("button", { class: "button small", type: "button", onclick: more }, `${rest} more`),
        ),
    );
  }

  function more() {
    shown += 5 * CHILDREN_MAX;
    fillInside();
  }

  fold.addEventListener("click", (event) => {
    event.stopPropagation();
    open = !open;
    draw();
  });
  draw();
  return h("div", { class: "json-node" }, fold, label, begin, closedTail, inside, closing);
}

function leaf(value) {
  if (typeof value === "string") {
    const text = JSON.stringify(value);
    return h("span", { class: "json-text" }, text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text);
  }
  return h("span", { class: typeof value === "number" ? "json-number" : "json-word" }, String(value));
}
