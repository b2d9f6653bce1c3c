// A long list of the cluster: search, filters, sorting and pages, all of it in the address.

import { h, settled, show } from "../dom.js";
import { live } from "./live.js";
import { keepPlace, pager, table } from "./table.js";

const LIMIT = 50;

/**
 * load(state, signal) -> {total, offset, limit, items}; columns and sort as in table(); filters: [{name, make(value)}] of
 * controls or [{name, tick: text}]; nothing(state) -> what to show when there are none; summarise(answer).
 */
export function listPage(
  { root, query, signal, setQuery },
  { head, noun, filters = [], sort, load, columns, summarise, nothing, periodMs = 5000 },
) {
  const place = h("div");
  let state = read(query);

  function read(next) {
    return {
      ...next,
      q: next.q ?? "",
      sort: next.sort ?? sort,
      offset: Number(next.offset) || 0,
      limit: Number(next.limit) || LIMIT,
    };
  }

  const change = (changes) => setQuery({ offset: null, ...changes }, { replace: true });
  const search = h("input", {
    type: "search",
    value: state.q,
    placeholder: `Find ${noun}`,
    "aria-label": `Find ${noun}`,
    "data-search": true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const settledChange = settled(() => change({ q: search.value.trim() }));
  search.addEventListener("input", settledChange);
  const controls = filters.map((filter) => ({ filter, ...control(filter, state[filter.name], change) }));

  const tools = h(
    "div",
    { class: "toolbar" },
    h("div", { class: "grow" }, search),
    controls.map(({ element }) => element),
  );
  show(root, head.element, h("section", { class: "block", "aria-label": noun }, tools, place));

  const refresh = live({
    place,
    signal,
    periodMs,
    load: (either) => load(state, either),
    draw(answer) {
      summarise?.(answer);
      if (!answer.items.length && !answer.total) return nothing(state);
      const href = (offset) => {
        const address = new URL(location.href);
        if (offset) address.searchParams.set("offset", offset);
        else address.searchParams.delete("offset");
        return address.pathname + address.search;
      };
      keepPlace(
        place,
        table({
          label: noun,
          columns,
          rows: answer.items,
          sort: state.sort,
          onSort: sort && ((key) => change({ sort: key === sort ? null : key })),
        }),
        pager({ total: answer.total, offset: answer.offset, limit: answer.limit, noun, href }),
      );
      return undefined;
    },
  });

  return {
    update(next) {
      state = read(next);
      if (document.activeElement !== search) search.value = state.q;
      for (const { filter, write } of controls) write(state[filter.name]);
      refresh();
    },
    refresh,
  };
}

function control(filter, value, change) {
  if (filter.tick) {
    const box = h("input", {
      type: "checkbox",
      checked: Boolean(value),
      onchange: () => change({ [filter.name]: box.checked }),
    });
    return {
      element: h("label", { class: "tick" }, box, filter.tick),
      write: (next) => (box.checked = Boolean(next)),
    };
  }
  const element = filter.make(value);
  element.addEventListener("change", () => change({ [filter.name]: element.value }));
  return { element, write: (next) => (element.value = next ?? "") };
}
