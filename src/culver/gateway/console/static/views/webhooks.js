// Webhooks: who is called for which topics, how it goes, pausing and resuming, and new ones.

import { get, path, post } from "../api.js";
import { h, link, show } from "../dom.js";
import { count, duration } from "../format.js";
import { live } from "../parts/live.js";
import { notice, noticeOf } from "../parts/notice.js";
import { button, heading, mark } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { keepPlace, table } from "../parts/table.js";
import { bar } from "../plots/bar.js";
import { webhookDetails } from "./webhook_details.js";
import { createWebhook } from "./webhook_dialog.js";

export function webhooksPage({ root, signal }) {
  const place = h("div");
  const make = button("New webhook", () => createWebhook(() => refresh()), "main");
  const head = heading({ title: "Webhooks", actions: [make] });
  show(root, head.element, place);
  const refresh = live({
    place,
    signal,
    periodMs: 3000,
    load: (either) => get("/api/webhooks", {}, { signal: either }),
    draw({ webhooks }) {
      const paused = webhooks.filter(({ webhook }) => webhook.paused).length;
      show(head.summary, webhooks.length > 0 && `${count(webhooks.length)} in all, ${count(paused)} paused`);
      if (!webhooks.length) {
        return empty(
          "No webhooks",
          "A webhook calls an address for every message of its topics, in order for each key, until the call is acknowledged.",
        );
      }
      const most = Math.max(0, ...webhooks.map(({ status }) => status.lag ?? 0));
      keepPlace(place, table({ label: "Webhooks", rows: webhooks, columns: columns(most, () => refresh()) }));
      return undefined;
    },
  });
}

function columns(most, onChange) {
  return [
    {
      title: "Webhook",
      look: "name",
      cell: (row) =>
        button(row.webhook.name, () => webhookDetails(row, onChange), "link", { "data-open": true }),
    },
    {
      title: "Calls",
      narrow: false,
      look: "name",
      cell: ({ webhook }) => h("span", { class: "mono" }, webhook.url),
    },
    { title: "Topics", narrow: false, look: "name", cell: ({ webhook }) => topicsOf(webhook) },
    { title: "State", cell: stateOf },
    { title: "Lag", cell: ({ status }) => bar(status.lag, most) },
    { title: "Delivered", number: true, cell: ({ status }) => count(status.records_delivered) },
    { title: "Failed", number: true, narrow: false, cell: ({ status }) => count(status.calls_failed) },
    { title: "Dead letters", number: true, narrow: false, cell: ({ status }) => deadLetters(status) },
    {
      title: "",
      number: true,
      cell: ({ webhook }) =>
        button(webhook.paused ? "Resume" : "Pause", () => turn(webhook, onChange), "small", {
          "aria-label": `${webhook.paused ? "Resume" : "Pause"} ${webhook.name}`,
        }),
    },
  ];
}

function topicsOf({ topics }) {
  return topics.map((topic, index) => [index > 0 && ", ", link(path`/console/topics/${topic}`, topic)]);
}

function deadLetters({ dead_letters: number }) {
  return number ? h("span", { class: "bad" }, count(number)) : count(number);
}

export function stateOf({ webhook, status }) {
  if (webhook.paused) {
    return [
      mark("paused", "warn"),
      webhook.paused_because && h("span", { class: "soft" }, ` ${webhook.paused_because}`),
    ];
  }
  if (status.receiver_down) return [mark("receiver down", "bad"), nextTry(status)];
  if (status.waiting)
    return [mark(`${count(status.waiting)} waiting to be tried again`, "warn"), nextTry(status)];
  if (!status.running) return mark("not run by this gateway");
  return mark(status.last_success_at_ms ? "delivering" : "ready", "good");
}

function nextTry({ next_retry_at_ms: atMs }) {
  if (!atMs) return null;
  return h("span", { class: "soft" }, ` next in ${duration(Math.max(0, atMs - Date.now()))}`);
}

async function turn(webhook, onChange) {
  try {
    await post(
      webhook.paused ? path`/api/webhooks/${webhook.name}/resume` : path`/api/webhooks/${webhook.name}/pause`,
    );
    notice(webhook.paused ? `${webhook.name} goes on.` : `${webhook.name} is paused; its messages wait.`);
    onChange();
  } catch (error) {
    noticeOf(error);
  }
}
