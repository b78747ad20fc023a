// The REST client.
//
//   await api.get("topics", { limit: 50 })     below /api/v1/clusters/{cluster}
//   await api.get("/session")                  a leading slash means below /api/v1
//   await api.post("topics", { name: "a" })    also put, patch; delete takes a query
//   address("topics/a/export", { limit: 5 })   the URL, for downloads and EventSource
//
// Failures are ApiError { status, code, message, remedy }. Status 0 means that the node which serves
// the page did not respond: `connection` then says "lost", and a probe retries until it responds.

import { signal } from "./preact.js";
import { route } from "./router.js";

const TIMEOUT_MS = 30_000;
const PROBE_MS = 1_500;

// state is "good", "lost" (this node does not respond) or "unreachable" (the node has no cluster).
export const connection = signal({ state: "good", since: null });
// Counts recoveries, so that open pages reload at once.
export const recoveries = signal(0);
// Called when the server requires a login.
export const loginRequired = signal(0);

export class ApiError extends Error {
  constructor(status, { code = "error", message, remedy = null }) {
    super(message);
    this.status = status;
    this.code = code;
    this.remedy = remedy;
  }
}

export function address(path, query = {}) {
  const base = path.startsWith("/")
    ? `/api/v1${path}`
    : `/api/v1/clusters/${encodeURIComponent(route.peek().cluster)}/${path}`;
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? `${base}?${new URLSearchParams(kept)}` : base;
}

// Join names into a path: path`topics/${topic}/configs` escapes each name.
export function path(strings, ...names) {
  return strings.reduce((whole, part, index) => whole + encodeURIComponent(names[index - 1]) + part);
}

async function send(method, url, body, signal_) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-Riverrun-Console"] = "1";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const abort = signal_ ? AbortSignal.any([signal_, timeout]) : timeout;
  try {
    return await fetch(url, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: abort,
      credentials: "same-origin",
      cache: "no-cache", // revalidate with the ETag
    });
  } catch (error) {
    if (signal_?.aborted) throw error;
    if (timeout.aborted) {
      throw new ApiError(504, {
        code: "timeout",
        message: `No response within ${TIMEOUT_MS / 1000} seconds.`,
        remedy: "The node may be busy. Try again, or open the console of another node.",
      });
    }
    setConnection("lost");
    throw new ApiError(0, {
      code: "connection_lost",
      message: "The node that serves this page does not respond.",
      remedy: "The page retries by itself. If the node stays down, open the console of another node.",
    });
  }
}

async function read(response) {
  const json = response.headers.get("content-type")?.includes("json") ? await response.json() : null;
  if (response.ok) return json;
  const failure = json?.error ?? { message: `The server responded ${response.status} ${response.statusText}.` };
  throw new ApiError(response.status, failure);
}

export async function request(method, path_, { query, body, signal: signal_ } = {}) {
  const response = await send(method, address(path_, query), body, signal_);
  try {
    const result = await read(response);
    setConnection("good");
    return result;
  } catch (error) {
    if (error.code === "cluster_unreachable") setConnection("unreachable");
    else if (error instanceof ApiError) setConnection("good");
    if (error.code === "login_required") loginRequired.value++;
    throw error;
  }
}

let probe = null;

function setConnection(state) {
  const before = connection.peek().state;
  if (state === before) return;
  connection.value = { state, since: state === "good" ? null : Date.now() };
  if (state === "good") recoveries.value++;
  if (state === "lost" && probe === null) probe = setInterval(tryAgain, PROBE_MS);
}

async function tryAgain() {
  try {
    await fetch(address("/session"), { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  } catch {
    return;
  }
  clearInterval(probe);
  probe = null;
  setConnection("good");
}

export const api = {
  get: (path_, query, signal_) => request("GET", path_, { query, signal: signal_ }),
  post: (path_, body = {}) => request("POST", path_, { body }),
  put: (path_, body = {}) => request("PUT", path_, { body }),
  patch: (path_, body = {}) => request("PATCH", path_, { body }),
  delete: (path_, query) => request("DELETE", path_, { query }),
};
