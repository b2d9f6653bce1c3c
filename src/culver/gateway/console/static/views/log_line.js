// One line of the log store: searched words marked, all its fields when unfolded.

import { path } from "../api.js";
import { h } from "../dom.js";
import { time } from "../format.js";
import { jsonTree } from "../parts/json_tree.js";
import { unfolding } from "../parts/unfolding.js";

const BAD = /^(err|fatal|crit|emerg|alert|panic)/i;
const WARN = /^warn/i;

export function logLine(line, terms) {
  const level = line.level ?? "";
  const look = BAD.test(level) ? "bad" : WARN.test(level) ? "warn" : "";
  return unfolding({
    look: "log-line",
    attributes: { class: "record" },
    cells: [
      h("span", { class: "when" }, time(Date.parse(line.ts), { milliseconds: true })),
      h("span", { class: `level ${look}` }, level),
      h("span", { class: "service" }, line.service ?? ""),
      h("span", { class: "message" }, highlighted(line.message ?? line.raw ?? "", terms)),
    ],
    fill: (body) => body.append(...details(line)),
  });
}

function details(line) {
  const from =
    line.topic &&
    `${path`/console/topics/${line.topic}/messages`}?${new URLSearchParams({ partition: line.partition, from: `offset:${line.offset}`, open: `${line.partition}:${line.offset}` })}`;
  const fact = (name, value) => value && h("span", {}, `${name} `, h("b", {}, value));
  return [
    h(
      "div",
      { class: "facts" },
      fact("Service", line.service),
      fact("Host", line.host),
      fact("Format", line.format),
      fact("UTC", line.ts),
      from && h("a", { href: from }, `${line.topic} ${line.partition} : ${line.offset}`),
    ),
    h(
      "div",
      { class: "payload" },
      Object.keys(line.fields ?? {}).length ? jsonTree(line.fields) : h("pre", {}, line.raw ?? line.message),
    ),
  ];
}

/** The text with its searched words in <mark>; the text itself is only ever text. */
function highlighted(text, terms) {
  if (!terms.length) return [text];
  const escaped = terms.map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const pieces = text.split(new RegExp(`(${escaped.join("|")})`, "gi"));
  return pieces.map((piece, index) => (index % 2 ? h("mark", {}, piece) : piece));
}
