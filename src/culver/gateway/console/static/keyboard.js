// Keys that work everywhere: / ? g-then-letter j k Enter Escape.

import { h } from "./dom.js";
import { openDialog } from "./parts/dialog.js";

const GO_WITHIN_MS = 1200;
const OPENS = "a[href], button[data-open]";

const SHORTCUTS = [
  ["/", "search on this page, or jump to a topic or group"],
  ["j k", "next and previous row"],
  ["Enter", "open the row"],
  ["Esc", "close, or leave the field"],
  ["n p", "next and previous page of a list"],
  ["d", "dark or light"],
  ["?", "this list"],
];

/** sections: [{key: "t", name: "Topics", href}]; go(href); toggleTheme(). */
export function listenToKeys({ sections, go, toggleTheme }) {
  let goingUntilMs = 0;

  const actions = {
    "/": () =>
      (document.querySelector("main [data-search]") ?? document.querySelector("#jump input")).focus(),
    "?": () => showHelp(sections),
    j: () => walk(1),
    k: () => walk(-1),
    n: () => document.querySelector('[data-turn="next"]')?.click(),
    p: () => document.querySelector('[data-turn="prev"]')?.click(),
    d: toggleTheme,
    g: () => {
      goingUntilMs = Date.now() + GO_WITHIN_MS;
    },
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      document.activeElement?.blur();
      return;
    }
    if (event.target.matches("input, textarea, select, [contenteditable]")) return;
    const section = Date.now() < goingUntilMs && sections.find(({ key }) => key === event.key);
    goingUntilMs = 0;
    if (section) {
      event.preventDefault();
      go(section.href);
    } else if (event.key === "Enter" && event.target.matches("[data-row]")) {
      open(event);
    } else if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  });
}

function walk(step) {
  const rows = [...document.querySelectorAll("main [data-row]")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement?.closest("[data-row]"));
  const next = at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step));
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
}

function open(event) {
  const row = event.target;
  const inside = row.querySelector(OPENS);
  event.preventDefault();
  if (inside) inside.click();
  else row.click();
}

function showHelp(sections) {
  const going = sections.filter(({ key }) => key).map(({ key, name }) => [`g ${key}`, name.toLowerCase()]);
  openDialog({
    title: "Keyboard",
    body: h(
      "dl",
      { class: "shortcuts" },
      [...SHORTCUTS, ...going].flatMap(([keys, what]) => [
        h(
          "dt",
          {},
          keys.split(" ").map((key) => [h("kbd", {}, key), " "]),
        ),
        h("dd", {}, what),
      ]),
    ),
  });
}

export { showHelp };
