// Takes messages away as a file: newline-delimited JSON or CSV, streamed by the gateway.

import { path, withQuery } from "../api.js";
import { h } from "../dom.js";
import { openDialog } from "../parts/dialog.js";
import { field, select } from "../parts/page.js";

const FORMATS = [
  ["ndjson", "JSON, one per line"],
  ["csv", "CSV"],
];

export function exportDialog(topic, { partition, from, filter, isolation }) {
  const format = select(FORMATS, "ndjson");
  const limit = h("input", { type: "number", min: 1, max: 1_000_000, value: 10_000 });
  const start = h("input", { class: "mono", value: from && from !== "latest" ? from : "earliest" });
  openDialog({
    title: `Export from ${topic}`,
    action: "Download",
    body: [
      h("div", { class: "row" }, field("Format", format), field("At most", limit, "messages")),
      field("From", start, "earliest, offset:100, time:-1h, or time:2026-11-15T08:00:00Z"),
      h(
        "p",
        { class: "soft" },
        filter ? `Only messages that match “${filter}”` : "All messages",
        partition ? ` of partition ${partition}` : "",
        ", up to the end as of now.",
      ),
    ],
    act() {
      const query = {
        format: format.value,
        limit: limit.value,
        from: start.value.trim(),
        partition,
        filter,
        isolation,
      };
      // A link with `download`: the browser streams it to a file, whatever its size.
      const anchor = h("a", {
        href: withQuery(path`/api/topics/${topic}/export`, query),
        download: `${topic}.${format.value}`,
      });
      document.body.append(anchor);
      anchor.click();
      anchor.remove();
    },
  });
}
