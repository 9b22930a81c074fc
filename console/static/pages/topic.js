import { html, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { LineChart } from "../lib/chart.js";
import { failedOf } from "../lib/change.js";
import { Badge, Button, Card, Empty, Figure, Figures, Loaded, Owner, PageHeader, Pairs, Problems, Table, Tabs, Time } from "../lib/components.js";
import { count, plain, rate, short } from "../lib/format.js";
import { live, useLive } from "../lib/live.js";
import { go, href, useMay, useQuery } from "../lib/state.js";
import { DeleteTopicDialog, SendDialog, TopicDialog } from "./topic_dialogs.js";
import { Kind, queuesOf } from "./topics.js";

const PERMS = { 0: "neither", 2: "write only", 4: "read only", 6: "read and write" };

export function TopicPage({ name, query }) {
  const topic = useQuery(`topic ${name}`, (signal) => api.topic(name, signal), { every: 10000 });
  const [dialog, setDialog] = useState(null);
  const [deleted, setDeleted] = useState(false);
  const canSend = useMay("operator");
  const canChange = useMay("admin");
  const data = topic.data?.topic;
  const reload = () => topic.reload();
  const close = () => setDialog(null);
  const actions = html`<a class="button" href=${href(["messages"], { topic: name })}>Messages</a>
    ${canSend && data && html`<${Button} icon="send" onClick=${() => setDialog("send")}>Send message<//>`}
    ${canChange && data && html`<${Button} icon="edit" onClick=${() => setDialog("change")}>Change<//><${Button} kind="danger-quiet" icon="trash" onClick=${() => setDialog("delete")}>Delete<//>`}`;
  return html`<${PageHeader} title=${name} mono crumbs=${[["Topics", href(["topics"])]]} actions=${actions}
      badges=${data && html`<${Kind} kind=${data.kind} /><${Owner} owner=${data.owner} />${!data.agree && html`<${Badge} kind="warn" icon="warn">configurations differ<//>`}`} />
    <${Loaded} query=${topic}>${(detail) => html`<${Detail} detail=${detail} tab=${query.tab || "queues"} />`}<//>
    ${dialog === "send" && html`<${SendDialog} topic=${data} onClose=${close} onSent=${reload} />`}
    ${dialog === "change" && html`<${TopicDialog} topic=${data} onClose=${close} onDone=${reload} />`}
    ${dialog === "delete" && html`<${DeleteTopicDialog} topic=${data} onClose=${() => { close(); if (deleted) go(["topics"]); }} onDone=${(result) => setDeleted(!failedOf(result))} />`}`;
}

function Detail({ detail, tab }) {
  const { figures, times, topicsIn, topicsOut } = useLive();
  const { topic, queues, producers, consumerGroups, problems } = detail;
  const rates = figures?.topics[topic.name] || topic.rates;
  const clients = Object.entries(producers).flatMap(([group, list]) => list.map((each) => ({ group, ...each })));
  const part = (values) => (values.length ? values : times.map(() => null));
  return html`<${Problems} problems=${problems} />
    <${Figures}>
      <${Figure} label="Messages in" value=${rate(rates.inPerS)} />
      <${Figure} label="Messages out" value=${rate(rates.outPerS)} note="to all groups" />
      <${Figure} label="Messages" value=${short(topic.messages)} note="can be read now" />
      <${Figure} label="Queues" value=${count(queuesOf(topic))} note=${`at ${Object.keys(topic.configs).length} broker${Object.keys(topic.configs).length === 1 ? "" : "s"}`} />
    <//>
    <${Card} title="Messages per second" note="last ten minutes"><${LineChart} label=${`Messages per second of ${topic.name}`} times=${times} format=${rate}
      series=${[{ name: "In", values: part(topicsIn.of(topic.name)), color: 1 }, { name: "Out", values: part(topicsOut.of(topic.name)), color: 2 }]} /><//>
    <${Tabs} label="Parts of the topic" active=${tab} to=${(id) => href(["topics", topic.name], { tab: id })}
      tabs=${[["queues", "Queues", queues.length], ["producers", "Producers", clients.length], ["consumers", "Consumer groups", consumerGroups.length], ["configuration", "Configuration"]]} />
    ${tab === "queues" && html`<${Card} flush><${Table} label="Queues" rows=${queues} rowKey=${(row) => `${row.broker} ${row.queue}`} columns=${QUEUES} empty=${html`<${Empty} title="No broker reported queues" />`} /><//>`}
    ${tab === "producers" && html`<${Card} flush><${Table} label="Producers" rows=${clients} rowKey=${(row) => `${row.group} ${row.clientId}`} columns=${PRODUCERS} empty=${html`<${Empty} title="No producer is connected">Brokers report the producers that send heartbeats.<//>`} /><//>`}
    ${tab === "consumers" && html`<${Card} flush><${Table} label="Consumer groups" rows=${consumerGroups} rowKey=${(row) => row} columns=${GROUPS} empty=${html`<${Empty} title="No group reads this topic" />`} /><//>`}
    ${tab === "configuration" && html`<${Configuration} topic=${topic} />`}`;
}

const QUEUES = [
  { id: "queue", title: "Queue", value: (row) => `${row.broker} ${row.queue}`, cell: (row) => html`<span class="mono nowrap">${row.broker} · ${row.queue}</span>` },
  { id: "min", title: "First offset", number: true, value: (row) => row.min, cell: (row) => count(row.min) },
  { id: "max", title: "Next offset", number: true, value: (row) => row.max, cell: (row) => count(row.max) },
  { id: "messages", title: "Messages", number: true, value: (row) => row.max - row.min, cell: (row) => count(row.max - row.min) },
  { id: "last", title: "Last message", value: (row) => row.lastUpdateMs, cell: (row) => html`<${Time} ms=${row.lastUpdateMs} />` },
];

const PRODUCERS = [
  { id: "client", title: "Client", wide: true, className: "break", value: (row) => row.clientId, cell: (row) => html`<span class="mono">${row.clientId}</span>` },
  { id: "group", title: "Producer group", value: (row) => row.group, cell: (row) => row.group },
  { id: "address", title: "Address", value: (row) => row.address, cell: (row) => html`<span class="mono">${row.address}</span>` },
  { id: "language", title: "Language", value: (row) => row.language, cell: (row) => row.language },
  { id: "version", title: "Version", value: (row) => row.version, cell: (row) => row.version },
];

const GROUPS = [
  { id: "name", title: "Consumer group", wide: true, className: "break", value: (row) => row, cell: (row) => html`<a class="strong" href=${href(["consumer-groups", row])}>${row}</a>` },
  { id: "lag", title: "Lag of the group", number: true, value: (row) => live.figures?.lags[row], cell: (row) => short(live.figures?.lags[row]) },
];

function Configuration({ topic }) {
  const brokers = Object.entries(topic.configs);
  return html`<div class="columns">${brokers.map(([broker, config]) => html`<${Card} key=${broker} title=${broker}><${Pairs} items=${[
    ["Queues to read", config.readQueues],
    ["Queues to write", config.writeQueues],
    ["Permission", PERMS[config.perm] ?? config.perm],
    ["Ordered", plain(config.order)],
    ...Object.entries(config.attributes).map(([name, value]) => [name, html`<code>${value}</code>`]),
  ]} /><//>`)}</div>`;
}
