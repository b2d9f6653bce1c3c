// Webhooks: who is called for which topics, how it goes, pausing and resuming, and new ones.

import { get, path, post, remove } from "../api.js";
import { h, link, show } from "../dom.js";
import { count } from "../format.js";
import { confirmByName, openDialog } from "../parts/dialog.js";
import { live } from "../parts/live.js";
import { notice, noticeOf } from "../parts/notice.js";
import { button, heading, mark } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { keepPlace, table } from "../parts/table.js";
import { createWebhook } from "./webhook_dialog.js";

export function webhooksPage({ root, signal }) {
  const place = h("div");
  const head = heading({
    title: "Webhooks",
    actions: [button("New webhook", () => createWebhook(() => refresh()), "main")],
  });
  show(root, head.element, place);
  const refresh = live({
    place,
    signal,
    load: (either) => get("/api/webhooks", {}, { signal: either }),
    draw(answer) {
      const items = answer.items ?? answer;
      show(
        head.summary,
        items.length
          ? `${count(items.length)} in all, ${count(items.filter((hook) => hook.paused).length)} paused`
          : "",
      );
      if (!items.length)
        return empty(
          "No webhooks",
          "A webhook calls an address for every message of its topics, in order, until it is acknowledged.",
        );
      keepPlace(place, table({ label: "Webhooks", rows: items, columns: columns(() => refresh()) }));
      return undefined;
    },
  });
}

function columns(onChange) {
  return [
    {
      title: "Webhook",
      look: "name",
      cell: (hook) => button(hook.name, () => details(hook), "link", { "data-open": true }),
    },
    { title: "Calls", look: "name", cell: (hook) => h("span", { class: "mono" }, hook.url) },
    {
      title: "Topics",
      look: "name",
      cell: (hook) =>
        hook.topics.map((topic, index) => [index > 0 && ", ", link(path`/console/topics/${topic}`, topic)]),
    },
    { title: "State", cell: stateOf },
    {
      title: "Group",
      narrow: false,
      look: "name",
      cell: (hook) => link(path`/console/groups/${hook.group}`, hook.group, { title: "Its lag" }),
    },
    {
      title: "",
      number: true,
      cell: (hook) => [
        button(hook.paused ? "Resume" : "Pause", () => turn(hook, onChange), "small", {
          "aria-label": `${hook.paused ? "Resume" : "Pause"} ${hook.name}`,
        }),
        " ",
        button("Delete", () => deleteWebhook(hook, onChange), "small danger", {
          "aria-label": `Delete ${hook.name}`,
        }),
      ],
    },
  ];
}

function stateOf(hook) {
  if (hook.paused)
    return h(
      "span",
      {},
      mark("paused", "warn"),
      hook.paused_because && h("span", { class: "soft" }, ` ${hook.paused_because}`),
    );
  return mark("delivering", "good");
}

async function turn(hook, onChange) {
  try {
    await post(
      hook.paused ? path`/api/webhooks/${hook.name}/resume` : path`/api/webhooks/${hook.name}/pause`,
    );
    notice(hook.paused ? `${hook.name} goes on.` : `${hook.name} is paused; its messages wait.`);
    onChange();
  } catch (error) {
    noticeOf(error);
  }
}

function details(hook) {
  openDialog({
    title: hook.name,
    wide: true,
    body: h("pre", { class: "payload" }, JSON.stringify(hook, null, 2)),
  });
}

function deleteWebhook(hook, onChange) {
  confirmByName({
    title: `Delete ${hook.name}`,
    text: "No more calls are made. Its group keeps its offsets until they expire.",
    name: hook.name,
    action: "Delete the webhook",
    async act() {
      await remove(path`/api/webhooks/${hook.name}`);
      notice(`Webhook ${hook.name} has been deleted.`);
      onChange();
    },
  });
}
