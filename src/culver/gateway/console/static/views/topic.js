// One topic: its partitions, its configuration, the groups that read it.

import { get, path } from "../api.js";
import { h, link, show } from "../dom.js";
import { bytes, count, perSecond } from "../format.js";
import { live } from "../parts/live.js";
import { button, figures, heading, mark } from "../parts/page.js";
import { replicas } from "../parts/replicas.js";
import { empty } from "../parts/states.js";
import { keepPlace, table } from "../parts/table.js";
import { bar } from "../plots/bar.js";
import { stateMark } from "./groups.js";
import { configurationTable } from "./topic_configuration.js";
import { addPartitions, deleteTopic } from "./topic_dialogs.js";
import { topicTabs } from "./topic_tabs.js";
import { produceDialog } from "./produce.js";

const ROWS_MAX = 1000;

export function topicPage(context) {
  const { root, params, query, signal } = context;
  const name = params.topic;
  const tab = ["configuration", "groups"].includes(query.tab) ? query.tab : "partitions";
  let latest = null;
  const grow = button("Add partitions", () => addPartitions(latest, () => refresh()), "", { disabled: true });
  const head = heading({
    title: name,
    crumbs: [["Topics", "/console/topics"]],
    actions: [
      button("Produce", () => produceDialog(name, latest?.partitions_count), "main"),
      grow,
      button("Delete", () => deleteTopic(name, context), "danger"),
    ],
  });
  const facts = h("div");
  const place = h("div");
  show(root, head.element, facts, topicTabs(name, tab), place);

  const refresh = live({
    place,
    signal,
    periodMs: tab === "configuration" ? 30_000 : 4000,
    async load(either) {
      const topic = await get(path`/api/topics/${name}`, {}, { signal: either });
      const groups =
        tab === "groups" ? await get(path`/api/topics/${name}/groups`, {}, { signal: either }) : null;
      return { topic, groups };
    },
    draw({ topic, groups }) {
      latest = topic;
      grow.disabled = false;
      show(facts, drawFacts(topic));
      if (tab === "configuration") return configurationTable(topic, () => refresh());
      if (tab === "groups") return drawGroups(groups, name);
      keepPlace(place, drawPartitions(topic.partitions, name));
      return undefined;
    },
  });
}

function drawFacts(topic) {
  const behind = topic.partitions.filter((partition) => partition.under_replicated).length;
  const headless = topic.partitions.filter((partition) => partition.leader === null).length;
  return figures([
    { label: "Messages", amount: count(topic.messages) },
    { label: "Rate", amount: perSecond(topic.messages_per_s) },
    { label: "Size", amount: bytes(topic.bytes), note: "all replicas" },
    {
      label: "Partitions",
      amount: count(topic.partitions_count),
      note: `${count(topic.replicas)}× replicated`,
    },
    {
      label: "Health",
      amount: headless || behind ? count(headless || behind) : "good",
      note: headless ? "without a leader" : behind ? "under-replicated" : "all in sync",
      bad: headless + behind > 0,
    },
  ]);
}

function drawPartitions(partitions, name) {
  const most = partitions.reduce((left, partition) => Math.max(left, partition.messages ?? 0), 0);
  const rest = partitions.length - ROWS_MAX;
  const columns = [
    {
      title: "Partition",
      cell: (partition) =>
        link(
          `${path`/console/topics/${name}/messages`}?partition=${partition.partition}`,
          partition.partition,
          { "aria-label": `Messages of partition ${partition.partition}` },
        ),
    },
    { title: "Replicas", cell: replicas },
    { title: "State", cell: stateOf },
    { title: "Earliest", number: true, cell: (partition) => count(partition.earliest) },
    { title: "Latest", number: true, cell: (partition) => count(partition.latest) },
    { title: "Messages", cell: (partition) => bar(partition.messages, most) },
    { title: "Size", number: true, narrow: false, cell: (partition) => bytes(partition.bytes) },
    { title: "Epoch", number: true, narrow: false, cell: (partition) => count(partition.leader_epoch) },
  ];
  return [
    table({ label: "Partitions", columns, rows: partitions.slice(0, ROWS_MAX) }),
    rest > 0 && h("p", { class: "soft" }, `${count(rest)} more are not shown.`),
  ];
}

function stateOf(partition) {
  if (partition.leader === null) return mark("no leader", "bad");
  if (partition.error) return h("span", { class: "bad" }, partition.error);
  if (partition.under_replicated)
    return mark(`${partition.isr.length} of ${partition.replicas.length} in sync`, "warn");
  return mark("in sync", "good");
}

function drawGroups({ items, looked_at: lookedAt, complete }, name) {
  if (!items.length)
    return empty(
      "No group reads this topic",
      "A group shows here once it has committed an offset.",
      `culver consume ${name} --group billing`,
    );
  const most = Math.max(...items.map((group) => group.lag ?? 0));
  const columns = [
    {
      title: "Group",
      look: "name",
      cell: (group) => link(path`/console/groups/${group.group}`, group.group),
    },
    { title: "State", cell: (group) => stateMark(group.state) },
    { title: "Lag here", cell: (group) => bar(group.lag, most) },
  ];
  return [
    table({ label: "Groups", columns, rows: items }),
    !complete && h("p", { class: "soft" }, `Only ${count(lookedAt)} groups were looked at; there are more.`),
  ];
}
