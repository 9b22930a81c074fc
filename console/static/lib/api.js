// The REST interface. Each function is one request; a failure is an `ApiError` with the server's words.

const BASE = new URL("api/v1/", document.baseURI);
const FIRST = 100;
const FURTHER = 1000; // the most that the interface returns at once
const listeners = new Set();

/** Why a request failed. `status` 0: the server did not answer. */
export class ApiError extends Error {
  constructor(status, title, detail, problem = {}) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.problem = problem;
  }
}

/** Calls `listener` when the server asks for a log-in. Returns a function that ends it. */
export function onUnauthorized(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const path = (...parts) => parts.map(encodeURIComponent).join("/");

export function urlOf(name, query = {}) {
  const url = new URL(name, BASE);
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) url.searchParams.set(key, value);
  }
  return url;
}

async function errorOf(response) {
  const problem = await response.json().catch(() => ({}));
  const title = problem.title || response.statusText || `HTTP ${response.status}`;
  return new ApiError(response.status, title, problem.detail || problem.error, problem);
}

async function call(method, name, { query, body, etag, signal, timeout = 30000 } = {}) {
  const limit = AbortSignal.timeout(timeout);
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (etag) headers["If-Match"] = `"${etag}"`;
  let response;
  try {
    response = await fetch(urlOf(name, query), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    if (limit.aborted) throw new ApiError(0, "No answer", `The server did not answer within ${timeout / 1000} seconds.`);
    throw new ApiError(0, "No connection", "The console cannot reach the server.");
  }
  if (!response.ok) {
    const error = await errorOf(response);
    if (response.status === 401 && name !== "session") listeners.forEach((each) => each(error));
    throw error;
  }
  if (response.status === 204) return null;
  return response.json();
}

/** A change, or with `dryRun` what it would do. One that was made in part is a result as well: its steps say what failed. */
async function change(method, name, dryRun, { body, etag } = {}) {
  try {
    return await call(method, name, { query: dryRun ? { dryRun: true } : {}, body, etag });
  } catch (error) {
    if (error.problem?.change) return error.problem.change;
    throw error;
  }
}

/** A list, whether the server sends it bare or as a page. */
export const itemsOf = (data) => (Array.isArray(data) ? data : (data?.items ?? []));

/**
 * Reads all parts of a list, up to `limit` items. `more`: there are further ones. `onPart` gets what was read so far after
 * the first part, which is small, so that a page can show it.
 */
async function all(name, query, { signal, onPart, limit = 5000 } = {}) {
  const items = [];
  const problems = [];
  let cursor;
  do {
    const page = await call("GET", name, { query: { ...query, cursor, limit: Math.min(cursor ? FURTHER : FIRST, limit) }, signal });
    items.push(...itemsOf(page));
    problems.push(...(page.problems || []));
    const isFirst = !cursor;
    cursor = Array.isArray(page) ? null : page.cursor;
    if (isFirst && cursor) onPart?.({ items: [...items], problems: [...problems], more: true });
  } while (cursor && items.length < limit);
  return { items, problems, more: Boolean(cursor) };
}

const get = (name, query, signal) => call("GET", name, { query, signal });

export const api = {
  me: () => get("me"),
  logIn: (credentials) => call("POST", "session", { body: credentials }),
  logOut: () => call("DELETE", "session"),

  clusters: (signal) => get("clusters", {}, signal).then(itemsOf),
  figures: (signal) => get("figures", {}, signal),
  raftGroups: (signal) => get("raft-groups", {}, signal).then(itemsOf),
  allowWrites: (name, allowed, dryRun) =>
    change("POST", path("brokers", name, "write-permission"), dryRun, { body: { allowed } }),
  transferLeader: (group, member, dryRun) =>
    change("POST", path("raft-groups", group, "leader"), dryRun, { body: { member } }),
  addMember: (group, member, learner, dryRun) =>
    change("POST", path("raft-groups", group, "members"), dryRun, { body: { member, learner } }),
  removeMember: (group, member, dryRun) =>
    change("DELETE", path("raft-groups", group, "members", member), dryRun),

  topics: ({ system, search, limit } = {}, signal, onPart) =>
    all("topics", { system: system || undefined, search }, { signal, onPart, limit }),
  topic: (name, signal) => get(path("topics", name), {}, signal),
  putTopic: (name, config, etag, dryRun) => change("PUT", path("topics", name), dryRun, { body: config, etag }),
  deleteTopic: (name, etag, dryRun) => change("DELETE", path("topics", name), dryRun, { etag }),
  send: (topic, message) => call("POST", path("topics", topic, "messages"), { body: message }),

  groups: ({ system, search, limit } = {}, signal, onPart) =>
    all("consumer-groups", { system: system || undefined, search }, { signal, onPart, limit }),
  group: (name, signal) => get(path("consumer-groups", name), {}, signal),
  putGroup: (name, config, etag, dryRun) =>
    change("PUT", path("consumer-groups", name), dryRun, { body: config, etag }),
  deleteGroup: (name, etag, dryRun) => change("DELETE", path("consumer-groups", name), dryRun, { etag }),
  resetOffsets: (group, body, dryRun) =>
    change("POST", path("consumer-groups", group, "offsets", "reset"), dryRun, { body }),
  cloneOffsets: (group, body, dryRun) =>
    change("POST", path("consumer-groups", group, "offsets", "clone"), dryRun, { body }),

  messages: (topic, query, signal) => get(path("topics", topic, "messages"), query, signal),
  message: (id, signal) => get(path("messages", id), {}, signal),
  trace: (id, signal) => get(path("messages", id, "trace"), {}, signal).then(itemsOf),
  consumers: (id, signal) => get(path("messages", id, "consumers"), {}, signal).then(itemsOf),
  resend: (id, group, clientId, dryRun) =>
    change("POST", path("messages", id, "resend"), dryRun, { body: { group, clientId: clientId || null } }),

  deadLetterGroups: (signal) => get("dead-letters", {}, signal).then(itemsOf),
  deadLetters: (group, query, signal) => get(path("dead-letters", group), query, signal),
  resendDeadLetters: (group, ids, dryRun) =>
    change("POST", path("dead-letters", group, "resend"), dryRun, { body: { ids } }),

  settings: (cluster, signal) => get("settings", { cluster }, signal).then(itemsOf),
  setSettings: (address, values, dryRun) =>
    change("PATCH", path("brokers", address, "settings"), dryRun, { body: values }),
  audit: (query, signal) => get("audit", query, signal),
};
