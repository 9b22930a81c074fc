import { html, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { Badge, Button, Card, Check, Empty, Failure, Loading, PageHeader, Problems, Search, Table, Time } from "../lib/components.js";
import { plain, plural } from "../lib/format.js";
import { go } from "../lib/state.js";
import { usePages } from "./messages.js";

/** The identifier of a line and empty counts tell a reader nothing. */
const isOfInterest = ([name, value]) => name !== "id" && !(name === "left_out" && value === 0);

const COLUMNS = [
  { id: "at", title: "Time", value: (row) => row.atMs, cell: (row) => html`<${Time} ms=${row.atMs} both />` },
  { id: "result", title: "Result", value: (row) => row.allowed, cell: (row) => html`<${Badge} kind=${row.allowed ? "good" : "bad"} icon=${row.allowed ? "check" : "warn"}>${row.allowed ? "allowed" : "refused"}<//>` },
  { id: "user", title: "User", value: (row) => row.user, cell: (row) => (row.user ? html`<b>${row.user}</b>` : html`<span class="faint">no user</span>`) },
  { id: "action", title: "Action", value: (row) => row.action, cell: (row) => row.action },
  { id: "resource", title: "Resource", className: "break", value: (row) => row.resource, cell: (row) => html`<span class="mono">${row.resource}</span>` },
  { id: "source", title: "From", value: (row) => row.source, cell: (row) => html`<span class="mono">${row.source}</span>` },
  { id: "broker", title: "Broker", value: (row) => row.broker, cell: (row) => html`<span class="nowrap">${row.broker}</span>` },
  { id: "fields", title: "Details", full: true, className: "break", cell: (row) => html`<small class="mono faint">${Object.entries(row.fields).filter(isOfInterest).map(([name, value]) => `${name}=${plain(value)}`).join(" ")}</small>` },
];

export function AuditPage({ query }) {
  const [turn, setTurn] = useState(0);
  const pages = usePages((cursor) => api.audit({ cursor, limit: 100 }), `audit ${turn}`);
  const text = (query.search || "").toLowerCase();
  const refused = query.refused === "true";
  const rows = pages.items.map((each, index) => ({ ...each, index })).filter((each) => (!refused || !each.allowed) && (!text || JSON.stringify(each).toLowerCase().includes(text)));
  const change = (values) => go(["audit"], { search: query.search, refused: query.refused, ...values }, { replace: true });
  return html`<${PageHeader} title="Audit log" actions=${html`<${Button} icon="refresh" disabled=${pages.busy} onClick=${() => setTurn(turn + 1)}>Refresh<//>`}>Changes that brokers made, and requests that they refused.<//>
    <div class="toolbar"><${Search} value=${query.search || ""} onInput=${(search) => change({ search })} label="Search the lines that were read" placeholder="Search user, action, resource" />
      <${Check} label="Only refused" checked=${refused} onChange=${(on) => change({ refused: on || "" })} /></div>
    <p class="summary" role="status">${pages.busy ? "Reading …" : pages.error ? "" : plural(rows.length, "line")}</p>
    ${pages.error && html`<${Failure} error=${pages.error} retry=${pages.reload} />`}
    <${Problems} problems=${pages.problems} />
    ${pages.busy && !pages.items.length && html`<${Loading} rows=${10} />`}
    ${!pages.busy && !pages.error && !rows.length && html`<${Card}><${Empty} icon="audit" title=${pages.items.length ? "No line matches" : "The audit log is empty"}>${pages.items.length ? "Only the lines that were read so far are searched." : "Brokers with access control write a line for each change and each refusal."}<//><//>`}
    ${rows.length > 0 && html`<${Card} flush><${Table} label="Audit log" rows=${rows} rowKey=${(row) => String(row.index)} columns=${COLUMNS} size=${100} /><//>`}
    ${pages.cursor && html`<div class="more"><${Button} disabled=${pages.busy} onClick=${pages.more}>Show older lines<//></div>`}`;
}
