// When things happened: one lane for each kind of event, on the same time axis as the plot above it.

import { append, h, svg } from "../dom.js";
import { localTime } from "../format.js";
import { Frame, MARGIN } from "./frame.js";

const LANE_PX = 22;
const TOP_PX = 6;
const MERGE_PX = 5;

const LANES = [
  { name: "Elections", kinds: ["election", "leaderless", "controller"] },
  { name: "ISR", kinds: ["isr"] },
  { name: "Brokers", kinds: ["broker_up", "broker_down", "log_failed"] },
  { name: "Topics", kinds: null },
];

export const looks = {
  election: "election",
  controller: "election",
  leaderless: "trouble",
  broker_down: "trouble",
  log_failed: "trouble",
};

export class EventLanes {
  #frame;
  #data = null;
  #x = null;
  #cursor = svg("g", {});

  constructor() {
    this.#frame = new Frame({
      heightPx: TOP_PX + LANES.length * LANE_PX + MARGIN.bottom,
      redraw: () => this.#draw(),
      caption: h("figcaption", {}, h("span", { class: "label" }, "Events")),
    });
    this.element = this.#frame.element;
  }

  /** events: [{at_ms, kind, text}], any order. */
  set({ fromMs, untilMs, events }) {
    this.#data = { fromMs, untilMs, events };
    this.#draw();
  }

  #draw() {
    if (!this.#data || !this.#frame.begin()) return;
    const { fromMs, untilMs } = this.#data;
    const events = this.#data.events.filter((event) => event.at_ms >= fromMs && event.at_ms <= untilMs);
    const x = this.#frame.timeAxis(fromMs, untilMs);
    this.#x = x;
    LANES.forEach((lane, index) => this.#drawLane(lane, TOP_PX + index * LANE_PX + LANE_PX / 2, events, x));
    append(this.#frame.svg, this.#cursor);
    this.#frame.describe(
      `${events.length} events from ${localTime(fromMs)} to ${localTime(untilMs)}; they are listed below.`,
    );
  }

  #drawLane(lane, middle, events, x) {
    append(this.#frame.svg, [
      svg("text", { x: MARGIN.left - 8, y: middle + 4, "text-anchor": "end" }, lane.name),
      svg("line", {
        class: "lane",
        x1: MARGIN.left,
        x2: this.#frame.widthPx - MARGIN.right,
        y1: middle,
        y2: middle,
      }),
    ]);
    for (const bunch of bunches(
      events.filter((event) => laneOf(event) === lane),
      x,
    )) {
      const left = x(bunch[0].at_ms);
      const tall = Math.min(LANE_PX - 4, 8 + 3 * Math.log2(bunch.length + 1));
      const look =
        bunch.map((event) => looks[event.kind]).find((found) => found === "trouble") ??
        looks[bunch[0].kind] ??
        "";
      const mark = svg("rect", {
        class: `event ${look}`,
        x: left - 2.5,
        y: middle - tall / 2,
        width: 5,
        height: tall,
        rx: 1,
      });
      mark.addEventListener("pointerenter", () => this.#tell(bunch, left, middle));
      mark.addEventListener("pointerleave", () => this.#frame.hideTip());
      append(this.#frame.svg, mark);
    }
  }

  /** The line at a moment that is pointed at in a plot above. */
  cross(atMs) {
    if (this.#x) this.#frame.cross(this.#cursor, this.#x, atMs);
  }

  #tell(bunch, left, middle) {
    const shown = bunch.slice(0, 6);
    this.#frame.showTip(
      left,
      middle + 8,
      h("div", { class: "when" }, localTime(bunch[0].at_ms)),
      shown.map((event) => h("div", {}, event.text)),
      bunch.length > shown.length
        ? h("div", { class: "when" }, `and ${bunch.length - shown.length} more`)
        : null,
    );
  }
}

function laneOf(event) {
  return LANES.find((lane) => lane.kinds?.includes(event.kind)) ?? LANES.at(-1);
}

/** Events so close that their marks would cover each other become one taller mark. */
function bunches(events, x) {
  const found = [];
  for (const event of [...events].sort((left, right) => left.at_ms - right.at_ms)) {
    const last = found.at(-1);
    if (last && x(event.at_ms) - x(last[0].at_ms) < MERGE_PX) last.push(event);
    else found.push([event]);
  }
  return found;
}
