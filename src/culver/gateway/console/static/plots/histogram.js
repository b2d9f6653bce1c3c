// Counts per stretch of time as stacked bars; a click narrows the range to one bar's.

import { append, h, show, svg } from "../dom.js";
import { count, localTime, short } from "../format.js";
import { Frame, MARGIN } from "./frame.js";

/** parts: [{name, look, of: (bucket) => number}], drawn from the bottom up; onPick(fromMs, untilMs). */
export class Histogram {
  #frame;
  #title;
  #parts;
  #onPick;
  #data = null;
  #keys = h("span", { class: "plot-keys" });

  constructor({ title, parts, onPick, heightPx = 130 }) {
    this.#title = title;
    this.#parts = parts;
    this.#onPick = onPick;
    const caption = h(
      "figcaption",
      {},
      h("span", { class: "label" }, title),
      h("span", { class: "spring" }),
      this.#keys,
    );
    this.#frame = new Frame({ heightPx, caption, redraw: () => this.#draw() });
    this.element = this.#frame.element;
    this.#frame.svg.addEventListener("pointerleave", () => this.#frame.hideTip());
  }

  /** buckets: [{at_ms, count, …}] of bucketMs each. */
  set({ fromMs, untilMs, bucketMs, buckets }) {
    this.#data = { fromMs, untilMs, bucketMs, buckets };
    this.#draw();
  }

  #draw() {
    if (!this.#data || !this.#frame.begin()) return;
    const { fromMs, untilMs, bucketMs, buckets } = this.#data;
    const most = buckets.reduce((left, bucket) => Math.max(left, bucket.count), 0);
    const y = this.#frame.valueAxis(Math.max(most, 1), short);
    const x = this.#frame.timeAxis(fromMs, untilMs);
    for (const bucket of buckets) this.#drawBar(bucket, x, y, bucketMs);
    const total = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
    this.#frame.describe(
      `${this.#title}: ${count(total)} from ${localTime(fromMs)} to ${localTime(untilMs)}, at most ${count(most)} in one bar`,
    );
    show(
      this.#keys,
      this.#parts.map((part) => {
        const sum = buckets.reduce((all, bucket) => all + part.of(bucket), 0);
        return h("span", { class: `key ${part.look}` }, h("i"), part.name, h("b", {}, short(sum)));
      }),
    );
  }

  #drawBar(bucket, x, y, bucketMs) {
    const left = x(bucket.at_ms);
    const room = Math.max(1, x(bucket.at_ms + bucketMs) - left);
    const width = Math.max(1, room - (room > 4 ? 1.5 : 0));
    let below = 0;
    for (const part of this.#parts) {
      const amount = part.of(bucket);
      if (!amount) continue;
      const top = y(below + amount);
      append(
        this.#frame.svg,
        svg("rect", {
          class: `bar ${part.look}`,
          x: left,
          y: top,
          width,
          height: Math.max(1, y(below) - top),
        }),
      );
      below += amount;
    }
    const hit = svg("rect", {
      class: "bar-hit",
      x: left,
      y: MARGIN.top,
      width: room,
      height: y(0) - MARGIN.top,
    });
    hit.addEventListener("pointerenter", () => this.#tell(bucket, left, bucketMs));
    hit.addEventListener("click", () => this.#onPick(bucket.at_ms, bucket.at_ms + bucketMs));
    append(this.#frame.svg, hit);
  }

  #tell(bucket, left, bucketMs) {
    this.#frame.showTip(
      left,
      MARGIN.top,
      h("div", { class: "when" }, `${localTime(bucket.at_ms)} – ${localTime(bucket.at_ms + bucketMs)}`),
      this.#parts.map((part) => h("div", { class: "pair" }, part.name, h("b", {}, count(part.of(bucket))))),
    );
  }
}
