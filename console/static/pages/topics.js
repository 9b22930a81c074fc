import { html, useMemo, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { Sparkline } from "../lib/chart.js";
import { Badge, Button, Card, Check, Empty, Loaded, Owner, PageHeader, Problems, Search, Table } from "../lib/components.js";
import { count, plural, rate } from "../lib/format.js";
import { live, useLive } from "../lib/live.js";
import { go, href, useMay, useQuery } from "../lib/state.js";
import { TopicDialog } from "./topic_dialogs.js";

const KINDS = { normal: "normal", ordered: "ordered", delay: "delay", transaction: "transaction", retry: "retry", deadLetter: "dead letter", system: "system" };
const COLORS = { normal: "plain", ordered: "accent", delay: "accent", transaction: "accent", retry: "warn", deadLetter: "bad", system: "plain" };

export const Kind = ({ kind }) => html`<${Badge} kind=${COLORS[kind]}>${KINDS[kind] || kind}<//>`;

/** The number of queues of a topic over all brokers. */
export const queuesOf = (topic) => Object.values(topic.configs).reduce((sum, each) => sum + Math.max(each.readQueues, each.writeQueues), 0);

const rateOf = (row, side) => live.figures?.topics[row.name]?.[side] ?? row.rates[side];

const COLUMNS = [
  { id: "name", title: "Topic", wide: true, className: "break", value: (row) => row.name, cell: (row) => html`<a class="strong" href=${href(["topics", row.name])}>${row.name}</a> <${Owner} owner=${row.owner} />${!row.agree && html` <${Badge} kind="warn" icon="warn" title="Brokers have different configurations of this topic">differs<//>`}` },
  { id: "kind", title: "Kind", value: (row) => row.kind, cell: (row) => html`<${Kind} kind=${row.kind} />` },
  { id: "queues", title: "Queues", number: true, value: queuesOf, cell: (row) => count(queuesOf(row)) },
  { id: "messages", title: "Messages", number: true, value: (row) => row.messages, cell: (row) => count(row.messages) },
  { id: "chart", title: "Last minutes", cell: (row) => html`<${Sparkline} values=${live.topicsIn.of(row.name)} />` },
  { id: "in", title: "In", number: true, value: (row) => rateOf(row, "inPerS"), cell: (row) => rate(rateOf(row, "inPerS")) },
  { id: "out", title: "Out", number: true, value: (row) => rateOf(row, "outPerS"), cell: (row) => rate(rateOf(row, "outPerS")) },
];

/** The rows of a list whose name has the text, in upper or lower case. */
export function useFiltered(rows, text) {
  return useMemo(() => {
    const wanted = text.trim().toLowerCase();
    return wanted ? rows.filter((each) => each.name.toLowerCase().includes(wanted)) : rows;
  }, [rows, text]);
}

export function TopicsPage({ query }) {
  const system = query.system === "true";
  const text = query.search || "";
  const canChange = useMay("admin");
  const [creating, setCreating] = useState(false);
  const [created, setCreated] = useState(null);
  const topics = useQuery(`topics ${system}`, (signal, onPart) => api.topics({ system }, signal, onPart), { every: 15000 });
  const change = (values) => go(["topics"], { search: text, system: system || "", ...values }, { replace: true });
  return html`<${PageHeader} title="Topics" actions=${canChange && html`<${Button} kind="primary" icon="plus" onClick=${() => setCreating(true)}>Create topic<//>`} />
    <div class="toolbar"><${Search} value=${text} onInput=${(search) => change({ search })} label="Search topics" placeholder="Search topics" />
      <${Check} label="System topics" checked=${system} onChange=${(on) => change({ system: on || "" })} /></div>
    <${Loaded} query=${topics} rows=${10}>${({ items, problems, more }) => html`<${Problems} problems=${problems} /><${List} items=${items} more=${more} text=${text} onCreate=${canChange && (() => setCreating(true))} />`}<//>
    ${creating && html`<${TopicDialog} onClose=${() => { setCreating(false); if (created) go(["topics", created]); }} onDone=${(name) => { topics.reload(); setCreated(name); }} />`}`;
}

function List({ items, more, text, onCreate }) {
  useLive();
  const rows = useFiltered(items, text);
  const empty = text
    ? html`<${Empty} icon="search" title="No topic has this name">Nothing contains “${text}”.<//>`
    : html`<${Empty} icon="topics" title="There are no topics yet" action=${onCreate && html`<${Button} kind="primary" icon="plus" onClick=${onCreate}>Create topic<//>`}>A producer's first message creates a topic, if the brokers allow it.<//>`;
  return html`<p class="summary" role="status">${text ? `${plural(rows.length, "topic")} of ${count(items.length)}` : plural(items.length, "topic")}${more ? ", and further ones: search to see them" : ""}</p>
    <${Card} flush><${Table} label="Topics" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.name} sort=${["name", "ascending"]} empty=${empty} /><//>`;
}
