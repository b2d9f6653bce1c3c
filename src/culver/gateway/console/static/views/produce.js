// Writes one message by hand.

import { path, post } from "../api.js";
import { h, show } from "../dom.js";
import { openDialog } from "../parts/dialog.js";
import { notice } from "../parts/notice.js";
import { button, field, select } from "../parts/page.js";

const ENCODINGS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["base64", "Base64"],
];

export function produceDialog(topic, partitionsCount, onProduced) {
  const key = h("input", { class: "mono", autocomplete: "off", spellcheck: "false", placeholder: "none" });
  const value = h("textarea", { spellcheck: "false", rows: 7 });
  const encoding = select(ENCODINGS, "text", {});
  const partition = h("input", {
    type: "number",
    min: 0,
    max: partitionsCount ? partitionsCount - 1 : null,
    placeholder: "by the key’s hash",
  });
  const tombstone = h("input", { type: "checkbox" });
  const headers = h("div");
  const rows = [];

  function addHeader() {
    const row = {
      name: h("input", { class: "mono", "aria-label": "Header name", placeholder: "name" }),
      value: h("input", { class: "mono", "aria-label": "Header value", placeholder: "value" }),
    };
    rows.push(row);
    show(
      headers,
      rows.map((each) => h("div", { class: "row" }, each.name, each.value)),
    );
    row.name.focus();
  }

  tombstone.addEventListener("change", () => (value.disabled = tombstone.checked));
  openDialog({
    title: `Produce to ${topic}`,
    action: "Produce",
    body: [
      h(
        "div",
        { class: "row" },
        field("Key", key),
        field("Partition", partition),
        field("Value is", encoding),
      ),
      field("Value", value),
      h("label", { class: "tick" }, tombstone, "No value at all (a tombstone: compaction removes the key)"),
      h("div", {}, headers, button("Add a header", addHeader, "small")),
    ],
    async act() {
      const body = {
        key: key.value === "" ? null : key.value,
        value: tombstone.checked ? null : valueOf(value.value, encoding.value),
        value_encoding: encoding.value,
        headers: rows
          .filter((row) => row.name.value)
          .map((row) => ({ name: row.name.value, value: row.value.value })),
        ...(partition.value !== "" && { partition: Number(partition.value) }),
      };
      const written = await post(path`/api/topics/${topic}/records`, body);
      notice(`Written to partition ${written.partition} at offset ${written.offset}.`);
      onProduced?.(written);
    },
  });
}

function valueOf(text, encoding) {
  if (encoding !== "json") return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The value is not JSON: ${error.message}`, { cause: error });
  }
}
