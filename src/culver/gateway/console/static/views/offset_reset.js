// Moves the offsets of a group: first a table of before and after, then, by a second click, exactly that.

import { path, post } from "../api.js";
import { h, settled, show } from "../dom.js";
import { count, plural, toLocalInput } from "../format.js";
import { openDialog } from "../parts/dialog.js";
import { notice } from "../parts/notice.js";
import { field, select } from "../parts/page.js";
import { table } from "../parts/table.js";

const WAYS = [
  ["earliest", "The beginning"],
  ["latest", "The end"],
  ["time", "A time"],
  ["offset", "An offset"],
  ["shift", "Forward or back by"],
];
const HOUR_MS = 3_600_000;

export function resetDialog(group, onApplied) {
  const to = select(WAYS, "earliest", { "aria-label": "Move to" });
  const moment = h("input", { type: "datetime-local", step: 1, value: toLocalInput(Date.now() - HOUR_MS) });
  const offset = h("input", { type: "number", min: 0, value: 0 });
  const shift = h("input", { type: "number", value: -10 });
  const topic = select([["", "All topics"], ...group.topics.map((each) => [each.topic, each.topic])], "");
  const argument = h("div");
  const preview = h("div", { class: "reset-preview", "aria-live": "polite" });
  let previewed = null;
  let asked = null;

  function question() {
    return {
      to: to.value,
      ...(to.value === "time" && { time: new Date(moment.value).toISOString() }),
      ...(to.value === "offset" && { offset: Number(offset.value) }),
      ...(to.value === "shift" && { shift: Number(shift.value) }),
      ...(topic.value && { topics: [topic.value] }),
    };
  }

  async function look() {
    asked?.abort();
    asked = new AbortController();
    const { signal } = asked;
    previewed = null;
    main.disabled = true;
    try {
      const answer = await post(
        path`/api/groups/${group.group}/offsets`,
        { ...question(), dry_run: true },
        { signal },
      );
      previewed = answer;
      show(preview, drawPreview(answer));
      main.disabled = !answer.possible || !changesOf(answer).length;
    } catch (error) {
      if (!signal.aborted)
        show(
          preview,
          h("p", { class: "complaint" }, [error.message, error.remedy].filter(Boolean).join(" ")),
        );
    }
  }

  /** What was previewed is sent partition by partition, so that nothing else can be stored than what was seen. */
  async function apply() {
    const partitions = changesOf(previewed).map((row) => ({
      topic: row.topic,
      partition: row.partition,
      offset: row.after,
    }));
    const answer = await post(path`/api/groups/${group.group}/offsets`, {
      to: "offset",
      partitions,
      dry_run: false,
    });
    const failed = answer.offsets.filter((row) => row.error);
    onApplied();
    if (failed.length)
      throw new Error(`${plural(failed.length, "partition")} could not be moved: ${failed[0].error}`);
    notice(`${plural(partitions.length, "offset")} of ${group.group} moved.`);
  }

  function drawArgument() {
    show(
      argument,
      {
        time: field("Time", moment, "Local time"),
        offset: field("Offset", offset, "In every partition"),
        shift: field("By", shift, "Negative: back, to read again"),
      }[to.value],
    );
  }

  const { main, dialog } = openDialog({
    title: `Reset offsets of ${group.group}`,
    action: "Apply",
    act: apply,
    wide: true,
    body: [h("div", { class: "row" }, field("Move to", to), argument, field("Topic", topic)), preview],
  });
  const lookSoon = settled(look, 250);
  to.addEventListener("change", () => {
    drawArgument();
    look();
  });
  topic.addEventListener("change", look);
  for (const input of [moment, offset, shift]) input.addEventListener("input", lookSoon);
  dialog.addEventListener("close", () => asked?.abort());
  drawArgument();
  look();
}

const changesOf = (answer) =>
  answer.offsets.filter((row) => row.after !== null && row.after !== row.before && !row.error);

function drawPreview(answer) {
  const columns = [
    { title: "Topic", look: "name", cell: (row) => row.topic },
    { title: "Partition", number: true, cell: (row) => count(row.partition) },
    { title: "Now", number: true, cell: (row) => count(row.before) },
    {
      title: "After",
      number: true,
      cell: (row) =>
        h(
          "span",
          { class: row.after === row.before ? "" : "changed" },
          count(row.after),
          row.clamped &&
            h(
              "span",
              { class: "warn", title: "The offset asked for does not exist; this is the nearest one" },
              " *",
            ),
        ),
    },
    { title: "Change", number: true, cell: (row) => changeOf(row) },
    { title: "Lag after", number: true, cell: (row) => count(row.lag_after) },
  ];
  const again = answer.records_again > 0 && `${plural(answer.records_again, "message")} will be read again`;
  const skipped =
    answer.records_skipped > 0 && `${plural(answer.records_skipped, "message")} will be skipped`;
  return [
    !answer.possible && h("p", { class: "banner bad" }, answer.reason),
    h("p", {}, [again, skipped].filter(Boolean).join(", ") || "Nothing would change", "."),
    table({ label: "Before and after", columns, rows: answer.offsets }),
    answer.offsets.some((row) => row.clamped) &&
      h("p", { class: "soft" }, "* moved to the nearest offset that exists"),
  ];
}

function changeOf(row) {
  if (row.error) return h("span", { class: "bad" }, row.error);
  if (!row.change) return h("span", { class: "faint" }, "–");
  return `${row.change > 0 ? "+" : "−"}${count(Math.abs(row.change))}`;
}
