// The list of consumer groups: searched and paged by the gateway; lag is asked for the groups of the page only.

import { get, path } from "../api.js";
import { link, show } from "../dom.js";
import { count, plural } from "../format.js";
import { listPage } from "../parts/list_page.js";
import { heading, mark, select } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { bar } from "../plots/bar.js";

const STATES = [
  ["", "Any state"],
  ["Stable", "Stable"],
  ["Empty", "Empty"],
  ["PreparingRebalance,CompletingRebalance,Assigning,Reconciling", "Rebalancing"],
  ["Dead", "Dead"],
];
const TYPES = [
  ["", "Any type"],
  ["classic", "Classic"],
  ["consumer", "Consumer"],
  ["share", "Share"],
];

export function groupsPage(context) {
  const head = heading({ title: "Groups" });
  let most = 0;
  return listPage(context, {
    head,
    noun: "groups",
    sort: "name",
    filters: [
      { name: "state", make: (value) => select(STATES, value, { "aria-label": "State" }) },
      { name: "type", make: (value) => select(TYPES, value, { "aria-label": "Type" }) },
    ],
    load: ({ q, offset, limit, sort, state, type }, signal) =>
      get("/api/groups", { q, offset, limit, sort, state, type }, { signal }),
    columns: [
      {
        title: "Group",
        look: "name",
        sort: "name",
        cell: (group) => link(path`/console/groups/${group.group}`, group.group),
      },
      { title: "State", cell: (group) => stateMark(group.state) },
      { title: "Type", narrow: false, cell: (group) => group.type },
      { title: "Members", number: true, cell: (group) => count(group.members) },
      { title: "Topics", narrow: false, look: "name", cell: (group) => (group.topics ?? []).join(", ") },
      { title: "Partitions", number: true, narrow: false, cell: (group) => count(group.partitions) },
      { title: "Lag", cell: (group) => bar(group.lag, most) },
    ],
    summarise({ totals, states, items }) {
      most = Math.max(0, ...items.map((group) => group.lag ?? 0));
      const words = Object.entries(states ?? {}).map(
        ([state, number]) => `${count(number)} ${state.toLowerCase()}`,
      );
      show(head.summary, plural(totals?.groups ?? 0, "group"), words.length > 0 && `: ${words.join(", ")}`);
    },
    nothing: ({ q, state, type }) =>
      q || state || type
        ? empty("No group matches", "Try fewer letters, or any state.")
        : empty(
            "No groups yet",
            "A group comes into being when a consumer joins it.",
            "culver consume orders --group billing --follow",
          ),
  });
}

export function stateMark(state) {
  const look = { Stable: "good", Empty: "idle", Dead: "bad" }[state] ?? "warn";
  return mark(state, look);
}
