// What a page shows when it has nothing to show yet, nothing at all, or something went wrong.

import { h } from "../dom.js";

export function loading() {
  return h("div", { class: "state fade", role: "status" }, "Loading…");
}

/** Nothing there: says so, and which command would change that. */
export function empty(title, text, command) {
  return h(
    "div",
    { class: "state" },
    h("h2", {}, title),
    text && h("p", {}, text),
    command && h("pre", {}, command),
  );
}

export function problem(error, again) {
  return h(
    "div",
    { class: "state problem", role: "alert" },
    h("h2", {}, titleOf(error)),
    h("p", {}, error.message),
    error.remedy && h("p", {}, error.remedy),
    again && h("button", { class: "button", type: "button", onclick: again }, "Try again"),
  );
}

function titleOf(error) {
  if (error.status === 0) return "Not connected";
  if (error.status === 404) return "Not found";
  if (error.status === 429) return "Too busy just now";
  if (error.status === 503) return "No broker can be reached";
  return "That did not work";
}
