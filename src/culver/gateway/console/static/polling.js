// Repeats a question while its page is open and visible; a hidden tab asks nothing.

import { connection } from "./connection.js";

/**
 * Calls ask(signal) now, and again periodMs after each answer. Failures go to onError and are tried again, more slowly
 * each time up to ten periods. Ends with the signal. Returns a function that asks at once: what is under way then is
 * called off, because its answer belongs to a question that nobody asks any more.
 */
export function poll(ask, { periodMs, signal, onError }) {
  let timer;
  let failures = 0;
  let current = null;

  async function turn() {
    clearTimeout(timer);
    current?.abort();
    if (signal.aborted) return;
    const mine = new AbortController();
    current = mine;
    const either = AbortSignal.any([signal, mine.signal]);
    try {
      await ask(either);
      failures = 0;
    } catch (error) {
      if (either.aborted) return;
      failures += 1;
      onError(error);
    }
    if (mine === current) timer = setTimeout(wait, periodMs * Math.min(10, 2 ** failures));
  }

  function wait() {
    if (document.hidden) document.addEventListener("visibilitychange", wait, { once: true, signal });
    else turn();
  }

  // As soon as one question is answered again, the others need not wait for their turn.
  const again = () => failures > 0 && wait();
  for (const news of ["back", "try"]) connection.addEventListener(news, again, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  turn();
  return turn;
}
