// The settings of a topic: those that were set first, each edited or reset in place.

import { patch, path } from "../api.js";
import { h, show } from "../dom.js";
import { bytes, duration } from "../format.js";
import { openDialog } from "../parts/dialog.js";
import { notice } from "../parts/notice.js";
import { button, field, mark, prose } from "../parts/page.js";
import { table } from "../parts/table.js";

export function configurationTable(topic, onChange) {
  const place = h("div");
  const search = h("input", {
    type: "search",
    placeholder: "Find settings",
    "aria-label": "Find settings",
    "data-search": true,
  });
  const entries = [...topic.config].sort(
    (left, right) => isSet(right) - isSet(left) || left.name.localeCompare(right.name),
  );

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const rows = entries.filter((entry) => entry.name.includes(wanted));
    show(place, table({ label: "Configuration", rows, columns: columns(topic, onChange) }));
  }

  search.addEventListener("input", draw);
  draw();
  return h(
    "section",
    { class: "block" },
    h("div", { class: "toolbar" }, h("div", { class: "grow" }, search)),
    place,
  );
}

const isSet = (entry) => Number(entry.source === "topic");

/** All of it stands in the dialog. */
const firstSentence = (text) => /^.*?[.:](?=\s|$)/s.exec(text)?.[0].replace(/:$/, ".") ?? text;

function columns(topic, onChange) {
  return [
    {
      title: "Setting",
      look: "name",
      cell: (entry) => [
        h("span", { class: isSet(entry) ? "mono changed" : "mono" }, entry.name),
        entry.documentation && h("div", { class: "soft" }, prose(firstSentence(entry.documentation))),
      ],
    },
    { title: "Value", cell: valueOf },
    {
      title: "From",
      narrow: false,
      cell: (entry) => mark(entry.source.replaceAll("_", " "), isSet(entry) ? "good" : ""),
    },
    {
      title: "",
      number: true,
      cell: (entry) =>
        !entry.read_only &&
        button("Edit", () => edit(topic.name, entry, onChange), "small", {
          "data-open": true,
          "aria-label": `Edit ${entry.name}`,
        }),
    },
  ];
}

function valueOf(entry) {
  if (entry.sensitive) return h("span", { class: "faint" }, "hidden");
  const meaning = meaningOf(entry);
  return h(
    "span",
    { class: "value" },
    h("span", { class: isSet(entry) ? "mono changed" : "mono" }, entry.value ?? "–"),
    meaning && h("span", { class: "soft" }, `  ${meaning}`),
  );
}

/** 604800000 says little; "7 days" says it. */
function meaningOf({ name, value }) {
  const number = Number(value);
  if (value === null || value === "" || !Number.isFinite(number)) return "";
  if (/(\.ms|bytes)$/.test(name) && (number < 0 || number >= 2 ** 53)) return "no limit";
  if (name.endsWith(".ms") && number >= 1000) return duration(number);
  if (name.endsWith("bytes") && number >= 1000) return bytes(number);
  return "";
}

function edit(topic, entry, onChange) {
  const input = h("input", {
    class: "mono",
    value: entry.value ?? "",
    spellcheck: "false",
    autocomplete: "off",
  });
  const change = async (changes, text) => {
    await patch(path`/api/topics/${topic}/config`, changes);
    notice(text);
    onChange();
  };
  const { dialog, complaint } = openDialog({
    title: entry.name,
    action: "Save",
    act: () =>
      change({ set: { [entry.name]: input.value } }, `${entry.name} is now ${input.value || "empty"}.`),
    body: [
      entry.documentation && h("p", {}, prose(entry.documentation)),
      field("Value", input, entry.type ? `A ${entry.type}.` : ""),
      isSet(entry) &&
        h(
          "p",
          { class: "soft" },
          "It was set for this topic. ",
          button(
            "Back to the default",
            async () => {
              try {
                await change({ reset: [entry.name] }, `${entry.name} has its default again.`);
                dialog.close();
              } catch (error) {
                complaint.textContent = error.message;
              }
            },
            "small",
          ),
        ),
    ],
  });
  input.select();
}
