// What happened in the cluster: the events so far, then each as it happens.

import { get } from "./api.js";

const EVENTS_MAX = 500;
const AGAIN_AFTER_MS = 5000;

/** The browser's EventSource reconnects by itself and says where it was. */
export class EventFeed {
  items = [];
  #signal;

  constructor(signal) {
    this.#signal = signal;
  }

  async watch(onChange) {
    try {
      const { items, last_id: lastId } = await get(
        "/api/events",
        { limit: EVENTS_MAX },
        { signal: this.#signal },
      );
      this.items = items;
      onChange();
      this.#follow(lastId, onChange);
    } catch {
      if (!this.#signal.aborted) setTimeout(() => this.watch(onChange), AGAIN_AFTER_MS);
    }
  }

  #follow(lastId, onChange) {
    const source = new EventSource(`/api/events/live?after=${encodeURIComponent(lastId ?? 0)}`);
    source.addEventListener("event", (message) => {
      this.items = [...this.items, JSON.parse(message.data)].slice(-EVENTS_MAX);
      onChange();
    });
    this.#signal.addEventListener("abort", () => source.close(), { once: true });
  }
}
