// One webhook: how it is set up, how its calls went, a sample call, and its end.

import { path, post } from "../api.js";
import { h, link, show } from "../dom.js";
import { ago, count, duration } from "../format.js";
import { deleteByName } from "../parts/deletion.js";
import { openDialog } from "../parts/dialog.js";
import { button } from "../parts/page.js";

export function webhookDetails({ webhook, status }, onChange) {
  const outcome = h("div", { "aria-live": "polite" });
  const { dialog } = openDialog({
    title: webhook.name,
    wide: true,
    body: [
      h(
        "dl",
        { class: "shortcuts" },
        facts(webhook, status).flatMap(([name, value]) => [
          h("dt", { class: "soft" }, name),
          h("dd", {}, value),
        ]),
      ),
      status.last_error &&
        h(
          "p",
          { class: "banner bad" },
          status.last_error,
          " ",
          status.last_error_at_ms && ago(status.last_error_at_ms),
        ),
      h(
        "div",
        { class: "toolbar" },
        button("Send a sample", () => sample(webhook.name, outcome)),
        h("span", { class: "spring" }),
        button(
          "Delete",
          () => {
            dialog.close();
            deleteWebhook(webhook.name, onChange);
          },
          "danger",
        ),
      ),
      outcome,
    ],
  });
}

function facts(webhook, status) {
  const { retry } = webhook;
  const tries = retry.tries === 0 ? "for ever" : `${count(retry.tries)} times`;
  return [
    ["Calls", h("code", {}, webhook.url)],
    ["Topics", webhook.topics.join(", ")],
    ["Group", link(path`/console/groups/${webhook.group}`, webhook.group)],
    ["Format", webhook.format === "raw" ? "the value as it is" : `JSON, ${count(webhook.batch)} at a time`],
    ["Calls at once", `${count(webhook.concurrency)}, each given ${duration(webhook.timeout_ms)}`],
    [
      "Tries",
      `${tries}, ${duration(retry.first_ms)} to ${duration(retry.max_ms)} apart; then to ${webhook.dead_letter_topic}`,
    ],
    ["Signed with", webhook.secrets.join(", ")],
    [
      "Delivered",
      `${count(status.records_delivered)} records; ${count(status.calls_failed)} calls failed, ${count(status.dead_letters)} dead letters`,
    ],
    [
      "Last success",
      status.last_success_at_ms ? ago(status.last_success_at_ms) : "none since this gateway runs it",
    ],
  ];
}

async function sample(name, place) {
  show(place, h("p", { class: "soft" }, "Calling…"));
  try {
    const answer = await post(path`/api/webhooks/${name}/test`);
    const text = answer.acknowledged
      ? `Acknowledged with ${answer.status} after ${duration(answer.duration_ms)}.`
      : `Not acknowledged: ${answer.error || `the answer was ${answer.status}`}, after ${duration(answer.duration_ms)}.`;
    show(place, h("p", { class: answer.acknowledged ? "banner calm" : "banner bad" }, text));
  } catch (error) {
    show(place, h("p", { class: "complaint" }, error.message));
  }
}

function deleteWebhook(name, onChange) {
  deleteByName({
    what: "webhook",
    name,
    address: path`/api/webhooks/${name}`,
    text: "No more calls are made. Its group keeps its offsets until they expire.",
    done: onChange,
  });
}
