// One amount as a bar in a table cell, against the largest of its column.

import { h } from "../dom.js";
import { count } from "../format.js";

export function bar(amount, most, format = count) {
  const fill = h("div", { class: amount ? "bar-fill" : "bar-fill none" });
  fill.style.width = `${most > 0 && amount ? Math.max(1, (100 * amount) / most) : 0}%`;
  return h(
    "div",
    { class: "bar-cell" },
    h("div", { class: "bar-track", "aria-hidden": "true" }, fill),
    h("span", { class: "amount" }, format(amount)),
  );
}
