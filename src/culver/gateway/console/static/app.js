// The console put together: sections, pages, keys, theme and the state of the connection.

import { get } from "./api.js";
import { connection, lostSinceMs } from "./connection.js";
import { h, show, svg } from "./dom.js";
import { localTime, plural } from "./format.js";
import { jumpField } from "./jump.js";
import { listenToKeys, showHelp } from "./keyboard.js";
import { poll } from "./polling.js";
import { Router } from "./router.js";
import { brokersPage } from "./views/brokers.js";
import { groupPage } from "./views/group.js";
import { groupsPage } from "./views/groups.js";
import { messagesPage } from "./views/messages.js";
import { overviewPage } from "./views/overview.js";
import { pipelinesPage } from "./views/pipelines.js";
import { searchPage } from "./views/search.js";
import { topicPage } from "./views/topic.js";
import { topicsPage } from "./views/topics.js";
import { transactionsPage } from "./views/transactions.js";
import { unknownPage } from "./views/unknown.js";
import { webhooksPage } from "./views/webhooks.js";

const SECTIONS = [
  { name: "Overview", href: "/console/", key: "o" },
  { name: "Brokers", href: "/console/brokers", key: "b" },
  { name: "Topics", href: "/console/topics", key: "t" },
  { name: "Groups", href: "/console/groups", key: "g" },
  { name: "Transactions", href: "/console/transactions", key: "x" },
  { name: "Pipelines", href: "/console/pipelines", key: "p" },
  { name: "Webhooks", href: "/console/webhooks", key: "w" },
  { name: "Log search", href: "/console/search", key: "s" },
];

const ROUTES = [
  ["/", overviewPage],
  ["/console", overviewPage],
  ["/console/brokers", brokersPage],
  ["/console/topics", topicsPage],
  ["/console/topics/:topic", topicPage],
  ["/console/topics/:topic/messages", messagesPage],
  ["/console/groups", groupsPage],
  ["/console/groups/:group", groupPage],
  ["/console/transactions", transactionsPage],
  ["/console/pipelines", pipelinesPage],
  ["/console/webhooks", webhooksPage],
  ["/console/search", searchPage],
  ["*", unknownPage],
];

function showSection(pattern) {
  const links = SECTIONS.map(({ name, href }) => {
    const here = href === "/console/" ? pattern === "/" || pattern === "/console" : pattern.startsWith(href);
    return h("li", {}, h("a", { href, "aria-current": here ? "page" : null }, name));
  });
  show(document.getElementById("sections"), links);
  document.querySelector("#sections [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

const themeButton = document.getElementById("theme");

function drawThemeButton() {
  const dark = window.culverTheme.current() === "dark";
  const shape = dark
    ? svg("path", {
        d: "M12 7a5 5 0 1 0 0 10 5 5 0 0 0 0-10zM12 1v3M12 20v3M1 12h3M20 12h3M4.200 4.200l2.100 2.100M17.700 17.700l2.100 2.100M4.200 19.800l2.100-2.100M17.700 6.300l2.100-2.100",
      })
    : svg("path", { d: "M21 13A9 9 0 1 1 11 3a7 7 0 0 0 10 10z" });
  show(
    themeButton,
    svg(
      "svg",
      {
        viewBox: "0 0 24 24",
        fill: "none",
        stroke: "currentColor",
        "stroke-width": 2,
        "stroke-linecap": "round",
        "aria-hidden": "true",
      },
      shape,
    ),
  );
  themeButton.setAttribute("aria-label", dark ? "Switch to light" : "Switch to dark");
}

function toggleTheme() {
  window.culverTheme.toggle();
  drawThemeButton();
}

function firstOf(addresses) {
  const [first, ...others] = addresses.split(",");
  return others.length ? `${first} and ${others.length} more` : first;
}

function watchCluster() {
  const name = document.getElementById("cluster-name");
  poll(
    async (signal) => {
      const cluster = await get("/api/cluster", {}, { signal });
      const { brokers, brokers_down: down } = cluster.counts;
      const counted = down > 0 ? `${brokers} of ${plural(brokers + down, "broker")}` : plural(brokers, "broker");
      name.textContent = `${firstOf(cluster.bootstrap)} · ${counted}`;
      name.title = `${cluster.software}, cluster ${cluster.cluster_id}`;
    },
    { periodMs: 10_000, signal: new AbortController().signal, onError: () => undefined },
  );
  const pulse = document.getElementById("pulse");
  const draw = () => {
    const lost = lostSinceMs();
    pulse.textContent = lost === null ? "live" : `disconnected since ${localTime(lost)}`;
    pulse.classList.toggle("lost", lost !== null);
  };
  connection.addEventListener("lost", draw);
  connection.addEventListener("back", draw);
}

const router = new Router(document.getElementById("main"), ROUTES, showSection);
const go = (href) => router.go(href);
jumpField(document.getElementById("jump"), go);
listenToKeys({ sections: SECTIONS, go, toggleTheme });
document.getElementById("help").addEventListener("click", () => showHelp(SECTIONS));
themeButton.addEventListener("click", toggleTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawThemeButton);
drawThemeButton();
watchCluster();
router.start();
