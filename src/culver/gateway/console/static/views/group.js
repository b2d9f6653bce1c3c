// One group: its lag per partition, its members, and its offsets to be moved.

import { get, path } from "../api.js";
import { h, link, show } from "../dom.js";
import { count, plural, short } from "../format.js";
import { deleteByName } from "../parts/deletion.js";
import { live } from "../parts/live.js";
import { block, button, figures, heading } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { keepPlace, table } from "../parts/table.js";
import { bar } from "../plots/bar.js";
import { TimePlot } from "../plots/time_plot.js";
import { resetDialog } from "./offset_reset.js";

const ROWS_MAX = 500;
const HISTORY_MAX = 1200;
const LEAST_RANGE_MS = 60_000;

export function groupPage({ root, params, signal, go }) {
  const name = params.group;
  let latest = null;
  const reset = button("Reset offsets", () => resetDialog(latest, () => refresh()), "main", {
    disabled: true,
  });
  const head = heading({
    title: name,
    crumbs: [["Groups", "/console/groups"]],
    actions: [reset, button("Delete", () => deleteGroup(name, go), "danger")],
  });
  const facts = h("div");
  const place = h("div");
  const history = new LagHistory();
  show(root, head.element, facts, history.element, place);

  const refresh = live({
    place,
    signal,
    periodMs: 3000,
    load: (either) => get(path`/api/groups/${name}`, {}, { signal: either }),
    draw(group) {
      latest = group;
      reset.disabled = false;
      show(facts, drawFacts(group));
      history.add(group.lag);
      keepPlace(
        place,
        block("Lag by partition", drawPartitions(group)),
        h("div", { class: "block spaced" }, h("h2", {}, "Members"), drawMembers(group)),
      );
    },
  });
}

/** The lag since the page was opened: whether the group catches up is seen sooner than read. */
class LagHistory {
  #points = [];
  #plot = new TimePlot({
    title: "Lag since this page was opened",
    series: [{ name: "lag", field: "lag", area: true }],
    format: count,
    axisFormat: short,
    heightPx: 110,
  });
  element = this.#plot.element;

  add(lag) {
    this.#points = [...this.#points, { at_ms: Date.now(), lag }].slice(-HISTORY_MAX);
    const untilMs = this.#points.at(-1).at_ms;
    const fromMs = Math.min(this.#points[0].at_ms, untilMs - LEAST_RANGE_MS);
    this.#plot.set({ fromMs, untilMs, points: this.#points });
  }
}

function drawFacts(group) {
  return figures([
    { label: "Lag", amount: count(group.lag), note: "messages not yet read" },
    { label: "State", amount: group.state, bad: group.state === "Dead" },
    { label: "Members", amount: count(group.members.length) },
    {
      label: "Partitions",
      amount: count(group.partitions.length),
      note: plural(group.topics.length, "topic"),
    },
    {
      label: "Type",
      amount: group.type,
      note: [group.protocol, `coordinator ${group.coordinator ?? "unknown"}`].filter(Boolean).join(", "),
    },
  ]);
}

function drawPartitions(group) {
  if (!group.partitions.length)
    return empty("No offsets", "The group has committed nothing and has no partitions assigned.");
  const most = group.partitions.reduce((left, row) => Math.max(left, row.lag ?? 0), 0);
  const rows = atMost(group.partitions);
  const columns = [
    { title: "Topic", look: "name", cell: (row) => link(path`/console/topics/${row.topic}`, row.topic) },
    { title: "Partition", number: true, cell: (row) => count(row.partition) },
    {
      title: "Lag",
      cell: (row) => (row.error ? h("span", { class: "bad" }, row.error) : bar(row.lag, most)),
    },
    { title: "Committed", number: true, cell: (row) => committedLink(row) },
    { title: "Latest", number: true, cell: (row) => count(row.latest) },
    {
      title: "Read by",
      narrow: false,
      look: "name",
      cell: (row) => row.client_id ?? h("span", { class: "faint" }, "nobody"),
    },
  ];
  const rest = group.partitions.length - rows.length;
  return [
    table({ label: "Lag by partition", columns, rows }),
    rest > 0 &&
      h(
        "p",
        { class: "soft" },
        `The ${count(rows.length)} with the most lag; ${count(rest)} more are not shown.`,
      ),
  ];
}

/** All of them in order, or, of very many, those with the most lag. */
function atMost(partitions) {
  if (partitions.length <= ROWS_MAX) return partitions;
  return [...partitions].sort((left, right) => (right.lag ?? 0) - (left.lag ?? 0)).slice(0, ROWS_MAX);
}

/** To the first message that the group has not read. */
function committedLink(row) {
  if (row.committed === null) return h("span", { class: "faint" }, "none");
  const query = new URLSearchParams({ partition: row.partition, from: `offset:${row.committed}` });
  return link(`${path`/console/topics/${row.topic}/messages`}?${query}`, count(row.committed), {
    title: "Messages from there",
  });
}

function drawMembers(group) {
  if (!group.members.length)
    return empty(
      "Nobody reads",
      "The group keeps its offsets until members come back, or the offsets expire.",
      `culver consume ${group.topics[0]?.topic ?? "orders"} --group ${group.group} --follow`,
    );
  const columns = [
    {
      title: "Client",
      look: "name",
      cell: (member) => [
        member.client_id,
        member.instance_id && h("span", { class: "soft" }, ` (${member.instance_id})`),
      ],
    },
    { title: "Host", cell: (member) => h("span", { class: "mono" }, member.host) },
    { title: "Partitions", look: "name", cell: (member) => assignment(member) },
    {
      title: "Member",
      narrow: false,
      look: "name",
      cell: (member) => h("span", { class: "mono faint" }, member.member_id),
    },
  ];
  return table({ label: "Members", columns, rows: group.members });
}

function assignment({ partitions, partitions_count: total }) {
  const byTopic = new Map();
  for (const { topic, partition } of partitions)
    byTopic.set(topic, [...(byTopic.get(topic) ?? []), partition]);
  const words = [...byTopic].map(([topic, numbers]) => `${topic} ${numbers.join(", ")}`);
  const rest = (total ?? partitions.length) - partitions.length;
  return words.length
    ? words.join("; ") + (rest > 0 ? ` and ${count(rest)} more` : "")
    : h("span", { class: "faint" }, "none");
}

function deleteGroup(name, go) {
  deleteByName({
    what: "group",
    name,
    address: path`/api/groups/${name}`,
    text: "The group's committed offsets are forgotten; a consumer that comes back starts where its own settings say. A group with members cannot be deleted.",
    done: () => go("/console/groups"),
  });
}
