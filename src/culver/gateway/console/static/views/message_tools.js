// The controls above the message browser; each change becomes part of the address.

import { h, show } from "../dom.js";
import { toLocalInput } from "../format.js";
import { button, field, select } from "../parts/page.js";

const STARTS = [
  ["latest", "Newest first"],
  ["earliest", "Oldest first"],
  ["offset", "From offset"],
  ["time", "From time"],
];
const MANY = 200;

/** change(changes of the query); again() when the same question is asked once more. */
export function messageTools(query, change, again) {
  let current = query;
  let known = 0;
  const partition = h("select", { "aria-label": "Partition" });
  const start = select(STARTS, "latest", { "aria-label": "Where to start" });
  const offset = h("input", {
    type: "number",
    min: 0,
    placeholder: "offset",
    "aria-label": "Offset",
    id: "seek-offset",
  });
  const moment = h("input", { type: "datetime-local", step: 1, "aria-label": "Time" });
  const filter = h("input", {
    type: "search",
    "data-search": true,
    "aria-label": "Filter",
    spellcheck: "false",
    placeholder: 'words  -not  key:42  .status>=500  "a phrase"',
  });
  const follow = button("Live", () => change({ live: !current.live, from: null, direction: null }), "", {
    "aria-pressed": "false",
    title: "Follow the end of the topic",
  });

  function seek() {
    const kind = start.value;
    offset.classList.toggle("hidden", kind !== "offset");
    moment.classList.toggle("hidden", kind !== "time");
    if (kind === "latest") change({ from: null, live: null });
    else if (kind === "earliest") change({ from: "earliest", live: null });
    else if (kind === "offset" && offset.value !== "") change({ from: `offset:${offset.value}`, live: null });
    else if (kind === "time" && moment.value)
      change({ from: `time:${new Date(moment.value).toISOString()}`, live: null });
    else (kind === "offset" ? offset : moment).focus();
  }

  function write(next) {
    current = next;
    const [kind, ...rest] = (next.from ?? "latest").split(":");
    start.value = kind;
    offset.classList.toggle("hidden", kind !== "offset");
    moment.classList.toggle("hidden", kind !== "time");
    if (kind === "offset") offset.value = rest.join(":");
    if (kind === "time") moment.value = localMoment(rest.join(":"));
    if (document.activeElement !== filter) filter.value = next.filter ?? "";
    follow.setAttribute("aria-pressed", String(Boolean(next.live)));
    drawPartitions();
  }

  function drawPartitions() {
    const chosen = current.partition ?? "";
    const options = [
      ["", "All"],
      ...Array.from({ length: Math.min(known, MANY) }, (_, index) => [String(index), String(index)]),
    ];
    if (!options.some(([value]) => value === chosen)) options.push([chosen, chosen]);
    show(
      partition,
      options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
    );
  }

  partition.addEventListener("change", () => change({ partition: partition.value }));
  start.addEventListener("change", seek);
  offset.addEventListener("change", seek);
  moment.addEventListener("change", seek);
  filter.addEventListener("change", () => change({ filter: filter.value.trim() }));

  const element = h(
    "form",
    { class: "toolbar", "aria-label": "Where to look" },
    field("Partition", partition),
    field("Start", start),
    offset,
    moment,
    h("div", { class: "grow" }, field("Filter", filter)),
    follow,
    h("button", { class: "button", type: "submit", title: "Ask again" }, "Refresh"),
  );
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    if (filter.value.trim() === (current.filter ?? "")) again();
  });
  write(query);
  return {
    element,
    write,
    setPartitions(number) {
      if (number === known) return;
      known = number;
      drawPartitions();
    },
  };
}

/** For the time field: what the address holds is ISO 8601, milliseconds or an age such as -1h. */
function localMoment(text) {
  const age = /^-(\d+)([smhd])$/.exec(text);
  if (age) return toLocalInput(Date.now() - Number(age[1]) * { s: 1e3, m: 6e4, h: 36e5, d: 864e5 }[age[2]]);
  const ms = /^\d+$/.test(text) ? Number(text) : Date.parse(text);
  return Number.isNaN(ms) ? "" : toLocalInput(ms);
}
