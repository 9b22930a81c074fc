// Live figures: one stream of server-sent events for all pages, with the last ten minutes for charts.
import { useEffect, useState } from "./html.js";
import { api, urlOf } from "./api.js";

const POINTS = 300; // ten minutes, one point every two seconds
const STALE_MS = 10000; // five events that did not come
const RETRY_MS = [1000, 2000, 5000, 10000];

/** Values of one name over time, with null where it was absent. All series have the length of `live.times`. */
class Series {
  constructor(length) {
    this.values = new Array(length).fill(null);
  }

  push(value) {
    this.values.push(value ?? null);
    if (this.values.length > POINTS) this.values.shift();
  }
}

/** A family of series by name: a name that comes later has nulls before, one that left is dropped at the end. */
class Family {
  constructor() {
    this.byName = new Map();
  }

  push(values, length) {
    for (const name of Object.keys(values)) {
      if (!this.byName.has(name)) this.byName.set(name, new Series(Math.min(length, POINTS)));
    }
    for (const [name, series] of this.byName) {
      series.push(values[name]);
      if (!(name in values) && series.values.every((each) => each === null)) this.byName.delete(name);
    }
  }

  of(name) {
    return this.byName.get(name)?.values ?? [];
  }
}

class Live {
  constructor() {
    this.listeners = new Set();
    this.reset();
  }

  reset() {
    this.state = "connecting";
    this.figures = null;
    this.problem = null;
    this.times = [];
    this.totals = new Family();
    this.topicsIn = new Family();
    this.topicsOut = new Family();
    this.lags = new Family();
    this.failures = 0;
  }

  start() {
    if (this.source) return;
    this.open();
    this.timer = setInterval(() => this.checkAge(), 2000);
  }

  stop() {
    clearInterval(this.timer);
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
    this.reset();
    this.tell();
  }

  open() {
    this.source = new EventSource(urlOf("events"));
    this.source.addEventListener("figures", (event) => this.onFigures(JSON.parse(event.data)));
    this.source.addEventListener("problem", (event) => this.onProblem(event.data));
    this.source.onerror = () => this.onLost();
  }

  onFigures(figures) {
    const before = this.times.length;
    this.times.push(figures.atMs);
    if (this.times.length > POINTS) this.times.shift();
    const rates = Object.entries(figures.topics);
    this.totals.push({ in: figures.inPerS, out: figures.outPerS }, before);
    this.topicsIn.push(Object.fromEntries(rates.map(([name, each]) => [name, each.inPerS])), before);
    this.topicsOut.push(Object.fromEntries(rates.map(([name, each]) => [name, each.outPerS])), before);
    this.lags.push(figures.lags, before);
    this.figures = figures;
    this.receivedMs = Date.now();
    this.failures = 0;
    this.state = "live";
    this.problem = null;
    this.tell();
  }

  onProblem(text) {
    try {
      const data = JSON.parse(text);
      this.problem = data.detail || data.reason || data.title || text;
    } catch {
      this.problem = text;
    }
    this.tell();
  }

  onLost() {
    // The browser tries again by itself only after some kinds of failures. This does so after all of them.
    this.source.close();
    this.state = "lost";
    this.tell();
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)]);
    this.failures += 1;
    if (this.failures > 1) api.me().catch(() => {}); // an EventSource hides the status; a 401 of this one shows the log-in
  }

  checkAge() {
    if (this.state === "live" && Date.now() - this.receivedMs > STALE_MS) {
      this.state = "stale";
      this.tell();
    }
  }

  tell() {
    this.listeners.forEach((each) => each());
  }
}

export const live = new Live();

/** The stream's state; the component renders again with each event. */
export function useLive() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((number) => number + 1);
    live.listeners.add(listener);
    return () => live.listeners.delete(listener);
  }, []);
  return live;
}
