// The message browser: seek by offset and time, filter, follow live, produce, export.

import { get, path } from "../api.js";
import { h, show } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { button, heading } from "../parts/page.js";
import { empty, loading, problem } from "../parts/states.js";
import { PositionMap } from "../plots/position_map.js";
import { exportDialog } from "./export.js";
import { LiveTail } from "./live_tail.js";
import { message, placeOf } from "./message.js";
import { messageTools } from "./message_tools.js";
import { produceDialog } from "./produce.js";
import { topicTabs } from "./topic_tabs.js";

const LIMIT = 50;
const SHOWN_MAX = 500;
const SEEKING = ["partition", "from", "direction", "filter", "live", "isolation"];

export function messagesPage(context) {
  const browser = new Browser(context);
  browser.seek();
  browser.learnPartitions();
  return { update: (query) => browser.update(query) };
}

class Browser {
  #topic;
  #query;
  #setQuery;
  #signal;
  #asked = null;
  #partitionsCount = null;
  #tools;
  #tail;
  #seen = new Set();
  #list = h("div", { class: "records", role: "list", "aria-label": "Messages" });
  #above = h("div");
  #below = h("div");
  #shown = new Map();
  #partitions = [];
  #map = new PositionMap((partition, offset) =>
    this.#setQuery({ partition, from: `offset:${offset}`, live: null, open: null, direction: null }),
  );

  constructor({ root, params, query, signal, setQuery }) {
    this.#topic = params.topic;
    this.#query = query;
    this.#signal = signal;
    this.#setQuery = setQuery;
    const head = heading({
      title: this.#topic,
      crumbs: [["Topics", "/console/topics"]],
      actions: [
        button(
          "Produce",
          () => produceDialog(this.#topic, this.#partitionsCount, () => !this.#query.live && this.seek()),
          "main",
        ),
        button("Export", () => exportDialog(this.#topic, this.#query)),
      ],
    });
    this.#tools = messageTools(
      query,
      (changes) => setQuery({ open: null, ...changes }),
      () => this.seek(),
    );
    this.#tail = new LiveTail({
      onRecords: (records) => this.#arrive(records),
      onState: (state) => this.#showTail(state),
    });
    signal.addEventListener("abort", () => this.#tail.close(), { once: true });
    show(
      root,
      head.element,
      topicTabs(this.#topic, "messages"),
      this.#tools.element,
      this.#map.element,
      h("section", { "aria-label": "Messages" }, this.#above, this.#list, this.#below),
    );
  }

  update(query) {
    const same = SEEKING.every((name) => (query[name] ?? "") === (this.#query[name] ?? ""));
    this.#query = query;
    this.#tools.write(query);
    if (!same) this.seek();
  }

  /** Starts anew from what the address says. */
  async seek() {
    this.#asked?.abort();
    this.#tail.close();
    this.#seen.clear();
    this.#shown.clear();
    show(this.#above);
    show(this.#below, loading());
    show(this.#list);
    // The stream is opened first, so that nothing falls between what was there and what arrives.
    if (this.#query.live) this.#tail.open(this.#topic, this.#query);
    const { partition, from, direction, filter, isolation, live } = this.#query;
    await this.#load({ partition, filter, isolation, ...(!live && { from, direction }), limit: LIMIT });
  }

  async #load(query) {
    this.#asked = new AbortController();
    const signal = AbortSignal.any([this.#signal, this.#asked.signal]);
    try {
      const answer = await get(path`/api/topics/${this.#topic}/records`, query, { signal });
      this.#add(answer);
    } catch (error) {
      if (!signal.aborted)
        show(
          this.#below,
          problem(error, () => this.#load(query)),
        );
    }
  }

  /** An answer names only the partitions that were asked for; the choice is among all. */
  async learnPartitions() {
    try {
      const topic = await get(path`/api/topics/${this.#topic}`, {}, { signal: this.#signal });
      this.#partitionsCount = topic.partitions_count;
      this.#tools.setPartitions(topic.partitions_count);
    } catch {
      // What is wrong is told where the messages should be.
    }
  }

  #add(answer) {
    for (const record of answer.records) {
      if (!this.#seen.has(placeOf(record))) this.#list.append(this.#element(record, false));
    }
    this.#partitions = answer.partitions;
    this.#map.set(this.#partitions, this.#shown);
    show(this.#below, this.#footer(answer));
  }

  #element(record, isNew) {
    const place = placeOf(record);
    this.#seen.add(place);
    const [first, last] = this.#shown.get(record.partition) ?? [record.offset, record.offset];
    this.#shown.set(record.partition, [Math.min(first, record.offset), Math.max(last, record.offset)]);
    return message(this.#topic, record, {
      isNew,
      open: this.#query.open === place,
      onToggle: (open) => this.#setQuery({ open }, { replace: true }),
    });
  }

  #arrive(records) {
    const fresh = records.filter((record) => !this.#seen.has(placeOf(record)));
    this.#list.prepend(...fresh.map((record) => this.#element(record, true)).reverse());
    while (this.#list.childElementCount > SHOWN_MAX) {
      this.#seen.delete(this.#list.lastElementChild.dataset.place);
      this.#list.lastElementChild.remove();
    }
    if (fresh.length) this.#below.querySelector(".state")?.remove();
    this.#partitions = this.#partitions.map((each) => ({
      ...each,
      latest: Math.max(each.latest, (this.#shown.get(each.partition)?.[1] ?? -1) + 1),
    }));
    this.#map.set(this.#partitions, this.#shown);
  }

  #showTail({ connected, paused, waiting, skipped, problem: trouble }) {
    if (!this.#query.live) return;
    const text =
      trouble ||
      (!connected
        ? "Connecting…"
        : paused
          ? `Paused, ${plural(waiting, "message")} waiting`
          : "Following: messages appear as they arrive");
    show(
      this.#above,
      h(
        "div",
        { class: "tail-bar", role: "status" },
        h("span", { class: connected && !trouble ? "pulse" : "pulse lost" }, text),
        skipped > 0 &&
          h("span", { class: "warn" }, `${count(skipped)} left out: they came faster than can be shown`),
        h("span", { class: "spring" }),
        button(paused ? "Resume" : "Pause", () => this.#tail.setPaused(!paused), "small"),
      ),
    );
  }

  #footer(answer) {
    const nothing = !this.#list.childElementCount;
    const problems = answer.errors.map((error) =>
      h("p", { class: "banner bad" }, `Partition ${error.partition}: ${error.message}`),
    );
    const backward = answer.direction === "backward";
    if (nothing && answer.complete) return [problems, this.#nothing(answer)];
    const searched = this.#query.filter
      ? `Searched ${plural(answer.scanned, "message")}, ${bytes(answer.scanned_bytes)}, in ${count(answer.took_ms)} ms.`
      : "";
    const more = answer.cursor && !answer.complete;
    return [
      problems,
      h(
        "div",
        { class: "more" },
        more &&
          button(backward ? "Older messages" : "Newer messages", () =>
            this.#load({
              cursor: answer.cursor,
              filter: this.#query.filter,
              isolation: this.#query.isolation,
              limit: LIMIT,
            }),
          ),
        answer.stopped === "work" && "The search stopped to stay quick; go on with the button.",
        !more && (backward ? "This is the oldest message there is." : "This is the newest message there is."),
        !more &&
          !backward &&
          answer.cursor &&
          button(
            "Look again",
            () => this.#load({ cursor: answer.cursor, filter: this.#query.filter, limit: LIMIT }),
            "small",
          ),
        h("span", {}, searched),
      ),
    ];
  }

  #nothing(answer) {
    if (this.#query.filter)
      return empty(
        "No message matches",
        `Searched ${plural(answer.scanned, "message")}. Words must all be in key, value or a header; .field=value looks into JSON.`,
      );
    if (answer.partitions.some((each) => each.latest > each.earliest))
      return empty(
        "No message there",
        "The topic has messages, but none at that place. Choose another offset or time.",
      );
    return empty(
      "No messages yet",
      "Write one with Produce above, or:",
      `culver produce ${this.#topic} hello`,
    );
  }
}
