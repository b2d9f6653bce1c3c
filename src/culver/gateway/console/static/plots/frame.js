// What all plots share: a figure that knows its width, time and value axes, and a tip that follows the pointer.

import { append, h, show, svg } from "../dom.js";
import { roundTicks, linear, tickLabel, timeTicks } from "./scale.js";

export const MARGIN = { left: 62, right: 12, top: 8, bottom: 22 };

/** A figure whose drawing is redone, with its width in pixels, whenever that changes. */
export class Frame {
  constructor({ heightPx, redraw, caption, timeLabels = true }) {
    this.heightPx = heightPx;
    this.timeLabels = timeLabels;
    this.floorPx = heightPx - (timeLabels ? MARGIN.bottom : 2);
    this.widthPx = 0;
    this.svg = svg("svg", { height: heightPx, "aria-hidden": "true" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("figure", { class: "plot", role: "img", "aria-label": "" }, caption, this.svg, this.tip);
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width === this.widthPx || width === 0) return;
      this.widthPx = width;
      redraw();
    }).observe(this.element);
  }

  describe(text) {
    this.element.setAttribute("aria-label", text);
  }

  /** Clears the drawing; false while there is no room to draw in. */
  begin() {
    if (this.widthPx === 0) return false;
    this.svg.setAttribute("viewBox", `0 0 ${this.widthPx} ${this.heightPx}`);
    show(this.svg);
    return true;
  }

  timeAxis(fromMs, untilMs) {
    const x = linear(fromMs, untilMs, MARGIN.left, this.widthPx - MARGIN.right);
    const floor = this.floorPx;
    if (!this.timeLabels) return x;
    const { ticks, step } = timeTicks(fromMs, untilMs, this.widthPx - MARGIN.left - MARGIN.right);
    for (const at of ticks) {
      const left = x(at);
      append(this.svg, [
        svg("line", { class: "base", x1: left, x2: left, y1: floor, y2: floor + 4 }),
        svg(
          "text",
          { x: left, y: floor + 16, "text-anchor": anchor(left, this.widthPx) },
          tickLabel(at, step),
        ),
      ]);
    }
    return x;
  }

  valueAxis(most, format) {
    const ticks = roundTicks(most, this.heightPx < 130 ? 2 : 4);
    const y = linear(0, ticks.at(-1), this.floorPx, MARGIN.top);
    for (const value of ticks) {
      const top = Math.round(y(value)) + 0.5;
      append(this.svg, [
        svg("line", {
          class: value === 0 ? "base" : "grid",
          x1: MARGIN.left,
          x2: this.widthPx - MARGIN.right,
          y1: top,
          y2: top,
        }),
        svg("text", { x: MARGIN.left - 8, y: top + 4, "text-anchor": "end" }, format(value)),
      ]);
    }
    return y;
  }

  /** A vertical line at a moment, or none. */
  cross(place, x, atMs) {
    const left = atMs === null ? null : x(atMs);
    show(
      place,
      left >= MARGIN.left &&
        svg("line", { class: "cross", x1: left, x2: left, y1: MARGIN.top, y2: this.floorPx }),
    );
  }

  note(text) {
    append(
      this.svg,
      svg(
        "text",
        { class: "no-data", x: this.widthPx / 2, y: this.heightPx / 2, "text-anchor": "middle" },
        text,
      ),
    );
  }

  /** Shows the tip beside a point of the drawing, on the side where there is room. */
  showTip(leftPx, topPx, ...content) {
    show(this.tip, content);
    this.tip.hidden = false;
    const width = this.tip.offsetWidth;
    const left = leftPx + 14 + width > this.widthPx ? Math.max(0, leftPx - 14 - width) : leftPx + 14;
    this.tip.style.transform = `translate(${left}px, ${this.svg.offsetTop ?? 0}px) translateY(${topPx}px)`;
  }

  hideTip() {
    this.tip.hidden = true;
  }
}

function anchor(left, width) {
  if (left > width - 34) return "end";
  return "middle";
}
