// Shareable addresses: path and query hold all of a page's state; History API, no reloads.

/**
 * A page is a function (context) => optional {update(query)}. Context: root (the element to fill), params (from the
 * path), query (a plain object), signal (aborted when the page is left), setQuery(changes) and go(href).
 * When only the query changes and the page has update(), it is called; otherwise the page is made anew.
 */
export class Router {
  #routes;
  #root;
  #onPage;
  #current = null;

  constructor(root, routes, onPage) {
    this.#root = root;
    this.#onPage = onPage;
    this.#routes = routes.map(([pattern, page]) => ({ pattern, page, match: compile(pattern) }));
    addEventListener("popstate", () => this.#show());
    document.addEventListener("click", (event) => this.#follow(event));
  }

  start() {
    this.#show();
  }

  go(href, { replace = false } = {}) {
    const address = new URL(href, location.href);
    if (address.href === location.href) return;
    history[replace ? "replaceState" : "pushState"](null, "", address);
    this.#show();
  }

  /** Changes the query of this page; what is empty is left out, so that addresses stay short. */
  setQuery(changes, { replace = false } = {}) {
    const address = new URL(location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (value === undefined || value === null || value === "" || value === false)
        address.searchParams.delete(name);
      else address.searchParams.set(name, value === true ? "1" : String(value));
    }
    this.go(address.href, { replace });
  }

  #follow(event) {
    if (
      event.defaultPrevented ||
      event.button !== 0 ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey ||
      event.altKey
    )
      return;
    const anchor = event.target.closest("a[href]");
    if (!anchor || anchor.target || anchor.hasAttribute("download")) return;
    const address = new URL(anchor.href);
    if (address.hash && address.pathname === location.pathname) return; // a place on this page: the browser's business
    if (
      address.origin !== location.origin ||
      !(address.pathname === "/" || address.pathname.startsWith("/console"))
    )
      return;
    event.preventDefault();
    this.go(address.href);
  }

  #show() {
    const query = Object.fromEntries(new URLSearchParams(location.search));
    const { route, params } = this.#find(location.pathname);
    const identity = `${route.pattern} ${JSON.stringify(params)}`;
    if (this.#current?.identity === identity && this.#current.update) {
      this.#current.update(query);
      return;
    }
    const isFirst = this.#current === null;
    this.#current?.leave.abort();
    const leave = new AbortController();
    this.#current = { identity, leave, update: null };
    this.#root.replaceChildren();
    scrollTo(0, 0);
    if (!isFirst) this.#root.focus({ preventScroll: true }); // so that reading and tabbing go on from the new page
    this.#onPage(route.pattern, params);
    const made = route.page({
      root: this.#root,
      params,
      query,
      signal: leave.signal,
      setQuery: (changes, options) => !leave.signal.aborted && this.setQuery(changes, options),
      go: (href, options) => this.go(href, options),
    });
    this.#current.update = made?.update ?? null;
  }

  #find(pathname) {
    for (const route of this.#routes) {
      const params = route.match(pathname);
      if (params) return { route, params };
    }
    throw new Error("the last route matches everything");
  }
}

/** "/console/topics/:topic" -> a function from a path to {topic} or null; "*" matches the rest. */
function compile(pattern) {
  const names = [];
  const source = pattern
    .replace(/[.+?^${}()|[\]\\]/g, "\\$&")
    .replace(/\*/g, ".*")
    .replace(/:(\w+)/g, (_, name) => {
      names.push(name);
      return "([^/]+)";
    });
  const expression = new RegExp(`^${source}/?$`);
  return (pathname) => {
    const found = expression.exec(pathname);
    if (!found) return null;
    try {
      return Object.fromEntries(names.map((name, index) => [name, decodeURIComponent(found[index + 1])]));
    } catch {
      return null; // a broken percent escape names nothing
    }
  };
}
