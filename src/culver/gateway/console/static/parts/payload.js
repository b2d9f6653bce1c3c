// A key, a value or a header as the API gives it: JSON as a tree, text as text, bytes as hex.

import { h } from "../dom.js";
import { bytes } from "../format.js";
import { jsonTree } from "./json_tree.js";

const PREVIEW_MAX = 300;
const HEX_ROW = 16;
const HEX_MAX = 4096;

/** One line of it. */
export function preview(data) {
  if (!data) return h("span", { class: "null" }, "null");
  if (data.encoding === "base64") return h("span", { class: "faint" }, `${bytes(data.bytes)}, binary`);
  if (data.text === "") return h("span", { class: "null" }, "empty");
  return data.text.slice(0, PREVIEW_MAX);
}

/** All of it, to be read. `raw` shows JSON as it was sent. */
export function payload(data, { raw = false } = {}) {
  if (!data) return h("div", { class: "payload" }, h("span", { class: "null" }, "null"));
  return h(
    "div",
    { class: "payload", tabindex: "0", role: "group", "aria-label": "Content" },
    data.encoding === "json" && !raw && exact(data)
      ? jsonTree(data.json)
      : data.encoding === "base64"
        ? hex(data.base64)
        : h("pre", {}, data.text),
    data.truncated && h("p", { class: "warn" }, `Cut: it has ${bytes(data.bytes)}.`),
  );
}

/** Numbers that JavaScript cannot hold would be shown wrong; then the text is shown. */
function exact(data) {
  const longest = /\d{16,}/.exec(data.text ?? "");
  return !longest || JSON.stringify(data.json).includes(longest[0]);
}

export function plainText(data) {
  if (!data) return "";
  if (data.encoding === "json" && exact(data)) return JSON.stringify(data.json, null, 2);
  return data.text ?? data.base64;
}

function hex(base64) {
  const binary = atob(base64.slice(0, Math.ceil((HEX_MAX * 4) / 3 / 4) * 4));
  const lines = [];
  for (let start = 0; start < binary.length; start += HEX_ROW) {
    const row = [...binary.slice(start, start + HEX_ROW)];
    const codes = row.map((character) => character.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    const readable = row.map((character) => (/[\x20-\x7e]/.test(character) ? character : "·")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${codes.padEnd(HEX_ROW * 3)} ${readable}`);
  }
  return h("pre", {}, lines.join("\n"));
}
