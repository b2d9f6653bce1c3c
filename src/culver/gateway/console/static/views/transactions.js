// Transactions: the open ones first, the oldest on top; one that hangs can be aborted.

import { get, path, post } from "../api.js";
import { h, show } from "../dom.js";
import { count, duration, time } from "../format.js";
import { confirmByName } from "../parts/dialog.js";
import { listPage } from "../parts/list_page.js";
import { notice } from "../parts/notice.js";
import { button, heading, mark, select } from "../parts/page.js";
import { empty } from "../parts/states.js";

const STATES = [
  ["", "Any state"],
  ...["Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty", "Dead"].map(
    (state) => [state, state],
  ),
];
const SHOWN_MAX = 6;

export function transactionsPage(context) {
  const head = heading({ title: "Transactions" });
  const list = listPage(context, {
    head,
    noun: "transactions",
    filters: [{ name: "state", make: (value) => select(STATES, value, { "aria-label": "State" }) }],
    load: ({ q, offset, limit, state }, signal) =>
      get("/api/transactions", { q, offset, limit, state }, { signal }),
    columns: [
      {
        title: "Transactional id",
        look: "name",
        cell: (row) => h("span", { class: "mono" }, row.transactional_id),
      },
      { title: "State", cell: stateOf },
      {
        title: "Open for",
        number: true,
        cell: (row) => (row.state === "Ongoing" ? duration(row.age_ms) : "–"),
      },
      {
        title: "Began",
        narrow: false,
        cell: (row) => (row.state === "Ongoing" ? time(row.started_at_ms) : "–"),
      },
      { title: "Timeout", number: true, narrow: false, cell: (row) => duration(row.timeout_ms) },
      { title: "Partitions", look: "name", cell: partitionsOf },
      {
        title: "Producer",
        number: true,
        narrow: false,
        cell: (row) => `${row.producer_id} / ${row.producer_epoch}`,
      },
      {
        title: "",
        number: true,
        cell: (row) =>
          row.state === "Ongoing" &&
          button("Abort", () => abort(row, () => list.refresh()), "small danger", {
            "data-open": true,
            "aria-label": `Abort ${row.transactional_id}`,
          }),
      },
    ],
    summarise({ states }) {
      const open = states?.Ongoing ?? 0;
      show(
        head.summary,
        open ? `${count(open)} open` : "None open",
        open > 0 && ": readers at read_committed wait for the oldest of them",
      );
    },
    nothing: ({ q, state }) =>
      q || state
        ? empty("No transaction matches", "Try fewer letters, or any state.")
        : empty(
            "No transactions",
            "A producer with a transactional id shows here, and stays for a while after its last transaction.",
            "culver txn --help",
          ),
  });
  return list;
}

function stateOf(row) {
  if (row.error) return h("span", { class: "bad" }, row.error);
  if (row.overdue) return mark(`${row.state}, overdue`, "bad");
  const look = { Ongoing: "warn", CompleteCommit: "good" }[row.state] ?? "idle";
  return mark(row.state, look);
}

function partitionsOf({ partitions }) {
  if (!partitions.length) return h("span", { class: "faint" }, "none");
  const words = partitions.slice(0, SHOWN_MAX).map(({ topic, partition }) => `${topic} ${partition}`);
  return (
    words.join(", ") +
    (partitions.length > SHOWN_MAX ? ` and ${count(partitions.length - SHOWN_MAX)} more` : "")
  );
}

function abort(row, onDone) {
  confirmByName({
    title: "Abort a transaction",
    text: "What it has written so far will never be seen by readers at read_committed. Its producer is told when it goes on.",
    name: row.transactional_id,
    action: "Abort it",
    async act() {
      await post(path`/api/transactions/${row.transactional_id}/abort`);
      notice(`The transaction of ${row.transactional_id} has been aborted.`);
      onDone();
    },
  });
}
