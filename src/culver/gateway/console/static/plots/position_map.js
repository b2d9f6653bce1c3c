// Where in the partitions the shown messages lie; a click on a track goes there.

import { append, h, svg } from "../dom.js";
import { count } from "../format.js";
import { Frame, MARGIN } from "./frame.js";
import { linear } from "./scale.js";

const TRACK_PX = 16;
const BAR_PX = 8;
const TRACKS_MAX = 12;
const LABEL_PX = 130;

/** onSeek(partition, offset). set(partitions, shown): [{partition, earliest, latest}], Map of partition to [first, last]. */
export class PositionMap {
  #frame = null;
  #onSeek;
  #tracks = [];
  #shown = new Map();
  element = h("div", { class: "position-map" });

  constructor(onSeek) {
    this.#onSeek = onSeek;
  }

  set(partitions, shown) {
    const tracks = partitions.filter(({ earliest, latest }) => latest > earliest).slice(0, TRACKS_MAX);
    if (tracks.length !== this.#tracks.length) this.#remake(tracks.length);
    this.#tracks = tracks;
    this.#shown = shown;
    this.#draw();
  }

  #remake(number) {
    this.#frame = null;
    this.element.replaceChildren();
    if (number === 0) return;
    const heightPx = number * TRACK_PX + 4;
    this.#frame = new Frame({ heightPx, timeLabels: false, redraw: () => this.#draw() });
    this.#frame.svg.addEventListener("pointerleave", () => this.#frame.hideTip());
    this.element.append(this.#frame.element);
  }

  #draw() {
    if (!this.#frame?.begin()) return;
    this.#tracks.forEach((track, index) => this.#drawTrack(track, 2 + index * TRACK_PX + TRACK_PX / 2));
    const words = this.#tracks.map(
      ({ partition, earliest, latest }) => `${partition}: ${count(earliest)} to ${count(latest)}`,
    );
    this.#frame.describe(`Offsets of the partitions: ${words.join("; ")}`);
  }

  #drawTrack({ partition, earliest, latest }, middle) {
    const right = this.#frame.widthPx - LABEL_PX;
    const x = linear(earliest, latest, MARGIN.left, right);
    const top = middle - BAR_PX / 2;
    const range = this.#shown.get(partition);
    const track = svg("rect", {
      class: "track",
      x: MARGIN.left,
      y: top,
      width: right - MARGIN.left,
      height: BAR_PX,
      rx: 1,
    });
    const hit = svg("rect", {
      class: "bar-hit seek",
      x: MARGIN.left,
      y: middle - TRACK_PX / 2,
      width: right - MARGIN.left,
      height: TRACK_PX,
    });
    const offsetAt = (event) => {
      const share = (event.offsetX - MARGIN.left) / (right - MARGIN.left);
      return Math.min(latest - 1, Math.max(earliest, Math.floor(earliest + share * (latest - earliest))));
    };
    hit.addEventListener("pointermove", (event) =>
      this.#frame.showTip(
        event.offsetX,
        middle + 6,
        `partition ${partition}, offset ${count(offsetAt(event))}`,
      ),
    );
    hit.addEventListener("click", (event) => this.#onSeek(partition, offsetAt(event)));
    append(this.#frame.svg, [
      svg("text", { x: MARGIN.left - 8, y: middle + 4, "text-anchor": "end" }, `p${partition}`),
      track,
      range &&
        svg("rect", {
          class: "bar",
          x: x(range[0]),
          y: top,
          width: Math.max(3, x(range[1] + 1) - x(range[0])),
          height: BAR_PX,
          rx: 1,
        }),
      svg("text", { x: right + 8, y: middle + 4 }, `${count(earliest)} – ${count(latest)}`),
      hit,
    ]);
  }
}
