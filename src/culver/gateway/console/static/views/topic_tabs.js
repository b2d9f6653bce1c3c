// The pages of one topic, as tabs.

import { path } from "../api.js";
import { tabs } from "../parts/page.js";

export function topicTabs(topic, current) {
  const base = path`/console/topics/${topic}`;
  return tabs("Pages of the topic", [
    ["Partitions", base, current === "partitions"],
    ["Messages", `${base}/messages`, current === "messages"],
    ["Configuration", `${base}?tab=configuration`, current === "configuration"],
    ["Groups", `${base}?tab=groups`, current === "groups"],
  ]);
}
