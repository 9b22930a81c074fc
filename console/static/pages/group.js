import { html, useRef, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { failedOf } from "../lib/change.js";
import { LineChart } from "../lib/chart.js";
import { Badge, Banner, Button, Card, Empty, Figure, Figures, Loaded, Owner, PageHeader, Pairs, Problems, Table, Tabs, Time } from "../lib/components.js";
import { count, duration, plain, rate, short } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { go, href, useMay, useQuery } from "../lib/state.js";
import { CloneDialog, DeleteGroupDialog, GroupDialog, ResetDialog } from "./group_dialogs.js";
import { GroupStatus } from "./groups.js";

export function GroupPage({ name, query }) {
  const group = useQuery(`group ${name}`, (signal) => api.group(name, signal), { every: 5000 });
  const [dialog, setDialog] = useState(null);
  const [deleted, setDeleted] = useState(false);
  const canReset = useMay("operator");
  const canChange = useMay("admin");
  const data = group.data?.group;
  const reload = () => group.reload();
  const close = () => setDialog(null);
  const actions = canReset && data && html`<${Button} icon="rewind" onClick=${() => setDialog("reset")}>Reset offsets<//><${Button} icon="copy" onClick=${() => setDialog("clone")}>Copy offsets<//>
    ${canChange && html`<${Button} icon="edit" onClick=${() => setDialog("change")}>Change<//><${Button} kind="danger-quiet" icon="trash" onClick=${() => setDialog("delete")}>Delete<//>`}`;
  return html`<${PageHeader} title=${name} mono crumbs=${[["Consumer groups", href(["consumer-groups"])]]} actions=${actions}
      badges=${data && html`<${GroupStatus} state=${data.state} />${data.mode && html`<${Badge}>${data.mode}<//>`}<${Owner} owner=${data.owner} />${data.disagrees && html`<${Badge} kind="warn" icon="warn">subscriptions disagree<//>`}`} />
    <${Loaded} query=${group}>${(detail) => html`<${Detail} detail=${detail} at=${group.at} tab=${query.tab || "queues"} />`}<//>
    ${dialog === "reset" && html`<${ResetDialog} group=${data} onClose=${close} onDone=${reload} />`}
    ${dialog === "clone" && html`<${CloneDialog} group=${data} onClose=${close} onDone=${reload} />`}
    ${dialog === "change" && html`<${GroupDialog} group=${data} onClose=${close} onDone=${reload} />`}
    ${dialog === "delete" && html`<${DeleteGroupDialog} group=${data} onClose=${() => { close(); if (deleted) go(["consumer-groups"]); }} onDone=${(result) => setDeleted(!failedOf(result))} />`}`;
}

/** The values of a query over time, as long as the page is open; `at`: when the last one was read. */
function useHistory(at, value) {
  const kept = useRef({ times: [], values: [] });
  const { times, values } = kept.current;
  if (at && at !== times[times.length - 1]) {
    times.push(at);
    values.push(value);
    if (times.length > 300) {
      times.shift();
      values.shift();
    }
  }
  return kept.current;
}

function Detail({ detail, at, tab }) {
  const ages = useHistory(at, detail.group.lagS);
  const { figures, times, lags } = useLive();
  const { group, queues, members, disagreements, problems } = detail;
  const values = lags.of(group.name);
  return html`<${Problems} problems=${problems} />
    ${disagreements.map((each) => html`<${Disagreement} key=${each.topic} disagreement=${each} />`)}
    <${Figures}>
      <${Figure} label="Lag" value=${short(figures?.lags[group.name] ?? group.lag)} note="messages" kind=${group.lagS > 300 ? "warn" : ""} />
      <${Figure} label="Oldest waiting" value=${duration(group.lagS)} note="first message that waits" />
      <${Figure} label="Messages out" value=${rate(group.outPerS)} />
      <${Figure} label="Members" value=${count(group.members)} note=${group.state} />
      <${Figure} label="Dead letters" value=${group.deadLetters ? html`<a href=${href(["dead-letters", group.name])}>${count(group.deadLetters)}</a>` : count(group.deadLetters)} kind=${group.deadLetters ? "warn" : ""} />
    <//>
    <div class="columns">
      <${Card} title="Lag in messages" note="last ten minutes"><${LineChart} label=${`Lag of ${group.name} in messages`} times=${times} format=${short}
        series=${[{ name: "Lag", values: values.length ? values : times.map(() => null), color: 3 }]} /><//>
      <${Card} title="Lag in seconds" note="since the page was opened"><${LineChart} label=${`Age of the oldest message that waits for ${group.name}`} times=${ages.times} format=${duration} axis=${(seconds) => `${short(seconds)} s`}
        series=${[{ name: "Oldest", values: ages.values, color: 4 }]} /><//>
    </div>
    <${Tabs} label="Parts of the consumer group" active=${tab} to=${(id) => href(["consumer-groups", group.name], { tab: id })}
      tabs=${[["queues", "Queues", queues.length], ["members", "Members", members.length], ["configuration", "Configuration"]]} />
    ${tab === "queues" && html`<${Card} flush><${Table} label="Queues" rows=${queues} rowKey=${(row) => `${row.topic} ${row.broker} ${row.queue}`} sort=${["lag", "descending"]} columns=${QUEUES} empty=${html`<${Empty} title="The group has no offsets yet" />`} /><//>`}
    ${tab === "members" && html`<${Card} flush><${Table} label="Members" rows=${members} rowKey=${(row) => row.connection.clientId} columns=${MEMBERS} empty=${html`<${Empty} icon="groups" title="No member is connected">The lag grows while the group is offline.<//>`} /><//>`}
    ${tab === "configuration" && html`<${Configuration} group=${group} />`}`;
}

function Disagreement({ disagreement }) {
  return html`<${Banner} kind="warn" title=${`Members subscribe to ${disagreement.topic} in different ways`}>
    The last heartbeat decides what the group gets, so some members get no messages, or the wrong ones.
    <ul class="plain">${Object.entries(disagreement.expressions).map(([expression, clients]) => html`<li key=${expression}><code>${expression}</code> ${clients.join(", ")}</li>`)}</ul><//>`;
}

const QUEUES = [
  { id: "topic", title: "Topic", wide: true, className: "break", value: (row) => row.topic, cell: (row) => html`<a href=${href(["topics", row.topic])}>${row.topic}</a>` },
  { id: "queue", title: "Queue", value: (row) => `${row.broker} ${row.queue}`, cell: (row) => html`<span class="mono nowrap">${row.broker} · ${row.queue}</span>` },
  { id: "consumer", title: "Group's offset", number: true, value: (row) => row.consumerOffset, cell: (row) => (row.consumerOffset === null ? html`<span class="faint">not committed</span>` : count(row.consumerOffset)) },
  { id: "broker", title: "Next offset", number: true, value: (row) => row.brokerOffset, cell: (row) => count(row.brokerOffset) },
  { id: "lag", title: "Lag", number: true, value: (row) => row.lag, cell: (row) => html`<b>${count(row.lag)}</b>` },
  { id: "age", title: "Oldest", number: true, value: (row) => row.lagS, cell: (row) => duration(row.lagS) },
  { id: "last", title: "Last consumed", value: (row) => row.lastConsumedMs, cell: (row) => html`<${Time} ms=${row.lastConsumedMs} />` },
  { id: "client", title: "Member", full: true, className: "break", value: (row) => row.clientId, cell: (row) => (row.clientId ? html`<span class="mono">${row.clientId}</span>` : html`<span class="faint">no member</span>`) },
];

const MEMBERS = [
  { id: "client", title: "Client", wide: true, className: "break", value: (row) => row.connection.clientId, cell: (row) => html`<span class="mono strong">${row.connection.clientId}</span>` },
  { id: "address", title: "Address", value: (row) => row.connection.address, cell: (row) => html`<span class="mono">${row.connection.address}</span>` },
  { id: "language", title: "Client library", value: (row) => row.connection.language, cell: (row) => `${row.connection.language} ${row.connection.version}` },
  { id: "queues", title: "Queues", number: true, value: (row) => row.queues, cell: (row) => count(row.queues) },
  { id: "subscriptions", title: "Subscriptions", full: true, className: "break", cell: (row) => html`<ul class="plain">${row.subscriptions.map((each) => html`<li key=${each.topic}>${each.topic} <code>${each.expression}</code>${each.kind !== "TAG" && html` <${Badge}>${each.kind}<//>`}</li>`)}</ul>` },
];

function Configuration({ group }) {
  const brokers = Object.entries(group.configs);
  if (!brokers.length) return html`<${Card}><${Empty} title="No broker has a configuration of this group">Brokers use their defaults.<//><//>`;
  return html`<div class="columns">${brokers.map(([broker, config]) => html`<${Card} key=${broker} title=${broker}><${Pairs} items=${[
    ["Members may consume", plain(config.consumeEnable)],
    ["May begin at the oldest message", plain(config.consumeFromMinEnable)],
    ["May use broadcast", plain(config.consumeBroadcastEnable)],
    ["Deliveries until dead letter", count(config.maxRetries)],
    ["Retry queues", count(config.retryQueues)],
  ]} /><//>`)}</div>`;
}
