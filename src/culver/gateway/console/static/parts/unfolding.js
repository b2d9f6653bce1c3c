// A line that unfolds in place: by click, Enter or Space; j and k walk such lines.

import { h } from "../dom.js";

/**
 * cells: what the line shows; fill(body): called once, when it is first unfolded; onToggle(isOpen).
 * look: the class that lays the cells out.
 */
export function unfolding({ cells, look, fill, open = false, onToggle, attributes = {} }) {
  const line = h(
    "div",
    { class: `fold-line ${look}`, role: "button", tabindex: "0", "data-row": true, "aria-expanded": "false" },
    cells,
  );
  const body = h("div", { class: "record-body" });
  const element = h("div", { role: "listitem", ...attributes }, line);

  function setOpen(wanted) {
    line.setAttribute("aria-expanded", String(wanted));
    if (!wanted) return body.remove();
    if (!body.childElementCount) fill(body);
    return element.append(body);
  }

  line.addEventListener("click", () => {
    const wanted = line.getAttribute("aria-expanded") !== "true";
    setOpen(wanted);
    onToggle?.(wanted);
  });
  line.addEventListener("keydown", (event) => {
    if (event.key !== " ") return; // Enter is everywhere's: see keyboard.js
    event.preventDefault();
    line.click();
  });
  if (open) setOpen(true);
  return element;
}
