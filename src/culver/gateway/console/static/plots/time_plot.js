// Lines over time: one or two series, last values in the caption, values under the pointer or the arrow keys.

import { append, h, show, svg } from "../dom.js";
import { localTime, utc } from "../format.js";
import { Frame, MARGIN } from "./frame.js";

/**
 * series: [{name, field, look: "" | "second", area: bool}]; format: value -> text with unit; axisFormat: the same, shorter.
 * set({fromMs, untilMs, points}): points are objects with at_ms and the series' fields, oldest first; null is a gap.
 */
export class TimePlot {
  #frame;
  #series;
  #format;
  #axisFormat;
  #title;
  #data = null;
  #x = null;
  #y = null;
  #pointed = null;
  #cursor = svg("g", {});
  #keys;
  #onPoint;

  /** onPoint(atMs or null) is told what is pointed at, so that plots with the same time axis can show it too. */
  constructor({
    title,
    series,
    format,
    axisFormat = format,
    heightPx = 200,
    timeLabels,
    onPoint = () => undefined,
  }) {
    this.#series = series;
    this.#format = format;
    this.#axisFormat = axisFormat;
    this.#title = title;
    this.#onPoint = onPoint;
    this.#keys = h("span", { class: "plot-keys" });
    const caption = h(
      "figcaption",
      {},
      h("span", { class: "label" }, title),
      h("span", { class: "spring" }),
      this.#keys,
    );
    this.#frame = new Frame({ heightPx, caption, timeLabels, redraw: () => this.#draw() });
    this.element = this.#frame.element;
    this.element.tabIndex = 0;
    this.#frame.svg.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.#frame.svg.addEventListener("pointerleave", () => this.#leave());
    this.element.addEventListener("keydown", (event) => this.#step(event));
    this.element.addEventListener("blur", () => this.#leave());
  }

  set(data) {
    this.#data = data;
    this.#draw();
  }

  #draw() {
    const data = this.#data;
    if (!data || !this.#frame.begin()) return;
    const values = data.points.flatMap((point) => this.#series.map((series) => point[series.field] ?? 0));
    const most = values.reduce((left, right) => Math.max(left, right), 0);
    this.#y = this.#frame.valueAxis(most, this.#axisFormat);
    this.#x = this.#frame.timeAxis(data.fromMs, data.untilMs);
    if (!data.points.some((point) => this.#series.some((series) => point[series.field] != null)))
      this.#frame.note("No measurements yet");
    for (const series of this.#series) this.#drawSeries(series, data.points);
    append(this.#frame.svg, this.#cursor);
    this.#drawKeys(data.points);
    if (this.#pointed !== null) this.#mark(Math.min(this.#pointed, data.points.length - 1));
  }

  #drawSeries(series, points) {
    const floor = this.#frame.floorPx;
    for (const run of runs(points, series.field, this.#data.fromMs)) {
      const spots = run.map(
        (point) => `${this.#x(point.at_ms).toFixed(1)},${this.#y(point[series.field]).toFixed(1)}`,
      );
      const ends = [run[0], run.at(-1)].map((point) => this.#x(point.at_ms).toFixed(1));
      if (series.area) {
        append(
          this.#frame.svg,
          svg("path", {
            class: `area ${series.look ?? ""}`,
            d: `M${ends[0]},${floor}L${spots.join("L")}L${ends[1]},${floor}Z`,
          }),
        );
      }
      append(
        this.#frame.svg,
        svg("path", {
          class: `line ${series.look ?? ""}`,
          d: `M${spots.join("L")}${run.length === 1 ? "h0.1" : ""}`,
        }),
      );
    }
  }

  #drawKeys(points) {
    const last = (field) => points.findLast((point) => point[field] != null)?.[field];
    show(
      this.#keys,
      this.#series.map((series) =>
        h(
          "span",
          { class: `key ${series.look ?? ""}` },
          h("i"),
          series.name,
          h("b", {}, this.#format(last(series.field))),
        ),
      ),
    );
    const now = this.#series.map((series) => `${series.name} ${this.#format(last(series.field))}`).join(", ");
    this.#frame.describe(
      `${this.#title}, from ${localTime(this.#data.fromMs)} to ${localTime(this.#data.untilMs)}: now ${now}`,
    );
  }

  #point(offsetX) {
    if (!this.#data?.points.length || !this.#x) return;
    const distances = this.#data.points.map((point) => Math.abs(this.#x(point.at_ms) - offsetX));
    this.#mark(distances.indexOf(Math.min(...distances)));
  }

  #step(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const points = this.#data?.points;
    if (!step || !points?.length) return;
    event.preventDefault();
    const from = this.#pointed ?? (step < 0 ? points.length : -1);
    this.#mark(Math.max(0, Math.min(points.length - 1, from + step)));
  }

  #mark(index) {
    const point = this.#data.points[index];
    if (!point) return;
    this.#pointed = index;
    const left = this.#x(point.at_ms);
    const dots = this.#series
      .filter((series) => point[series.field] != null)
      .map((series) =>
        svg("circle", {
          class: `dot ${series.look ?? ""}`,
          cx: left,
          cy: this.#y(point[series.field]),
          r: 4,
        }),
      );
    this.#frame.cross(this.#cursor, this.#x, point.at_ms);
    append(this.#cursor, dots);
    this.#onPoint(point.at_ms);
    this.#frame.showTip(
      left,
      MARGIN.top,
      h("div", { class: "when", title: utc(point.at_ms) }, localTime(point.at_ms)),
      this.#series.map((series) =>
        h("div", { class: "pair" }, series.name, h("b", {}, this.#format(point[series.field]))),
      ),
    );
  }

  /** The line alone: another plot is pointed at. */
  cross(atMs) {
    if (this.#x && this.#pointed === null) this.#frame.cross(this.#cursor, this.#x, atMs);
  }

  #leave() {
    this.#pointed = null;
    this.#onPoint(null);
    show(this.#cursor);
    this.#frame.hideTip();
  }
}

/** The stretches of points in which the field has a value. */
function runs(points, field, fromMs) {
  const found = [];
  let run = [];
  for (const point of points) {
    if (point[field] != null && point.at_ms >= fromMs) run.push(point);
    else if (run.length) {
      found.push(run);
      run = [];
    }
  }
  if (run.length) found.push(run);
  return found;
}
