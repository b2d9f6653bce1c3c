// From values to pixels, and where the ticks of an axis stand.

export function linear(fromValue, toValue, fromPixel, toPixel) {
  const span = toValue - fromValue || 1;
  return (value) => fromPixel + ((value - fromValue) / span) * (toPixel - fromPixel);
}

/** Round values from 0 to at least `most`: the axis ends at the last of them. */
export function roundTicks(most, wanted = 4) {
  if (!(most > 0)) return [0, 1];
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const ticks = [];
  for (let index = 0; index * step < most + step * 0.999; index += 1) ticks.push(index * step);
  return ticks;
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  SECOND,
  5 * SECOND,
  10 * SECOND,
  15 * SECOND,
  30 * SECOND,
  MINUTE,
  2 * MINUTE,
  5 * MINUTE,
  10 * MINUTE,
  15 * MINUTE,
  30 * MINUTE,
  HOUR,
  2 * HOUR,
  3 * HOUR,
  6 * HOUR,
  12 * HOUR,
  DAY,
  2 * DAY,
  7 * DAY,
  14 * DAY,
  30 * DAY,
  90 * DAY,
  365 * DAY,
];

/** Moments on round local times, no denser than `spacing` pixels. */
export function timeTicks(fromMs, untilMs, widthPx, spacing = widthPx < 500 ? 62 : 90) {
  const least = ((untilMs - fromMs) / Math.max(1, widthPx)) * spacing;
  const step = STEPS.find((candidate) => candidate >= least) ?? STEPS.at(-1);
  const zone = step >= HOUR ? new Date(fromMs).getTimezoneOffset() * MINUTE : 0;
  const ticks = [];
  for (let at = Math.ceil((fromMs - zone) / step) * step + zone; at <= untilMs; at += step) ticks.push(at);
  return { ticks, step };
}

const clock = { hour: "2-digit", minute: "2-digit", hour12: false };
const withSeconds = new Intl.DateTimeFormat(undefined, { ...clock, second: "2-digit" });
const withMinutes = new Intl.DateTimeFormat(undefined, clock);
const withDay = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

export function tickLabel(atMs, step) {
  if (step < MINUTE) return withSeconds.format(atMs);
  const at = new Date(atMs);
  if (step >= DAY || (step >= HOUR && at.getHours() === 0 && at.getMinutes() === 0))
    return withDay.format(at);
  return withMinutes.format(at);
}
