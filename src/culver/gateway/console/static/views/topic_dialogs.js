// Making, growing and deleting topics.

import { path, post } from "../api.js";
import { h } from "../dom.js";
import { deleteByName } from "../parts/deletion.js";
import { openDialog } from "../parts/dialog.js";
import { notice } from "../parts/notice.js";
import { field } from "../parts/page.js";

export function createTopic({ go }) {
  const name = h("input", {
    class: "mono",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    pattern: "[A-Za-z0-9._\\-]{1,249}",
  });
  const partitions = h("input", { type: "number", min: 1, placeholder: "the broker's default" });
  const copies = h("input", { type: "number", min: 1, placeholder: "the broker's default" });
  const settings = h("textarea", {
    spellcheck: "false",
    placeholder: "retention.ms=86400000\ncleanup.policy=compact",
    "aria-label": "Settings, one NAME=VALUE per line",
  });
  openDialog({
    title: "New topic",
    action: "Create",
    body: [
      field("Name", name, "Letters, digits, dot, underscore and hyphen."),
      h("div", { class: "row" }, field("Partitions", partitions), field("Replicas", copies)),
      field("Settings", settings, "One NAME=VALUE per line; may stay empty."),
    ],
    async act() {
      await post("/api/topics", {
        name: name.value,
        ...(partitions.value && { partitions: Number(partitions.value) }),
        ...(copies.value && { replicas: Number(copies.value) }),
        config: settingsOf(settings.value),
      });
      notice(`Topic ${name.value} has been created.`);
      go(path`/console/topics/${name.value}`);
    },
  });
}

function settingsOf(text) {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  const broken = lines.find((line) => !line.includes("="));
  if (broken) throw new Error(`“${broken}” is not NAME=VALUE.`);
  return Object.fromEntries(
    lines.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]),
  );
}

export function addPartitions(topic, onChange) {
  const total = h("input", {
    type: "number",
    min: topic.partitions_count + 1,
    value: topic.partitions_count + 1,
  });
  openDialog({
    title: `Add partitions to ${topic.name}`,
    action: "Add",
    body: [
      field(
        "New total",
        total,
        `It has ${topic.partitions_count} now. Partitions cannot be taken away again.`,
      ),
      h(
        "p",
        { class: "soft" },
        "Keys are spread over all partitions: records with the same key that come later may go to another partition than those before.",
      ),
    ],
    async act() {
      await post(path`/api/topics/${topic.name}/partitions`, { count: Number(total.value) });
      notice(`${topic.name} has ${total.value} partitions now.`);
      onChange();
    },
  });
}

export function deleteTopic(name, { go }) {
  deleteByName({
    what: "topic",
    name,
    address: path`/api/topics/${name}`,
    text: "The topic and all its messages are removed from every broker. This cannot be undone.",
    done: () => go("/console/topics"),
  });
}
