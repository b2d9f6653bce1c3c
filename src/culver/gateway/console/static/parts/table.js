// Tables whose rows can be walked with j and k, whose heads sort, and whose pages turn.

import { h, show } from "../dom.js";
import { count } from "../format.js";

/**
 * columns: [{title, cell: (row) => content, number: bool, narrow: false to hide on phones, sort: "key", look: "name"}].
 * sort and onSort: the current key ("name" or "-name") and what to do when a head is used.
 */
export function table({ label, columns, rows, sort, onSort, tools }) {
  const looks = columns.map((column) =>
    [column.number && "number", column.narrow === false && "hide-narrow", column.look]
      .filter(Boolean)
      .join(" "),
  );
  const head = columns.map((column, index) => headCell(column, looks[index], sort, onSort));
  const body = rows.map((row) =>
    h(
      "tr",
      { tabindex: "-1", "data-row": true },
      columns.map((column, index) => h("td", { class: looks[index] || null }, column.cell(row))),
    ),
  );
  return h(
    "div",
    { class: "table-frame" },
    h(
      "table",
      { "aria-label": label },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", { "data-rows": true }, body),
    ),
    tools,
  );
}

function headCell(column, look, sort, onSort) {
  if (!column.sort || !onSort) return h("th", { scope: "col", class: look || null }, column.title);
  const direction = sort === column.sort ? "ascending" : sort === `-${column.sort}` ? "descending" : null;
  const first = column.number ? `-${column.sort}` : column.sort; // of numbers, the largest are of interest first
  const other = first === column.sort ? `-${column.sort}` : column.sort;
  return h(
    "th",
    { scope: "col", class: look || null, "aria-sort": direction },
    h("button", { type: "button", onclick: () => onSort(sort === first ? other : first) }, column.title),
  );
}

/** "1–50 of 1,000" and the ways to the other pages; href(offset) gives their addresses. */
export function pager({ total, offset, limit, noun, href }) {
  const last = Math.min(offset + limit, total);
  const turn = (text, name, to, possible) =>
    possible
      ? h("a", { class: "button small", href: href(to), rel: name, "data-turn": name }, text)
      : h("button", { class: "button small", disabled: true }, text);
  return h(
    "div",
    { class: "pager" },
    h(
      "span",
      { "data-total": total },
      total === 0 ? `No ${noun}` : `${count(offset + 1)}–${count(last)} of ${count(total)} ${noun}`,
    ),
    total > limit && [
      turn("← Previous", "prev", Math.max(0, offset - limit), offset > 0),
      turn("Next →", "next", offset + limit, last < total),
    ],
  );
}

/** Redraws without losing the place of somebody who walks the rows. */
export function keepPlace(place, ...content) {
  const rows = [...place.querySelectorAll("[data-row]")];
  const index = rows.indexOf(document.activeElement);
  const scrolled = place.querySelector(".table-frame")?.scrollLeft ?? 0;
  show(place, content);
  if (scrolled) place.querySelector(".table-frame").scrollLeft = scrolled;
  if (index >= 0) place.querySelectorAll("[data-row]")[index]?.focus({ preventScroll: true });
}
