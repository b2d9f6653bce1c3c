// Spark queries that report here: rows per second and lag, batch by batch.

import { get, path, remove } from "../api.js";
import { h, show } from "../dom.js";
import { ago, count, duration, perSecond, plural, short } from "../format.js";
import { live } from "../parts/live.js";
import { noticeOf } from "../parts/notice.js";
import { button, figures, heading, mark } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { TimePlot } from "../plots/time_plot.js";

const LOOKS = { running: "good", ended: "idle", failed: "bad", silent: "warn" };
const KINDS = { logs: "log aggregation", transform: "transform", archive: "archive", query: "query" };
const LEAST_RANGE_MS = 60_000;

export function pipelinesPage({ root, signal }) {
  const head = heading({ title: "Pipelines" });
  const place = h("div");
  const shown = new Map();
  show(root, head.element, place);

  const refresh = live({
    place,
    signal,
    periodMs: 3000,
    load: (either) => get("/api/pipelines", {}, { signal: either }),
    draw({ items }) {
      const running = items.filter((item) => item.state === "running").length;
      show(
        head.summary,
        items.length ? `${plural(items.length, "pipeline")}, ${count(running)} running` : "",
      );
      if (!items.length) {
        shown.clear();
        return empty(
          "No pipeline has reported yet",
          "Pipelines that run through Spark report each batch to the cluster.",
          "culver pipeline logs logs --store ./culver-logs",
        );
      }
      // Plots are kept from one answer to the next, so that the pointer and the focus keep their place.
      const names = items.map((item) => item.name);
      const same = names.length === shown.size && names.every((name) => shown.has(name));
      if (!same) {
        shown.clear();
        for (const item of items) shown.set(item.name, new Pipeline(() => refresh()));
        show(
          place,
          names.map((name) => shown.get(name).element),
        );
      }
      for (const item of items) shown.get(item.name).draw(item);
      return undefined;
    },
  });
}

class Pipeline {
  #head = h("div", { class: "block-head" });
  #facts = h("div");
  #trouble = h("div");
  #onChange;

  constructor(onChange) {
    this.#onChange = onChange;
    this.rows = new TimePlot({
      title: "Rows per second",
      heightPx: 150,
      format: perSecond,
      axisFormat: short,
      series: [
        { name: "processed", field: "processed_rows_per_s", area: true },
        { name: "arriving", field: "input_rows_per_s", look: "second" },
      ],
    });
    this.lag = new TimePlot({
      title: "Lag in messages",
      heightPx: 150,
      format: count,
      axisFormat: short,
      series: [{ name: "lag", field: "lag", area: true }],
    });
    this.element = h(
      "section",
      { class: "block spaced" },
      this.#head,
      this.#trouble,
      this.#facts,
      h("div", { class: "columns" }, this.rows.element, this.lag.element),
    );
  }

  draw(item) {
    const forget = item.state !== "running" && button("Forget", () => this.#forget(item.name), "small");
    show(
      this.#head,
      h("h2", {}, item.name),
      mark(item.state, LOOKS[item.state]),
      h(
        "span",
        { class: "soft" },
        [KINDS[item.kind] ?? item.kind, item.topics].filter(Boolean).join(": "),
        item.target && ` → ${item.target}`,
      ),
      h("span", { class: "spring" }),
      h("span", { class: "soft" }, "last report ", ago(item.at_ms)),
      forget,
    );
    show(this.#trouble, item.error && h("p", { class: "banner bad" }, item.error));
    show(
      this.#facts,
      figures([
        {
          label: "Processed",
          amount: perSecond(item.processed_rows_per_s),
          note: `arriving ${perSecond(item.input_rows_per_s)}`,
        },
        { label: "Lag", amount: count(item.lag), note: "messages" },
        {
          label: "Batches",
          amount: count(item.batches),
          note: item.batch_duration_ms === null ? "" : `${duration(item.batch_duration_ms)} each`,
        },
        { label: "Rows", amount: short(item.rows), note: "in all" },
      ]),
    );
    const untilMs = item.history.at(-1)?.at_ms ?? item.at_ms;
    const fromMs = Math.min(item.history[0]?.at_ms ?? untilMs, untilMs - LEAST_RANGE_MS);
    for (const plot of [this.rows, this.lag]) plot.set({ fromMs, untilMs, points: item.history });
  }

  async #forget(name) {
    try {
      await remove(path`/api/pipelines/${name}`);
      this.#onChange();
    } catch (error) {
      noticeOf(error);
    }
  }
}
