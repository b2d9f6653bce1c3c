// Records as they arrive, from the gateway's event stream; pausing keeps the newest for later.

import { path, withQuery } from "../api.js";

const WAITING_MAX = 500;

/** onRecords(records, newest last), onState({connected, paused, waiting, skipped, problem}). */
export class LiveTail {
  #source = null;
  #waiting = [];
  #onRecords;
  #onState;
  #state = { connected: false, paused: false, waiting: 0, skipped: 0, problem: "" };
  #frame = 0;

  constructor({ onRecords, onState }) {
    this.#onRecords = onRecords;
    this.#onState = onState;
  }

  get paused() {
    return this.#state.paused;
  }

  open(topic, { partition, filter }) {
    this.close();
    this.#change({ connected: false, paused: false, skipped: 0, problem: "" });
    this.#source = new EventSource(
      withQuery(path`/api/topics/${topic}/tail`, { partition, filter, from: "latest" }),
    );
    this.#source.addEventListener("open", () => this.#change({ connected: true }));
    this.#source.addEventListener("error", () => this.#change({ connected: false }));
    this.#source.addEventListener("record", (event) => this.#take(JSON.parse(event.data)));
    this.#source.addEventListener("skipped", (event) =>
      this.#change({ skipped: this.#state.skipped + JSON.parse(event.data).count }),
    );
    this.#source.addEventListener("problem", (event) => {
      this.#change({ problem: JSON.parse(event.data).message });
      this.close();
    });
  }

  close() {
    this.#source?.close();
    this.#source = null;
    this.#waiting = [];
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
  }

  setPaused(paused) {
    this.#change({ paused });
    if (!paused) this.#deliver();
  }

  #take(record) {
    this.#waiting.push(record);
    if (this.#waiting.length > WAITING_MAX) {
      this.#waiting.shift();
      this.#change({ skipped: this.#state.skipped + 1 });
    }
    if (this.#state.paused) this.#change({ waiting: this.#waiting.length });
    else if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#deliver()); // one redraw, however many came
  }

  #deliver() {
    this.#frame = 0;
    if (this.#waiting.length) this.#onRecords(this.#waiting);
    this.#waiting = [];
    this.#change({ waiting: 0 });
  }

  #change(changes) {
    this.#state = { ...this.#state, ...changes };
    this.#onState(this.#state);
  }
}
