import { html, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { Sparkline } from "../lib/chart.js";
import { Badge, Button, Card, Check, Empty, Loaded, Owner, PageHeader, Problems, Search, Status, Table } from "../lib/components.js";
import { count, duration, plural, rate, short } from "../lib/format.js";
import { live, useLive } from "../lib/live.js";
import { go, href, useMay, useQuery } from "../lib/state.js";
import { GroupDialog } from "./group_dialogs.js";
import { useFiltered } from "./topics.js";

const lagOf = (row) => live.figures?.lags[row.name] ?? row.lag;

export const GroupStatus = ({ state }) => html`<${Status} kind=${state === "online" ? "good" : "off"}>${state}<//>`;

const COLUMNS = [
  { id: "name", title: "Consumer group", wide: true, className: "break", value: (row) => row.name, cell: (row) => html`<a class="strong" href=${href(["consumer-groups", row.name])}>${row.name}</a> <${Owner} owner=${row.owner} />${row.disagrees && html` <${Badge} kind="warn" icon="warn" title="Members have different subscriptions">disagree<//>`}` },
  { id: "state", title: "State", value: (row) => row.state, cell: (row) => html`<${GroupStatus} state=${row.state} />` },
  { id: "members", title: "Members", number: true, value: (row) => row.members, cell: (row) => count(row.members) },
  { id: "topics", title: "Topics", number: true, value: (row) => row.topics.length, cell: (row) => count(row.topics.length) },
  { id: "chart", title: "Lag, last minutes", cell: (row) => html`<${Sparkline} values=${live.lags.of(row.name)} color=${3} />` },
  { id: "lag", title: "Lag", number: true, value: lagOf, cell: (row) => short(lagOf(row)) },
  { id: "age", title: "Oldest", number: true, value: (row) => row.lagS, cell: (row) => duration(row.lagS) },
  { id: "out", title: "Out", number: true, value: (row) => row.outPerS, cell: (row) => rate(row.outPerS) },
  { id: "dead", title: "Dead letters", number: true, value: (row) => row.deadLetters, cell: (row) => (row.deadLetters ? html`<a href=${href(["dead-letters", row.name])}>${count(row.deadLetters)}</a>` : count(row.deadLetters)) },
];

export function GroupsPage({ query }) {
  const system = query.system === "true";
  const text = query.search || "";
  const canChange = useMay("admin");
  const [creating, setCreating] = useState(false);
  const [created, setCreated] = useState(null);
  const groups = useQuery(`groups ${system}`, (signal, onPart) => api.groups({ system }, signal, onPart), { every: 15000 });
  const change = (values) => go(["consumer-groups"], { search: text, system: system || "", ...values }, { replace: true });
  return html`<${PageHeader} title="Consumer groups" actions=${canChange && html`<${Button} kind="primary" icon="plus" onClick=${() => setCreating(true)}>Create group<//>`} />
    <div class="toolbar"><${Search} value=${text} onInput=${(search) => change({ search })} label="Search consumer groups" placeholder="Search consumer groups" />
      <${Check} label="System groups" checked=${system} onChange=${(on) => change({ system: on || "" })} /></div>
    <${Loaded} query=${groups} rows=${10}>${({ items, problems, more }) => html`<${Problems} problems=${problems} /><${List} items=${items} more=${more} text=${text} />`}<//>
    ${creating && html`<${GroupDialog} onClose=${() => { setCreating(false); if (created) go(["consumer-groups", created]); }} onDone=${(name) => { groups.reload(); setCreated(name); }} />`}`;
}

function List({ items, more, text }) {
  useLive();
  const rows = useFiltered(items, text);
  const empty = text
    ? html`<${Empty} icon="search" title="No group has this name">Nothing contains “${text}”.<//>`
    : html`<${Empty} icon="groups" title="There are no consumer groups yet">The first member of a group that connects creates it, if the brokers allow it.<//>`;
  return html`<p class="summary" role="status">${text ? `${plural(rows.length, "group")} of ${count(items.length)}` : plural(items.length, "group")}${more ? ", and further ones: search to see them" : ""}</p>
    <${Card} flush><${Table} label="Consumer groups" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.name} sort=${["lag", "descending"]} empty=${empty} /><//>`;
}
