// The replicas of a partition at a glance: the leader filled, those that lag dashed, those that are gone struck out.

import { h } from "../dom.js";

export function replicas({ replicas: all, isr, leader, offline = [] }) {
  const words = all.map(
    (id) =>
      `${id}${id === leader ? " leads" : offline.includes(id) ? " is offline" : isr.includes(id) ? "" : " is behind"}`,
  );
  return h(
    "span",
    {
      class: "replicas",
      role: "img",
      "aria-label": `Replicas: ${words.join(", ")}`,
      title: words.join(", "),
    },
    all.map((id) =>
      h("span", { class: `replica ${lookOf(id, isr, leader, offline)}`, "aria-hidden": "true" }, id),
    ),
  );
}

function lookOf(id, isr, leader, offline) {
  if (id === leader) return "leader";
  if (offline.includes(id)) return "gone";
  return isr.includes(id) ? "" : "behind";
}
