// What pages share: the route, the reader's rights, queries that keep their last answer, and notices.
import { createContext, useCallback, useContext, useEffect, useRef, useState } from "./html.js";

// --- the route: #/topics/orders?tab=queues ---

export function parseHash(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decode), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a person typed a percent sign
  }
}

/** An address in the console: `href(["topics", name], {tab: "queues"})`. */
export function href(parts, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  const text = search.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(parts, query, { replace = false } = {}) {
  const target = href(parts, query);
  if (replace) {
    history.replaceState(null, "", target);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = target;
  }
}

export function useRoute() {
  const [route, setRoute] = useState(parseHash);
  useEffect(() => {
    const listener = () => setRoute(parseHash());
    addEventListener("hashchange", listener);
    listener(); // the address may have changed between the first render and this effect
    return () => removeEventListener("hashchange", listener);
  }, []);
  return route;
}

// --- the reader ---

export const Me = createContext({ user: null, role: "viewer", authenticated: false });

const ROLES = ["viewer", "operator", "admin"];

/**
 * Whether the reader has at least a role. Pages show no buttons for what a role may not do: an operator sends and resends
 * messages and sets offsets, an admin changes all else.
 */
export const useMay = (role) => ROLES.indexOf(useContext(Me).role) >= ROLES.indexOf(role);

// --- queries ---

const cache = new Map();

export const forgetAnswers = () => cache.clear();

/**
 * Reads with `read(signal, onPart)` and keeps the last answer under `key`, so that a page that is opened again shows it at once.
 * After a failure the answer stays, with `error`: the page marks it as stale. `every`: milliseconds between reads;
 * a hidden page does not read. `key` null: reads nothing. `onPart(data)` shows a part of the first answer before it is complete.
 */
export function useQuery(key, read, { every = 0 } = {}) {
  const [, again] = useState(0);
  const reader = useRef(read);
  reader.current = read;
  const state = useRef({ key: undefined, loading: false, error: null });
  if (state.current.key !== key) state.current = { key, loading: key !== null, error: null };

  const reload = useCallback(async () => {
    if (key === null) return;
    const mine = state.current;
    mine.abort?.abort();
    const abort = (mine.abort = new AbortController());
    mine.loading = true;
    const onPart = (data) => {
      if (abort.signal.aborted || cache.has(key)) return;
      cache.set(key, { data, at: Date.now() });
      again((number) => number + 1);
    };
    try {
      const data = await reader.current(abort.signal, onPart);
      if (abort.signal.aborted) return;
      cache.set(key, { data, at: Date.now() });
      mine.error = null;
    } catch (error) {
      if (abort.signal.aborted) return;
      mine.error = error;
    }
    mine.loading = false;
    if (state.current === mine) again((number) => number + 1);
  }, [key]);

  useEffect(() => {
    if (key === null) return undefined;
    let timer;
    let ended = false;
    const turn = async () => {
      if (!document.hidden) await reload();
      if (every && !ended) timer = setTimeout(turn, every);
    };
    const mine = state.current;
    turn();
    return () => {
      ended = true;
      clearTimeout(timer);
      mine.abort?.abort();
    };
  }, [key, every]);

  const kept = key === null ? undefined : cache.get(key);
  const { loading, error } = state.current;
  return { data: kept?.data, at: kept?.at, loading: loading && !kept, error, stale: Boolean(error && kept), reload };
}

// --- time ---

/** The current time, to the second; the component renders again as it passes. */
export function useNow(every = 1000) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

// --- notices ---

const notices = { list: [], listeners: new Set(), next: 1 };

/** Shows a short text for some seconds; screen readers read it. */
export function notify(text, kind = "good") {
  const id = notices.next++;
  notices.list = [...notices.list, { id, text, kind }];
  notices.listeners.forEach((each) => each());
  setTimeout(() => {
    notices.list = notices.list.filter((each) => each.id !== id);
    notices.listeners.forEach((each) => each());
  }, 6000);
}

export function useNotices() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((number) => number + 1);
    notices.listeners.add(listener);
    return () => notices.listeners.delete(listener);
  }, []);
  return notices.list;
}
