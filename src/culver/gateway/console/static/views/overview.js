// The cluster at a glance: key figures, throughput, and what happened when.

import { get, path } from "../api.js";
import { h, link, show } from "../dom.js";
import { bytes, bytesPerSecond, count, perSecond, short } from "../format.js";
import { EventFeed } from "../event_feed.js";
import { EventList } from "../parts/event_list.js";
import { live } from "../parts/live.js";
import { block, figures, heading } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { bar } from "../plots/bar.js";
import { EventLanes } from "../plots/event_lanes.js";
import { TimePlot } from "../plots/time_plot.js";

const RANGES = [
  [60, "1 min"],
  [300, "5 min"],
  [900, "15 min"],
];
const DEFAULT_SECONDS = 300;

export function overviewPage({ root, query, signal, setQuery }) {
  let seconds = Number(query.seconds) || DEFAULT_SECONDS;
  const head = heading({ title: "Overview" });
  const facts = h("div");
  const events = new EventFeed(signal);
  const picture = new Picture();
  const ranges = h("div", { class: "segments", role: "group", "aria-label": "Time range" });
  const busiest = h("div");
  const listed = new EventList();

  function drawRanges() {
    show(
      ranges,
      RANGES.map(([value, text]) =>
        h(
          "button",
          {
            class: "button small",
            type: "button",
            "aria-pressed": String(value === seconds),
            onclick: () => setQuery({ seconds: value === DEFAULT_SECONDS ? null : value }),
          },
          text,
        ),
      ),
    );
  }

  show(
    root,
    head.element,
    facts,
    h(
      "section",
      { class: "block", "aria-label": "Throughput and events" },
      h("div", { class: "block-head" }, h("h2", {}, "Throughput"), h("span", { class: "spring" }), ranges),
      picture.elements,
    ),
    h(
      "div",
      { class: "columns uneven" },
      block("What happened", listed.element),
      block("Busiest topics", busiest),
    ),
  );
  drawRanges();

  live({
    place: facts,
    signal,
    periodMs: 5000,
    load: (either) => get("/api/cluster", {}, { signal: either }),
    draw: (cluster) => drawFacts(cluster, head.summary),
  });
  const refresh = live({
    place: busiest,
    signal,
    periodMs: 2000,
    load: (either) => get("/api/throughput", { seconds }, { signal: either }),
    draw(throughput) {
      picture.draw({ throughput, seconds });
      return drawBusiest(throughput.topics ?? {});
    },
  });
  events.watch(() => {
    listed.set(events.items);
    picture.draw({ events: events.items });
  });

  return {
    update(next) {
      seconds = Number(next.seconds) || DEFAULT_SECONDS;
      drawRanges();
      refresh();
    },
  };
}

/** Throughput above, events below, on one time axis: what changed and why stand under each other. */
class Picture {
  #shown = { throughput: { items: [] }, events: [], seconds: DEFAULT_SECONDS };

  constructor() {
    const onPoint = (atMs) => [this.bytes, this.messages, this.lanes].forEach((plot) => plot.cross(atMs));
    this.bytes = new TimePlot({
      title: "Bytes per second",
      series: [
        { name: "in", field: "bytes_in_per_s", area: true },
        { name: "out", field: "bytes_out_per_s", look: "second" },
      ],
      format: bytesPerSecond,
      axisFormat: bytes,
      heightPx: 170,
      timeLabels: false,
      onPoint,
    });
    this.messages = new TimePlot({
      title: "Messages per second",
      series: [{ name: "in", field: "messages_per_s", area: true }],
      format: perSecond,
      axisFormat: short,
      heightPx: 90,
      timeLabels: false,
      onPoint,
    });
    this.lanes = new EventLanes();
    this.elements = [this.bytes.element, this.messages.element, this.lanes.element];
  }

  /** What is new of throughput, events and range; the rest stays as it was. */
  draw(changes) {
    Object.assign(this.#shown, changes);
    const {
      throughput: { items, interval_ms: intervalMs },
      events,
      seconds,
    } = this.#shown;
    const untilMs = Math.max(items.at(-1)?.at_ms ?? 0, Date.now() - 2 * (intervalMs ?? 1000));
    const range = { fromMs: untilMs - seconds * 1000, untilMs };
    const points = items.filter((point) => point.at_ms >= range.fromMs);
    const measured = points.some((point) => point.bytes_in_per_s != null);
    this.bytes.element.hidden = points.length > 0 && !measured; // a cluster that is not Culver does not report bytes
    this.bytes.set({ ...range, points });
    this.messages.set({ ...range, points });
    this.lanes.set({ ...range, events });
  }
}

function drawFacts(cluster, summary) {
  const { counts } = cluster;
  show(
    summary,
    `${cluster.software} at `,
    h("span", { class: "mono" }, cluster.bootstrap),
    `, cluster ${cluster.cluster_id ?? "unnamed"}`,
  );
  const trouble = (counts.under_replicated ?? 0) + (counts.offline ?? 0);
  return figures([
    {
      label: "Brokers",
      amount: link("/console/brokers", count(counts.brokers)),
      note: brokersNote(cluster),
      bad: counts.brokers === 0 || counts.brokers_down > 0,
    },
    {
      label: "Topics",
      amount: link("/console/topics", count(counts.topics)),
      note: `${count(counts.internal_topics)} internal`,
    },
    { label: "Partitions", amount: count(counts.partitions), note: trouble ? "see health" : "all served" },
    { label: "Groups", amount: link("/console/groups", count(counts.groups)) },
    {
      label: "Health",
      amount: trouble ? count(trouble) : "good",
      note: trouble
        ? link(
            `/console/topics?health=${counts.offline ? "offline" : "under_replicated"}&internal=1`,
            counts.offline ? `partitions, ${count(counts.offline)} offline` : "partitions under-replicated",
          )
        : "all replicas in sync",
      bad: trouble > 0,
    },
  ]);
}

function brokersNote({ controller_id: controller, counts }) {
  const led = controller === null ? "no controller" : `controller ${controller}`;
  return counts.brokers_down > 0 ? `${count(counts.brokers_down)} down, ${led}` : led;
}

function drawBusiest(topics) {
  const rows = Object.entries(topics).filter(([, rate]) => rate > 0);
  if (!rows.length)
    return empty(
      "Nothing is being written",
      "Topics show here while messages arrive.",
      "culver produce orders hello",
    );
  const most = Math.max(...rows.map(([, rate]) => rate));
  return h(
    "table",
    { "aria-label": "Busiest topics" },
    h(
      "thead",
      {},
      h("tr", {}, h("th", { scope: "col" }, "Topic"), h("th", { scope: "col", class: "number" }, "Messages")),
    ),
    h(
      "tbody",
      {},
      rows.map(([name, rate]) =>
        h(
          "tr",
          {},
          h("td", { class: "name" }, link(path`/console/topics/${name}`, name)),
          h("td", {}, bar(rate, most, perSecond)),
        ),
      ),
    ),
  );
}
