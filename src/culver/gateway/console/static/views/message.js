// One record of a topic: a line, and all of it when unfolded.

import { get, path } from "../api.js";
import { h, show } from "../dom.js";
import { bytes, count, time, utc } from "../format.js";
import { notice, noticeOf } from "../parts/notice.js";
import { button } from "../parts/page.js";
import { payload, plainText, preview } from "../parts/payload.js";
import { unfolding } from "../parts/unfolding.js";

export const placeOf = (record) => `${record.partition}:${record.offset}`;

/** onToggle(place or null) is told what is open. */
export function message(topic, record, { open = false, isNew = false, onToggle }) {
  const place = placeOf(record);
  return unfolding({
    look: "record-line",
    attributes: { class: isNew ? "record new" : "record", "data-place": place },
    cells: [
      h("span", { class: "when" }, time(record.timestamp_ms, { milliseconds: true })),
      h(
        "span",
        { class: "place", title: `partition ${record.partition}, offset ${record.offset}` },
        h("span", { class: "faint" }, `${record.partition} : `),
        count(record.offset),
      ),
      h(
        "span",
        { class: "key" },
        record.key === null ? h("span", { class: "null" }, "–") : preview(record.key),
      ),
      h("span", { class: "preview" }, preview(record.value)),
      h("span", { class: "size" }, bytes(record.size_bytes)),
    ],
    fill: (body) => fillBody(body, topic, record),
    open,
    onToggle: (isOpen) => onToggle?.(isOpen ? place : null),
  });
}

function fillBody(body, topic, record) {
  const address = path`/api/topics/${topic}/records/${record.partition}/${record.offset}`;
  show(
    body,
    h(
      "div",
      { class: "facts" },
      fact("Partition", record.partition),
      fact("Offset", count(record.offset)),
      fact(
        record.timestamp_type === "append" ? "Appended" : "Created",
        time(record.timestamp_ms, { milliseconds: true }),
      ),
      fact("UTC", utc(record.timestamp_ms)),
      fact("Size", bytes(record.size_bytes)),
      copyButton("Copy link", () => linkTo(topic, record)),
    ),
    part("Key", record.key, record, `${address}/key`),
    part("Value", record.value, record, `${address}/value`),
    headers(record),
  );
  const cut = record.value?.truncated || record.key?.truncated || record.headers_more > 0;
  if (cut)
    body.append(
      h(
        "div",
        {},
        button("Show all of it", () => showWhole(body, topic, address), "small"),
      ),
    );
}

async function showWhole(body, topic, address) {
  try {
    const { record } = await get(address);
    fillBody(body, topic, record);
  } catch (error) {
    noticeOf(error);
  }
}

const fact = (name, value) => h("span", {}, `${name} `, h("b", {}, value));

function part(name, data, record, address) {
  const place = h("div");
  let raw = false;
  const toggle = button(
    "As sent",
    () => {
      raw = !raw;
      toggle.setAttribute("aria-pressed", String(raw));
      show(place, payload(data, { raw }));
    },
    "small plain",
    { "aria-pressed": "false" },
  );
  show(place, data && payload(data));
  return h(
    "div",
    { class: "part" },
    h(
      "div",
      { class: "part-head" },
      h("span", { class: "label" }, name),
      !data && h("span", { class: "null" }, name === "Value" ? "null, a tombstone" : "null"),
      data &&
        h(
          "span",
          { class: "faint" },
          `${data.encoding === "base64" ? "binary" : data.encoding}, ${bytes(data.bytes)}`,
        ),
      data?.encoding === "json" && toggle,
      data && copyButton("Copy", () => plainText(data)),
      data &&
        h(
          "a",
          {
            class: "button small plain",
            href: address,
            download: `${record.partition}-${record.offset}-${name.toLowerCase()}`,
          },
          "Download",
        ),
    ),
    place,
  );
}

function headers({ headers: list, headers_more: more }) {
  if (!list?.length) return null;
  return h(
    "div",
    { class: "part" },
    h("div", { class: "part-head" }, h("span", { class: "label" }, "Headers")),
    h(
      "table",
      { class: "header-list", "aria-label": "Headers" },
      h(
        "tbody",
        {},
        list.map((header) => h("tr", {}, h("td", {}, header.name), h("td", {}, preview(header.value)))),
      ),
    ),
    more > 0 && h("p", { class: "soft" }, `and ${count(more)} more`),
  );
}

function copyButton(text, content) {
  return button(
    text,
    async () => {
      try {
        await navigator.clipboard.writeText(content());
        notice("Copied.");
      } catch {
        notice("The browser does not allow copying here; it wants https or localhost.", { bad: true });
      }
    },
    "small plain",
  );
}

/** An address that opens this very record. */
function linkTo(topic, record) {
  const query = new URLSearchParams({
    partition: record.partition,
    from: `offset:${record.offset}`,
    open: placeOf(record),
  });
  return `${location.origin}${path`/console/topics/${topic}/messages`}?${query}`;
}
