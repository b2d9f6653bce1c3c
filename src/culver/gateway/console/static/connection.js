// Whether the gateway answers, and since when not; every page shows it in the same place.

let lostAtMs = null;

/** Tells "lost" and "back"; and "try" when the machine has a network again, which is worth a try. */
export const connection = new EventTarget();

addEventListener("online", () => connection.dispatchEvent(new Event("try")));

export function reached() {
  if (lostAtMs === null) return;
  lostAtMs = null;
  connection.dispatchEvent(new Event("back"));
}

export function unreachable() {
  if (lostAtMs !== null) return;
  lostAtMs = Date.now();
  connection.dispatchEvent(new Event("lost"));
}

/** When the gateway stopped answering; null while it answers. */
export const lostSinceMs = () => lostAtMs;
