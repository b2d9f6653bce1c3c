// The field in the masthead: a few letters find a topic or a group from anywhere.

import { get, path } from "./api.js";
import { h, settled, show } from "./dom.js";

const FOUND_MAX = 6;

export function jumpField(place, go) {
  const list = h("ul", { class: "jump-list hidden", id: "jump-list", role: "listbox" });
  const input = h("input", {
    type: "search",
    placeholder: "Topic or group",
    "aria-label": "Jump to a topic or group",
    role: "combobox",
    "aria-expanded": "false",
    "aria-controls": "jump-list",
    autocomplete: "off",
    spellcheck: "false",
  });
  show(place, input, h("kbd", { "aria-hidden": "true" }, "/"), list);
  let chosen = 0;
  let asked = null;

  function close() {
    asked?.abort();
    list.classList.add("hidden");
    input.setAttribute("aria-expanded", "false");
  }

  function choose(index) {
    const links = [...list.querySelectorAll("a")];
    if (!links.length) return;
    chosen = (index + links.length) % links.length;
    links.forEach((anchor, at) => {
      anchor.classList.toggle("chosen", at === chosen);
      anchor.parentElement.setAttribute("aria-selected", String(at === chosen));
    });
    input.setAttribute("aria-activedescendant", links[chosen].parentElement.id);
  }

  const look = settled(async () => {
    asked?.abort();
    asked = new AbortController();
    const { signal } = asked;
    const q = input.value.trim();
    if (!q) return close();
    try {
      const [topics, groups] = await Promise.all([
        get("/api/topics", { q, limit: FOUND_MAX, internal: true }, { signal }),
        get("/api/groups", { q, limit: FOUND_MAX }, { signal }),
      ]);
      if (signal.aborted) return;
      const entry = (href, name, kind) =>
        h(
          "li",
          { role: "option", id: `jump-${kind}-${name}` },
          h("a", { href, tabindex: "-1" }, h("span", {}, name), h("span", { class: "faint" }, kind)),
        );
      const found = [
        ...topics.items.map(({ name }) => entry(path`/console/topics/${name}`, name, "topic")),
        ...groups.items.map(({ group }) => entry(path`/console/groups/${group}`, group, "group")),
      ];
      show(list, found.length ? found : h("li", { class: "faint" }, "Nothing has that name"));
      list.classList.remove("hidden");
      input.setAttribute("aria-expanded", "true");
      choose(0);
    } catch {
      close(); // the state of the connection stands right beside this field
    }
  });

  input.addEventListener("input", look);
  input.addEventListener("blur", () => setTimeout(close, 150));
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Escape") input.value = "";
    else if (event.key === "Enter") {
      const target = list.querySelectorAll("a")[chosen];
      const q = input.value.trim();
      if (target && !list.classList.contains("hidden")) go(target.href);
      else if (q) go(`/console/topics?${new URLSearchParams({ q })}`);
      input.value = "";
      input.blur();
    } else return;
    event.preventDefault();
  });
}
