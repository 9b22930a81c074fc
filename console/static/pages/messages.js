import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { api, itemsOf } from "../lib/api.js";
import { Badge, Button, Card, Empty, Failure, Field, Loading, PageHeader, Problems, Segments, Table, Time } from "../lib/components.js";
import { bytes, count, plural, toLocalInput } from "../lib/format.js";
import { go, href, useQuery } from "../lib/state.js";

const WINDOWS = [["15", "last 15 minutes"], ["60", "last hour"], ["360", "last 6 hours"], ["1440", "last day"], ["custom", "from … to …"]];
const WAYS = [["window", "By time"], ["key", "By key"], ["unique", "By unique key"], ["id", "By id"]];

export const MESSAGES = [
  { id: "stored", title: "Stored", value: (row) => row.storedMs, cell: (row) => html`<${Time} ms=${row.storedMs} both />` },
  { id: "id", title: "Message", wide: true, className: "break", cell: (row) => html`<a class="mono strong key" href=${href(["messages", row.id])}>${row.uniqueKey || row.id}</a>` },
  { id: "tag", title: "Tag", value: (row) => row.tag, cell: (row) => (row.tag ? html`<${Badge}>${row.tag}<//>` : "") },
  { id: "keys", title: "Keys", className: "break", value: (row) => row.keys.join(" "), cell: (row) => row.keys.join(" ") },
  { id: "queue", title: "Queue", value: (row) => `${row.broker} ${row.queue}`, cell: (row) => html`<span class="mono nowrap">${row.broker} · ${row.queue}</span>` },
  { id: "offset", title: "Offset", number: true, value: (row) => row.offset, cell: (row) => count(row.offset) },
  { id: "size", title: "Size", number: true, value: (row) => row.sizeBytes, cell: (row) => bytes(row.sizeBytes) },
];

const NOTHING = { items: [], problems: [], cursor: null, busy: false, error: null };

/** Pages of a list that a cursor continues. `read(cursor)` returns the next part; null: there is nothing to read. */
export function usePages(read, key) {
  const [state, setState] = useState({ ...NOTHING, key: null });
  const load = async (before) => {
    setState({ ...before, busy: true, error: null });
    try {
      const page = await read(before.cursor || undefined);
      const next = { ...NOTHING, key, items: [...before.items, ...itemsOf(page)], problems: page.problems || [], cursor: page.cursor ?? null };
      setState((now) => (now.key === key ? next : now));
    } catch (error) {
      setState((now) => (now.key === key ? { ...before, busy: false, error } : now));
    }
  };
  const first = { ...NOTHING, key };
  useEffect(() => {
    if (key !== null) load(first);
    else setState(first);
  }, [key]);
  return { ...state, more: () => load(state), reload: () => load(first), started: state.key !== null };
}

export function MessagesPage({ query }) {
  const [topic, setTopic] = useState(query.topic || "");
  const [way, setWay] = useState(query.by || "window");
  const [text, setText] = useState(query.text || "");
  const [window, setWindow] = useState(query.window || "60");
  const [begin, setBegin] = useState(query.begin ? toLocalInput(Number(query.begin)) : toLocalInput(Date.now() - 3600000));
  const [end, setEnd] = useState(query.end ? toLocalInput(Number(query.end)) : toLocalInput(Date.now()));
  const topics = useQuery("topics true", (signal) => api.topics({ system: true }, signal));
  const names = useMemo(() => (topics.data?.items || []).map((each) => each.name), [topics.data]);
  const badTimes = way === "window" && window === "custom" && !(new Date(begin).getTime() < new Date(end).getTime());
  const valid = way === "id" ? text.trim() !== "" : topic !== "" && (way === "window" ? !badTimes : text.trim() !== "");
  const submit = (event) => {
    event.preventDefault();
    if (!valid) return;
    if (way === "id") {
      go(["messages", text.trim()]);
      return;
    }
    const times = window === "custom" ? { begin: new Date(begin).getTime(), end: new Date(end).getTime() } : {};
    go(["messages"], { topic, by: way, ...(way === "window" ? { window, ...times } : { text: text.trim() }), at: Date.now() }, { replace: true });
  };
  const key = query.topic && query.at ? JSON.stringify(query) : null;
  return html`<${PageHeader} title="Messages" />
    <${Card}><form class="query" onSubmit=${submit}>
      <${Segments} label="Search messages" options=${WAYS} value=${way} onChange=${setWay} />
      <div class="query-row">
        ${way !== "id" && html`<div class="grow"><${Field} label="Topic" value=${topic} onInput=${setTopic} list="topic-names" data-search required /></div>
          <datalist id="topic-names">${names.slice(0, 2000).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>`}
        ${way === "window" && html`<${Field} label="Stored" value=${window} onInput=${setWindow} options=${WINDOWS} />`}
        ${way === "window" && window === "custom" && html`<${Field} label="From" type="datetime-local" step="1" value=${begin} onInput=${setBegin} /><${Field} label="To" type="datetime-local" step="1" value=${end} onInput=${setEnd} error=${badTimes && "must be later than the begin"} />`}
        ${way === "key" && html`<div class="grow"><${Field} label="Key" value=${text} onInput=${setText} required /></div>`}
        ${way === "unique" && html`<div class="grow"><${Field} label="Unique key" class="mono" value=${text} onInput=${setText} required /></div>`}
        ${way === "id" && html`<div class="grow"><${Field} label="Message id or unique key" class="mono" value=${text} onInput=${setText} required /></div>`}
        <button type="submit" class="button primary" disabled=${!valid}><span>${way === "id" ? "Open" : "Search"}</span></button>
      </div></form><//>
    ${key ? html`<${Found} query=${query} searchKey=${key} />` : html`<${Card}><${Empty} icon="search" title="Search the messages of a topic">By the time at which the broker stored them, by a key of the producer, or by the unique key of the client.<//><//>`}`;
}

function Found({ query, searchKey }) {
  const read = (cursor) => {
    if (query.by === "key") return api.messages(query.topic, { key: query.text, cursor, limit: 50 });
    if (query.by === "unique") return api.messages(query.topic, { uniqueKey: query.text, cursor });
    const end = query.end ? Number(query.end) : Number(query.at);
    const begin = query.begin ? Number(query.begin) : end - Number(query.window || 60) * 60000;
    return api.messages(query.topic, { begin, end, cursor, limit: 50 });
  };
  const pages = usePages(read, searchKey);
  return html`<p class="summary" role="status">${pages.busy ? "Searching …" : pages.started && !pages.error ? `${plural(pages.items.length, "message")}${pages.cursor ? ", and further ones" : ""}` : ""}</p>
    ${pages.error && html`<${Failure} error=${pages.error} retry=${pages.reload} title="The search failed" />`}
    <${Problems} problems=${pages.problems} />
    ${pages.busy && !pages.items.length && html`<${Loading} />`}
    ${!pages.busy && pages.started && !pages.error && !pages.items.length && html`<${Card}><${Empty} icon="messages" title="No message was found">${query.by === "window" || !query.by ? html`${query.topic} has no message in this window.` : html`No message of ${query.topic} has “${query.text}”.`}<//><//>`}
    ${pages.items.length > 0 && html`<${Card} flush><${Table} label="Messages" rows=${pages.items} rowKey=${(row) => row.id} columns=${MESSAGES} size=${200} /><//>`}
    ${pages.cursor && html`<div class="more"><${Button} disabled=${pages.busy} onClick=${pages.more}>${pages.busy ? "Searching …" : "Show further messages"}<//></div>`}`;
}
