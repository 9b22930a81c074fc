import { html, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { ChangeDialog } from "../lib/change.js";
import { Button, Card, Empty, Failure, Loaded, Loading, PageHeader, Problems, Search, Table } from "../lib/components.js";
import { count, plural } from "../lib/format.js";
import { go, href, useMay, useQuery } from "../lib/state.js";
import { MESSAGES, usePages } from "./messages.js";

export function DeadLettersPage({ name, query }) {
  return name ? html`<${Letters} group=${name} />` : html`<${Groups} text=${query.search || ""} />`;
}

const COLUMNS = [
  { id: "name", title: "Consumer group", wide: true, className: "break", value: (row) => row.group, cell: (row) => html`<a class="strong" href=${href(["dead-letters", row.group])}>${row.group}</a>` },
  { id: "count", title: "Dead letters", number: true, value: (row) => row.messages, cell: (row) => count(row.messages) },
];

const RETRIES = { id: "retries", title: "Retries", number: true, value: (row) => row.retries, cell: (row) => count(row.retries) };

function Groups({ text }) {
  const groups = useQuery("dead-letters", (signal) => api.deadLetterGroups(signal), { every: 15000 });
  return html`<${PageHeader} title="Dead letters">Messages that a consumer group could not process in all of its attempts.<//>
    <div class="toolbar"><${Search} value=${text} onInput=${(search) => go(["dead-letters"], { search }, { replace: true })} label="Search consumer groups" placeholder="Search consumer groups" /></div>
    <${Loaded} query=${groups}>${(list) => {
      const rows = list.filter((each) => each.group.toLowerCase().includes(text.toLowerCase()));
      return html`<${Card} flush><${Table} label="Consumer groups with dead letters" rows=${rows} rowKey=${(row) => row.group} sort=${["count", "descending"]} columns=${COLUMNS}
        empty=${list.length ? html`<${Empty} icon="search" title="No group has this name" />` : html`<${Empty} icon="check" title="There are no dead letters">Each group could process its messages.<//>`} /><//>`;
    }}<//>`;
}

function Letters({ group }) {
  const canChange = useMay("operator");
  const [selected, setSelected] = useState(new Set());
  const [dialog, setDialog] = useState(null);
  const [turn, setTurn] = useState(0);
  const pages = usePages((cursor) => api.deadLetters(group, { cursor, limit: 100 }), `${group} ${turn}`);
  const columns = [...MESSAGES.slice(0, 2), { id: "topic", title: "From topic", className: "break", value: (row) => row.topic, cell: (row) => html`<a href=${href(["topics", row.topic])}>${row.topic}</a>` }, ...MESSAGES.filter((each) => ["tag", "keys"].includes(each.id)), RETRIES, MESSAGES[MESSAGES.length - 1]];
  const actions = canChange && pages.items.length > 0 && html`<${Button} kind="primary" icon="send" disabled=${!selected.size} onClick=${() => setDialog([...selected])}>${selected.size ? `Resend ${count(selected.size)}` : "Resend selected"}<//>
    <${Button} onClick=${() => setDialog("all")}>Resend all<//>`;
  return html`<${PageHeader} title=${group} mono crumbs=${[["Dead letters", href(["dead-letters"])]]} actions=${actions}><a href=${href(["consumer-groups", group])}>The consumer group</a><//>
    <p class="summary" role="status">${pages.busy ? "Reading …" : pages.error ? "" : `${plural(pages.items.length, "dead letter")}${pages.cursor ? ", and further ones" : ""}${selected.size ? `, ${count(selected.size)} selected` : ""}`}</p>
    ${pages.error && html`<${Failure} error=${pages.error} retry=${pages.reload} />`}
    <${Problems} problems=${pages.problems} />
    ${pages.busy && !pages.items.length && html`<${Loading} />`}
    ${!pages.busy && !pages.error && !pages.items.length && html`<${Card}><${Empty} icon="check" title="This group has no dead letters" /><//>`}
    ${pages.items.length > 0 && html`<${Card} flush><${Table} label="Dead letters" rows=${pages.items} rowKey=${(row) => row.id} columns=${columns} selected=${canChange ? selected : undefined} onSelect=${setSelected} /><//>`}
    ${pages.cursor && html`<div class="more"><${Button} disabled=${pages.busy} onClick=${pages.more}>Show further messages<//></div>`}
    ${dialog && html`<${ChangeDialog} title=${dialog === "all" ? `Resend all dead letters of ${group}` : `Resend ${plural(dialog.length, "dead letter")}`} verb="Resend"
      run=${(dryRun) => api.resendDeadLetters(group, dialog === "all" ? null : dialog, dryRun)} onDone=${() => setSelected(new Set())} onClose=${() => { setDialog(null); setTurn(turn + 1); }}>
      <p class="lead">Each message is sent to the group's retry topic, so that only this group gets it again. The dead letter stays until it expires.</p><//>`}`;
}
