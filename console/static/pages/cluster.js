import { html, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { Meter } from "../lib/chart.js";
import { ChangeDialog } from "../lib/change.js";
import { Badge, Banner, Button, Card, Check, Empty, Failure, Field, Loaded, PageHeader, Pairs, Search, Status, Table, Time, Dialog } from "../lib/components.js";
import { bytes, count, duration, percent, plain, plural, rate } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { useMay, useQuery } from "../lib/state.js";

export function ClusterPage() {
  const clusters = useQuery("clusters", (signal) => api.clusters(signal), { every: 5000 });
  const raft = useQuery("raft-groups", (signal) => api.raftGroups(signal), { every: 5000 });
  const reload = () => {
    clusters.reload();
    raft.reload();
  };
  return html`<${PageHeader} title="Cluster" />
    ${raft.error && !raft.data && html`<${Failure} error=${raft.error} retry=${raft.reload} title="The Raft groups could not be read" />`}
    ${raft.data && raft.data.map((group) => html`<${RaftGroup} key=${group.name} group=${group} onChange=${reload} />`)}
    <${Loaded} query=${clusters}>${(list) => list.length
      ? list.map((cluster) => html`<${Cluster} key=${cluster.name} cluster=${cluster} onChange=${reload} />`)
      : html`<${Card}><${Empty} icon="cluster" title="No broker is registered">The name servers know no broker.<//><//>`}<//>`;
}

const roleKind = (role) => (role === "leader" || role === "master" ? "accent" : role === "candidate" || role === "unknown" ? "warn" : "plain");

// --- Raft groups ---

function memberState(member) {
  if (member.connected === false) return ["bad", "not connected"];
  if (member.disk && member.disk !== "ok") return [member.disk === "low" ? "warn" : "bad", `disk: ${member.disk}`];
  if (member.phase && member.phase !== "ready") return ["warn", member.phase];
  return member.phase === null && member.connected === null ? ["off", "unknown"] : ["good", member.phase || "connected"];
}

/** How far a recovery of the log is, as `GET /node` reports it. */
function Recovery({ recovery }) {
  const { step, seconds, doneBytes, totalBytes } = recovery;
  const ratio = totalBytes ? doneBytes / totalBytes : null;
  const parts = [step, ratio !== null && `${bytes(doneBytes)} of ${bytes(totalBytes)}`, seconds !== undefined && duration(seconds)];
  return html`<small class="below">${parts.filter(Boolean).join(" · ")}</small>${ratio !== null && html`<${Meter} ratio=${ratio} label=${`${percent(ratio)} recovered`} warn=${2} bad=${2} />`}`;
}

function RaftGroup({ group, onChange }) {
  const canChange = useMay("admin");
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const columns = [
    { id: "id", title: "Member", wide: true, cell: (row) => html`<b>${row.id}</b> <span class="mono faint">${row.address || "unknown address"}</span>` },
    { id: "role", title: "Role", cell: (row) => html`<${Badge} kind=${roleKind(row.role)} icon=${row.role === "leader" ? "crown" : null}>${row.role}<//>` },
    { id: "voter", title: "Votes", cell: (row) => (row.voter ? "yes" : "no") },
    { id: "state", title: "State", full: true, cell: (row) => { const [kind, text] = memberState(row); return html`<${Status} kind=${kind}>${text}<//>${row.recovery && html`<${Recovery} recovery=${row.recovery} />`}`; } },
    { id: "lag", title: "Behind the leader", number: true, cell: (row) => (row.role === "leader" ? html`<span class="faint">leads</span>` : bytes(row.lagBytes)) },
    ...(canChange ? [{ id: "actions", title: "", cell: (row) => html`<span class="row-actions">
      ${row.role !== "leader" && row.voter && row.connected !== false && html`<${Button} kind="small" onClick=${() => setDialog(["leader", row])} aria-label=${`Make member ${row.id} the leader`}>Make leader<//>`}
      <${Button} kind="small danger-quiet" onClick=${() => setDialog(["remove", row])} aria-label=${`Remove member ${row.id}`}>Remove<//></span>` }] : []),
  ];
  const leader = group.members.find((each) => each.id === group.leader);
  return html`<${Card} title=${`Raft group ${group.name}`} flush note=${`cluster ${group.cluster}`}
      actions=${canChange && html`<${Button} kind="small" icon="plus" onClick=${() => setDialog(["add"])}>Add member<//>`}>
    ${group.problem && html`<${Banner} kind="warn" title=${group.leader === null ? "The group has no leader" : "The group has a problem"}>${group.problem}<//>`}
    <dl class="facts"><div><dt>Leader</dt><dd>${leader ? html`member ${leader.id}` : html`<span class="bad-text">no leader</span>`}</dd></div>
      <div><dt>Term</dt><dd>${count(group.term)}</dd></div><div><dt>Committed</dt><dd>${bytes(group.committed)}</dd></div>
      <div><dt>Members</dt><dd>${plural(group.members.filter((each) => each.voter).length, "voter")}</dd></div></dl>
    <${Table} label=${`Members of ${group.name}`} rows=${group.members} rowKey=${(row) => String(row.id)} columns=${columns} />
    ${dialog?.[0] === "leader" && html`<${ChangeDialog} title=${`Make member ${dialog[1].id} the leader`} verb="Transfer leadership" run=${(dryRun) => api.transferLeader(group.name, dialog[1].id, dryRun)} onDone=${onChange} onClose=${close} />`}
    ${dialog?.[0] === "remove" && html`<${ChangeDialog} title=${`Remove member ${dialog[1].id} of ${group.name}`} verb="Remove member" danger confirm=${String(dialog[1].id)} run=${(dryRun) => api.removeMember(group.name, dialog[1].id, dryRun)} onDone=${onChange} onClose=${close} />`}
    ${dialog?.[0] === "add" && html`<${AddMember} group=${group} onDone=${onChange} onClose=${close} />`}
  <//>`;
}

function AddMember({ group, onDone, onClose }) {
  const [member, setMember] = useState("");
  const [learner, setLearner] = useState(true);
  const valid = /^\d+@[^\s@]+:\d+$/.test(member);
  const form = html`<${Field} label="Member" value=${member} onInput=${setMember} placeholder="3@10.0.0.7:40911" hint="its number, and the address for the other members" error=${member && !valid && "NUMBER@HOST:PORT"} required />
    <${Check} label="Learner" hint="It gets the log and does not vote. Make it a voter when it has caught up." checked=${learner} onChange=${setLearner} />`;
  return html`<${ChangeDialog} title=${`Add a member to ${group.name}`} verb="Add member" form=${form} valid=${valid} run=${(dryRun) => api.addMember(group.name, member, learner, dryRun)} onDone=${onDone} onClose=${onClose} />`;
}

// --- brokers ---

function Cluster({ cluster, onChange }) {
  const canChange = useMay("admin");
  const { figures } = useLive();
  const [dialog, setDialog] = useState(null);
  const disk = (row) => figures?.disks[row.address] ?? row.disk.usedRatio;
  const columns = [
    { id: "name", title: "Broker", wide: true, value: (row) => row.name, cell: (row) => html`<b>${row.name}</b> <span class="mono faint">${row.address}</span>` },
    { id: "role", title: "Role", value: (row) => row.role, cell: (row) => html`<${Badge} kind=${roleKind(row.role)}>${row.role}<//>` },
    { id: "state", title: "State", full: true, value: (row) => row.reachable, cell: (row) => html`<${Status} kind=${row.reachable ? (row.problem ? "warn" : "good") : "bad"}>${row.reachable ? row.node?.phase || "reachable" : "not reachable"}<//>${row.problem && html`<small class="below">${row.problem}</small>`}` },
    { id: "version", title: "Version", value: (row) => row.version, cell: (row) => (row.version ? html`${row.isTallystick ? "tallystick" : "RocketMQ"} <span class="faint">${row.version}</span>` : html`<span class="faint">unknown</span>`) },
    { id: "in", title: "In", number: true, value: (row) => row.rates.inPerS, cell: (row) => (row.reachable ? rate(row.rates.inPerS) : "–") },
    { id: "out", title: "Out", number: true, value: (row) => row.rates.outPerS, cell: (row) => (row.reachable ? rate(row.rates.outPerS) : "–") },
    { id: "disk", title: "Disk", value: disk, cell: (row) => (disk(row) === null || disk(row) === undefined ? html`<span class="faint">${row.disk.error || "unknown"}</span>` : html`<span class="with-meter"><${Meter} ratio=${disk(row)} label=${`${percent(disk(row))} used`} />${percent(disk(row))}</span>`) },
    { id: "started", title: "Started", value: (row) => row.startedMs, cell: (row) => html`<${Time} ms=${row.startedMs} />` },
    { id: "actions", title: "", cell: (row) => html`<span class="row-actions"><${Button} kind="small" onClick=${() => setDialog(["details", row])} aria-label=${`Details of ${row.address}`}>Details<//>
      ${canChange && html`<${Button} kind="small" onClick=${() => setDialog(["writes", row])} aria-label=${`Writes of ${row.name}`}>Writes<//>`}</span>` },
  ];
  return html`<${Card} title=${`Brokers of ${cluster.name}`} flush note=${plural(cluster.brokers.length, "broker")}>
    <${Table} label=${`Brokers of ${cluster.name}`} rows=${cluster.brokers} rowKey=${(row) => row.address} columns=${columns} sort=${["name", "ascending"]} />
    ${dialog?.[0] === "details" && html`<${BrokerDetails} broker=${dialog[1]} onClose=${() => setDialog(null)} />`}
    ${dialog?.[0] === "writes" && html`<${Writes} broker=${dialog[1]} onDone=${onChange} onClose=${() => setDialog(null)} />`}
  <//>`;
}

function Writes({ broker, onDone, onClose }) {
  const [allowed, setAllowed] = useState("no");
  const form = html`<${Field} label="Producers" value=${allowed} onInput=${setAllowed} options=${[["no", "may not send to this broker"], ["yes", "may send to this broker"]]}
    hint="Name servers tell producers which brokers take messages. Consumers are not affected." />`;
  return html`<${ChangeDialog} title=${`Writes of broker ${broker.name}`} verb=${allowed === "yes" ? "Allow writes" : "Stop writes"} form=${form} run=${(dryRun) => api.allowWrites(broker.name, allowed === "yes", dryRun)} onDone=${onDone} onClose=${onClose} />`;
}

/** A nested object as names with dots, for a table of two columns. */
function flat(value, prefix = "") {
  if (value === null || typeof value !== "object") return [[prefix, plain(value)]];
  const entries = Object.entries(value);
  if (!entries.length) return [[prefix, "empty"]];
  return entries.flatMap(([name, each]) => flat(each, prefix ? `${prefix}.${name}` : name));
}

function BrokerDetails({ broker, onClose }) {
  const [text, setText] = useState("");
  const rows = [...flat(broker.node || {}, "node").filter(([, value]) => broker.node), ...Object.entries(broker.runtime)];
  const shown = rows.filter(([name]) => name.toLowerCase().includes(text.toLowerCase()));
  return html`<${Dialog} title=${`Broker ${broker.name}, ${broker.address}`} wide onClose=${onClose} footer=${html`<${Button} kind="primary" onClick=${onClose}>Close<//>`}>
    ${!broker.reachable && html`<${Banner} kind="bad" title="This broker is not reachable">${broker.problem}<//>`}
    <${Pairs} items=${[
      ["Messages in today", broker.messagesTodayIn === null ? undefined : count(broker.messagesTodayIn)],
      ["Messages out today", broker.messagesTodayOut === null ? undefined : count(broker.messagesTodayOut)],
      ["Disk", broker.disk.totalBytes === null ? undefined : `${bytes(broker.disk.freeBytes)} free of ${bytes(broker.disk.totalBytes)}`],
      ["Started", html`<${Time} ms=${broker.startedMs} both />`],
    ]} />
    ${rows.length > 0 && html`<div class="toolbar"><${Search} value=${text} onInput=${setText} label="Search values" placeholder="Search values" /></div>
      <${Table} label="Values of the broker" rows=${shown} rowKey=${([name]) => name} size=${100} columns=${[
        { id: "name", title: "Name", cell: ([name]) => html`<span class="mono break">${name}</span>` },
        { id: "value", title: "Value", className: "break", cell: ([, value]) => html`<span class="mono">${value}</span>` },
      ]} empty=${html`<p class="faint">No value has this name.</p>`} />`}
  <//>`;
}
