// Events as a list, the newest first; a burst of the same kind is one line that unfolds.

import { path } from "../api.js";
import { h, link, show } from "../dom.js";
import { count, time } from "../format.js";
import { looks } from "../plots/event_lanes.js";
import { empty } from "./states.js";

const LINES_MAX = 40;
const BURST_MS = 2000;
const BURST_MIN = 4;

export class EventList {
  element = h("div");
  #open = new Set();

  /** events: oldest first, as the gateway gives them. */
  set(events) {
    if (!events.length) {
      const what = "Elections, changes of the in-sync replicas, brokers coming and going stand here.";
      show(this.element, empty("Nothing has happened yet", what));
      return;
    }
    const lines = bursts(events).slice(-LINES_MAX).reverse();
    show(
      this.element,
      h(
        "ol",
        { class: "events" },
        lines.map((burst) => this.#line(burst)),
      ),
    );
  }

  #line(burst) {
    const [event] = burst;
    return h(
      "li",
      {},
      time(event.at_ms),
      h("span", { class: `kind ${looks[event.kind] ?? ""}` }, event.kind.replaceAll("_", " ")),
      h(
        "div",
        { class: "what" },
        burst.length < BURST_MIN ? burst.map((each) => h("div", {}, textOf(each))) : this.#folded(burst),
      ),
    );
  }

  #folded(burst) {
    const details = h(
      "details",
      { open: this.#open.has(burst[0].id) },
      h("summary", {}, `${count(burst.length)} of them: `, burst[0].text, " …"),
      burst.map((event) => h("div", {}, textOf(event))),
    );
    details.addEventListener("toggle", () => this.#open[details.open ? "add" : "delete"](burst[0].id));
    return details;
  }
}

/** Events of one kind that follow each other closely. */
function bursts(events) {
  const found = [];
  for (const event of events) {
    const last = found.at(-1);
    if (last && last[0].kind === event.kind && event.at_ms - last[0].at_ms < BURST_MS) last.push(event);
    else found.push([event]);
  }
  return found;
}

function textOf({ kind, text, topic }) {
  if (!topic || kind === "topic_deleted") return text;
  return link(path`/console/topics/${topic}`, text, { class: "quiet" });
}
