// A part of a page that keeps itself up to date, and says so when it cannot.

import { h, show } from "../dom.js";
import { localTime } from "../format.js";
import { poll } from "../polling.js";
import { loading, problem } from "./states.js";

const LOADING_AFTER_MS = 180;

/**
 * load(signal) -> data, draw(data) -> nothing or elements for `place`. Until the first answer: loading, or the problem.
 * Later failures leave what is shown, greyed, under a line that says how old it is. Returns refresh().
 */
export function live({ place, signal, load, draw, periodMs = 5000 }) {
  let shownAtMs = null;
  const late = setTimeout(() => shownAtMs === null && show(place, loading()), LOADING_AFTER_MS);
  const stale = h("p", { class: "banner", role: "status" });

  const refresh = poll(
    async (either) => {
      const data = await load(either);
      if (either.aborted) return;
      clearTimeout(late);
      stale.remove();
      place.classList.remove("stale-data");
      const made = draw(data, shownAtMs === null);
      if (made !== undefined) show(place, made);
      shownAtMs = Date.now();
    },
    {
      periodMs,
      signal,
      onError(error) {
        clearTimeout(late);
        if (!(error.status >= 0)) console.error(error); // not the gateway's answer: a fault of this page
        if (shownAtMs === null || error.status === 404) {
          shownAtMs = null;
          show(
            place,
            problem(error, () => refresh()),
          );
          return;
        }
        stale.textContent = `Shown as of ${localTime(shownAtMs)}. ${error.message}`;
        place.before(stale);
        place.classList.add("stale-data");
      },
    },
  );
  signal.addEventListener("abort", () => clearTimeout(late), { once: true });
  return refresh;
}
