// The list of topics: searched, sorted and paged by the gateway, so that a thousand cost no more than ten.

import { get, path, withQuery } from "../api.js";
import { h, link, show } from "../dom.js";
import { bytes, count, perSecond, plural } from "../format.js";
import { listPage } from "../parts/list_page.js";
import { button, heading, mark, select } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { createTopic } from "./topic_dialogs.js";

const HEALTH = [
  ["", "Any health"],
  ["under_replicated", "Under-replicated"],
  ["offline", "Offline"],
];

export function topicsPage(context) {
  const head = heading({
    title: "Topics",
    actions: [button("New topic", () => createTopic(context), "main")],
  });
  return listPage(context, {
    head,
    noun: "topics",
    filters: [
      { name: "health", make: (value) => select(HEALTH, value, { "aria-label": "Health" }) },
      { name: "internal", tick: "Internal topics" },
    ],
    sort: "name",
    load: ({ q, offset, limit, sort, health, internal }, signal) =>
      get("/api/topics", { q, offset, limit, sort, health, internal: Boolean(internal) }, { signal }),
    columns: [
      { title: "Topic", look: "name", sort: "name", cell: nameOf },
      { title: "Partitions", number: true, sort: "partitions", cell: (topic) => count(topic.partitions) },
      { title: "Replicas", number: true, narrow: false, cell: (topic) => count(topic.replicas) },
      { title: "State", narrow: false, sort: "under_replicated", cell: stateOf },
      { title: "Messages", number: true, sort: "messages", cell: (topic) => count(topic.messages) },
      { title: "Rate", number: true, sort: "rate", cell: (topic) => perSecond(topic.messages_per_s) },
      { title: "Size", number: true, narrow: false, sort: "size", cell: (topic) => bytes(topic.bytes) },
      {
        title: "",
        narrow: false,
        cell: (topic) =>
          link(path`/console/topics/${topic.name}/messages`, "messages", {
            "aria-label": `Messages of ${topic.name}`,
          }),
      },
    ],
    summarise({ totals }) {
      if (!totals) return;
      const trouble = totals.offline || totals.under_replicated;
      show(
        head.summary,
        `${plural(totals.topics, "topic")} (${count(totals.internal)} internal), ${plural(totals.partitions, "partition")}`,
        trouble
          ? h(
              "a",
              {
                class: "bad",
                href: withQuery("/console/topics", {
                  health: totals.offline ? "offline" : "under_replicated",
                  internal: 1,
                }),
              },
              `, ${count(trouble)} not in sync`,
            )
          : ", all in sync",
      );
    },
    nothing: ({ q, health }) =>
      q || health
        ? empty("No topic matches", "Try fewer letters, or include internal topics.")
        : empty(
            "No topics yet",
            "A topic comes into being when somebody writes to it, or by hand.",
            "culver topic create orders --partitions 3\nculver produce orders hello",
          ),
  });
}

function nameOf(topic) {
  return [link(path`/console/topics/${topic.name}`, topic.name), topic.internal && [" ", mark("internal")]];
}

export function stateOf(topic) {
  if (topic.offline) return mark(`${count(topic.offline)} offline`, "bad");
  if (topic.under_replicated) return mark(`${count(topic.under_replicated)} under-replicated`, "warn");
  return mark("in sync", "good");
}
