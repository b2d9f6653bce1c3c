// Numbers by locale, sizes and rates with units, times in local time with UTC in the title.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const UNKNOWN = "–";

export function count(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return whole.format(value);
}

/** A count that must fit a small place: 12.3K. */
export function short(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (Math.abs(value) < 10 && !Number.isInteger(value)) return fine.format(value);
  return Math.abs(value) < 10_000 ? whole.format(value) : compact.format(value);
}

const BYTE_UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < BYTE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${new Intl.NumberFormat(undefined, { maximumFractionDigits: digits }).format(value)} ${BYTE_UNITS[unit]}`;
}

export const bytesPerSecond = (value) =>
  value === null || value === undefined ? UNKNOWN : `${bytes(value)}/s`;
export const perSecond = (value) => (value === null || value === undefined ? UNKNOWN : `${short(value)}/s`);

export function duration(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 60) return `${fine.format(Math.round(seconds * 10) / 10)} s`;
  if (seconds < 3600) return together(Math.floor(seconds / 60), "min", Math.floor(seconds % 60), "s");
  if (seconds < 86_400)
    return together(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "min");
  return together(
    Math.floor(seconds / 86_400),
    seconds < 172_800 ? "day" : "days",
    Math.floor((seconds % 86_400) / 3600),
    "h",
  );
}

function together(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** Local time, with the date when it is not today's, and milliseconds on request. */
export function localTime(ms, { milliseconds = false } = {}) {
  const at = new Date(ms);
  const text = clock.format(at) + (milliseconds ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "");
  if (at.toDateString() === new Date().toDateString()) return text;
  const year = at.getFullYear() === new Date().getFullYear() ? "" : ` ${at.getFullYear()}`;
  return `${day.format(at)}${year} ${text}`;
}

export function utc(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? UNKNOWN : `${at.toISOString().replace("T", " ").replace("Z", "")} UTC`;
}

/** A <time> element: local time to read, UTC in the title. */
export function time(ms, options) {
  if (ms === null || ms === undefined || ms < 0 || Number.isNaN(new Date(ms).getTime()))
    return h("span", { class: "faint" }, UNKNOWN);
  return h("time", { datetime: new Date(ms).toISOString(), title: utc(ms) }, localTime(ms, options));
}

export function ago(ms) {
  return h(
    "time",
    { datetime: new Date(ms).toISOString(), title: utc(ms) },
    `${duration(Date.now() - ms)} ago`,
  );
}

/** For <input type="datetime-local">, which speaks local time without a zone. */
export function toLocalInput(ms) {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return at.toISOString().slice(0, 19);
}

/** A message of the gateway as a sentence of its own. */
export function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(whole) ? whole : `${whole}.`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
