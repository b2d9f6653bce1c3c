// The JSON API of the gateway: one function per verb, errors as values a person can act on.

import { sentence } from "./format.js";
import { reached, unreachable } from "./connection.js";

class ApiError extends Error {
  constructor(status, code, message, remedy = "") {
    super(sentence(message));
    this.status = status;
    this.code = code;
    this.remedy = remedy && sentence(remedy);
  }
}

const TIMEOUT_MS = 30_000;

async function ask(method, path, { body, signal, timeoutMs = TIMEOUT_MS } = {}) {
  const limits = [AbortSignal.timeout(timeoutMs), ...(signal ? [signal] : [])];
  let response;
  try {
    response = await fetch(path, {
      method,
      signal: AbortSignal.any(limits),
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    unreachable();
    const what =
      error.name === "TimeoutError"
        ? `No answer within ${timeoutMs / 1000} s.`
        : "The gateway cannot be reached.";
    throw new ApiError(
      0,
      0,
      what,
      "Check that it is running (culver serve, or culver gateway). This page tries again by itself.",
    );
  }
  reached();
  return answer(response);
}

async function answer(response) {
  const text = await response.text();
  let value;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = { message: text.slice(0, 500) };
  }
  if (response.ok) return value;
  const message = value?.message || response.statusText || "The request failed.";
  throw new ApiError(response.status, value?.error_code ?? 0, message, value?.remedy);
}

/** A path with its parts escaped and its query made from what is set: path`/api/topics/${name}`. */
export function path(strings, ...parts) {
  return strings.reduce((whole, next, index) => whole + encodeURIComponent(parts[index - 1]) + next);
}

export function withQuery(address, query) {
  const set = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  return set.length ? `${address}?${new URLSearchParams(set)}` : address;
}

export const get = (address, query = {}, options = {}) => ask("GET", withQuery(address, query), options);
export const post = (address, body, options = {}) => ask("POST", address, { ...options, body });
export const put = (address, body, options = {}) => ask("PUT", address, { ...options, body });
export const patch = (address, body, options = {}) => ask("PATCH", address, { ...options, body });
export const remove = (address, options = {}) => ask("DELETE", address, options);
