// Makes a webhook; its secret is shown once.

import { post } from "../api.js";
import { h } from "../dom.js";
import { openDialog } from "../parts/dialog.js";
import { notice } from "../parts/notice.js";
import { field, select } from "../parts/page.js";

const FORMATS = [
  ["json", "JSON, with key, headers and offset"],
  ["raw", "The value as it is"],
];
const STARTS = [
  ["latest", "With the next message"],
  ["earliest", "With the oldest message"],
];

export function createWebhook(onCreated) {
  const text = (attributes) =>
    h("input", { class: "mono", autocomplete: "off", spellcheck: "false", ...attributes });
  const name = text({ required: true, pattern: "[a-zA-Z0-9_\\-][a-zA-Z0-9._\\-]*" });
  const url = text({ type: "url", required: true, placeholder: "https://example.org/hook" });
  const topics = text({ required: true, placeholder: "orders, payments" });
  const secret = text({ placeholder: "made for you" });
  const start = select(STARTS, "latest");
  const format = select(FORMATS, "json");
  // What is left empty is not sent: the gateway has defaults, and it alone.
  const number = (least) => h("input", { type: "number", min: least, max: 1000, placeholder: "default" });
  const concurrency = number(1);
  const tries = number(0);
  openDialog({
    title: "New webhook",
    action: "Create",
    body: [
      h("div", { class: "row" }, field("Name", name), field("Topics", topics, "Separated by commas")),
      field(
        "Address to call",
        url,
        "Private and loopback addresses only where the gateway's configuration allows them.",
      ),
      h("div", { class: "row" }, field("Begin", start), field("Format", format)),
      h(
        "div",
        { class: "row" },
        field("Calls at a time", concurrency),
        field("Tries", tries, "0: for ever; then the dead-letter topic"),
        field("Secret", secret, "Signs each call"),
      ),
    ],
    async act() {
      const made = await post("/api/webhooks", {
        name: name.value.trim(),
        url: url.value.trim(),
        topics: topics.value
          .split(",")
          .map((topic) => topic.trim())
          .filter(Boolean),
        from: start.value,
        format: format.value,
        ...(concurrency.value && { concurrency: Number(concurrency.value) }),
        ...(tries.value && { retry: { tries: Number(tries.value) } }),
        ...(secret.value && { secret: secret.value }),
      });
      onCreated();
      if (made.secret) showSecret(made.webhook.name, made.secret);
      else notice(`Webhook ${name.value} has been made.`);
    },
  });
}

function showSecret(name, secret) {
  openDialog({
    title: `Webhook ${name} has been made`,
    body: [
      h("p", {}, "This is its secret. It is shown this once; the receiver checks signatures with it."),
      h("pre", { class: "payload" }, secret),
    ],
  });
}
