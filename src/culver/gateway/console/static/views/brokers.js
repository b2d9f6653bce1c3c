// Brokers: where they are, what they lead, what they store.

import { get } from "../api.js";
import { h, show } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { live } from "../parts/live.js";
import { heading, mark } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { keepPlace, table } from "../parts/table.js";
import { bar } from "../plots/bar.js";

export function brokersPage({ root, signal }) {
  const head = heading({ title: "Brokers" });
  const place = h("div");
  show(root, head.element, place);
  live({
    place,
    signal,
    load: (either) => get("/api/brokers", {}, { signal: either }),
    draw: ({ items }) => draw(items, head.summary, place),
  });
}

function draw(items, summary, place) {
  const down = items.filter((broker) => !broker.is_up).length;
  show(
    summary,
    plural(items.length, "broker"),
    down > 0 && [", ", h("span", { class: "bad" }, `${count(down)} down`)],
    `, ${count(sum(items, "leaders"))} partitions led`,
  );
  if (!items.length) return empty("No broker is up", "The gateway waits for one.", "culver serve");
  const mostLed = Math.max(...items.map((broker) => broker.leaders ?? 0));
  const mostBytes = Math.max(...items.map((broker) => broker.bytes ?? 0));
  const columns = [
    {
      title: "Broker",
      look: "name",
      cell: (broker) => [h("b", {}, broker.id), " ", broker.is_controller && mark("controller", "good")],
    },
    { title: "Address", cell: (broker) => h("span", { class: "mono" }, `${broker.host}:${broker.port}`) },
    { title: "Rack", narrow: false, cell: (broker) => broker.rack ?? h("span", { class: "faint" }, "–") },
    { title: "Leads", cell: (broker) => bar(broker.leaders, mostLed) },
    { title: "Replicas", number: true, cell: (broker) => count(broker.replicas) },
    { title: "State", cell: stateOf },
    { title: "On disk", cell: (broker) => bar(broker.bytes, mostBytes, bytes) },
    {
      title: "Version",
      narrow: false,
      cell: (broker) => broker.software ?? h("span", { class: "faint" }, "–"),
    },
  ];
  keepPlace(place, table({ label: "Brokers", columns, rows: items }), directories(items));
  return undefined;
}

function stateOf(broker) {
  if (!broker.is_up) return mark("down", "bad");
  if (broker.error) return h("span", { title: broker.error }, mark("does not answer", "bad"));
  if (broker.offline_replicas) return mark(`${count(broker.offline_replicas)} offline`, "bad");
  if (broker.under_replicated) return mark(`${count(broker.under_replicated)} behind`, "warn");
  return mark("in sync", "good");
}

function directories(items) {
  const rows = items.flatMap((broker) =>
    (broker.log_dirs ?? []).map((directory) => ({ broker, ...directory })),
  );
  if (!rows.length) return null;
  const columns = [
    { title: "Broker", cell: (row) => row.broker.id },
    { title: "Directory", look: "name", cell: (row) => h("span", { class: "mono" }, row.path) },
    { title: "Used", number: true, cell: (row) => bytes(row.bytes) },
    { title: "Free on the disk", number: true, cell: (row) => bytes(row.usable_bytes) },
    { title: "Size of the disk", number: true, narrow: false, cell: (row) => bytes(row.total_bytes) },
    { title: "State", cell: (row) => (row.error ? h("span", { class: "bad" }, row.error) : "usable") },
  ];
  return h(
    "section",
    { class: "block spaced" },
    h("h2", {}, "Log directories"),
    table({ label: "Log directories", columns, rows }),
  );
}

const sum = (items, field) => items.reduce((total, item) => total + (item[field] ?? 0), 0);
