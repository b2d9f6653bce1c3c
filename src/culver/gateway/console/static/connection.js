// Whether the gateway answers, and since when not; every page shows it in the same place.

let lostAtMs = null;
const listeners = new Set();

function tell() {
  for (const listener of listeners) listener(lostAtMs);
}

export function reached() {
  if (lostAtMs === null) return;
  lostAtMs = null;
  tell();
}

export function unreachable() {
  if (lostAtMs !== null) return;
  lostAtMs = Date.now();
  tell();
}

/** Calls listener with null while the gateway answers, else with the time of the last loss. */
export function watchConnection(listener) {
  listeners.add(listener);
  listener(lostAtMs);
}
