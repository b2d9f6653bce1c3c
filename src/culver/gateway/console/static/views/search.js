// Search over aggregated logs: words and conditions, a time range, when they occurred, and the lines.

import { get, withQuery } from "../api.js";
import { h, show } from "../dom.js";
import { count, plural } from "../format.js";
import { field, heading } from "../parts/page.js";
import { empty, loading, problem } from "../parts/states.js";
import { Histogram } from "../plots/histogram.js";
import { logLine } from "./log_line.js";

const RANGES = [
  ["15m", "15 minutes"],
  ["1h", "1 hour"],
  ["6h", "6 hours"],
  ["1d", "1 day"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["", "All time"],
];
const DEFAULT_SINCE = "1d";
const LIMIT = 100;
const BUCKETS = 80;
const BAD = ["ERROR", "FATAL", "CRITICAL", "EMERGENCY", "ALERT", "PANIC"];
const WARN = ["WARN", "WARNING"];

const amount = (bucket, levels) => levels.reduce((sum, level) => sum + (bucket.levels?.[level] ?? 0), 0);

export function searchPage({ root, query, signal, setQuery }) {
  let state = query;
  let asked = null;
  const head = heading({ title: "Log search" });
  const words = h("input", {
    type: "search",
    "data-search": true,
    "aria-label": "Words",
    spellcheck: "false",
    placeholder: 'timeout AND "connection refused"  prefix*  NOT debug',
  });
  const where = h("input", {
    class: "mono",
    "aria-label": "Conditions",
    spellcheck: "false",
    placeholder: "level = 'ERROR' AND service = 'api'",
  });
  const since = h("select", { "aria-label": "Time range" });
  const results = h("div");
  const histogram = new Histogram({
    title: "Lines over time",
    parts: [
      { name: "errors", look: "bad", of: (bucket) => amount(bucket, BAD) },
      { name: "warnings", look: "warn", of: (bucket) => amount(bucket, WARN) },
      {
        name: "other",
        look: "second",
        of: (bucket) => bucket.count - amount(bucket, BAD) - amount(bucket, WARN),
      },
    ],
    onPick: (fromMs, untilMs) =>
      setQuery({ since: new Date(fromMs).toISOString(), until: new Date(untilMs).toISOString() }),
  });

  const form = h(
    "form",
    { class: "toolbar", role: "search" },
    h("div", { class: "grow" }, field("Words", words)),
    h("div", { class: "grow" }, field("Where", where)),
    field("Last", since),
    h("button", { class: "button main", type: "submit" }, "Search"),
  );
  const submit = () =>
    setQuery({
      q: words.value.trim(),
      where: where.value.trim(),
      ...(since.value !== "custom" && {
        since: since.value === DEFAULT_SINCE ? null : since.value || "all",
        until: null,
      }),
    });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
    ask();
  });
  since.addEventListener("change", submit);
  show(root, head.element, form, results);

  function write() {
    words.value = state.q ?? "";
    where.value = state.where ?? "";
    const chosen = state.since === "all" ? "" : (state.since ?? DEFAULT_SINCE);
    const known = !state.until && RANGES.some(([value]) => value === chosen);
    const options = known ? RANGES : [...RANGES, ["custom", "As picked"]];
    show(
      since,
      options.map(([value, text]) => h("option", { value }, text)),
    );
    since.value = known ? chosen : "custom";
  }

  async function ask() {
    asked?.abort();
    asked = new AbortController();
    const either = AbortSignal.any([signal, asked.signal]);
    if (!results.childElementCount) show(results, loading());
    results.classList.add("stale-data");
    try {
      const question = {
        q: state.q,
        where: state.where,
        until: state.until,
        since: state.since === "all" ? "" : (state.since ?? DEFAULT_SINCE),
        limit: Number(state.limit) || LIMIT,
        histogram: BUCKETS,
      };
      const answer = await get("/api/search", question, { signal: either });
      draw(answer);
    } catch (error) {
      if (either.aborted) return;
      show(results, error.status === 409 || error.status === 501 ? notSetUp(error) : problem(error, ask));
    }
    results.classList.remove("stale-data");
  }

  function draw(answer) {
    show(
      head.summary,
      `${count(answer.rows)} lines in ${plural(answer.files, "file")}; searched ${plural(answer.files_searched, "file")} in ${count(answer.took_ms)} ms`,
    );
    const problems = (answer.problems ?? []).map((each) =>
      h("p", { class: "banner" }, [each.message, each.remedy].filter(Boolean).join(" ")),
    );
    if (!answer.lines.length) {
      show(results, problems, empty("No line matches", "Try fewer words, or a longer time range."));
      return;
    }
    const terms = termsOf(state.q ?? "");
    const picture = answer.histogram;
    show(
      results,
      problems,
      picture && histogram.element,
      picture &&
        !picture.complete &&
        h("p", { class: "soft" }, `The bars count the newest ${count(picture.matched)} lines only.`),
      h(
        "div",
        { class: "records spaced", role: "list", "aria-label": "Lines" },
        answer.lines.map((line) => logLine(line, terms)),
      ),
      h(
        "div",
        { class: "more" },
        answer.more
          ? [`The newest ${count(answer.lines.length)} are shown.`, moreLink()]
          : `${plural(answer.lines.length, "line")}, all that match.`,
      ),
    );
    if (picture)
      histogram.set({
        fromMs: picture.from_ms,
        untilMs: picture.until_ms,
        bucketMs: picture.bucket_ms,
        buckets: picture.buckets,
      });
  }

  const moreLink = () =>
    h(
      "a",
      {
        class: "button small",
        href: withQuery("/console/search", {
          ...state,
          limit: Math.min(1000, 5 * (Number(state.limit) || LIMIT)),
        }),
      },
      "Show more",
    );

  write();
  ask();
  return {
    update(next) {
      state = next;
      write();
      ask();
    },
  };
}

function notSetUp(error) {
  return empty(
    "Log search is not set up",
    [error.message, error.remedy].filter(Boolean).join(" "),
    "culver pipeline logs logs --store ./culver-logs\nculver serve --set culver.http.log.store=./culver-logs",
  );
}

/** The words to highlight: what is searched for, without the operators. */
function termsOf(q) {
  const found = q.match(/"[^"]*"|[^\s()"]+/g) ?? [];
  const terms = [];
  for (const [index, term] of found.entries()) {
    if (["AND", "OR", "NOT"].includes(term) || found[index - 1] === "NOT") continue;
    terms.push(term.replace(/^"|"$/g, "").replace(/\*$/, ""));
  }
  return terms.filter(Boolean);
}
