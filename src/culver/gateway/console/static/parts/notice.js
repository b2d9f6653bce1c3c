// Short notices of what was done, read out by screen readers; they leave by themselves.

import { h } from "../dom.js";

const SHOWN_MS = 6000;

export function notice(text, { bad = false } = {}) {
  const element = h("div", { class: bad ? "notice bad fade" : "notice fade" }, text);
  document.getElementById("notices").append(element);
  setTimeout(() => element.remove(), SHOWN_MS);
}

export function noticeOf(error) {
  notice([error.message, error.remedy].filter(Boolean).join(" "), { bad: true });
}
