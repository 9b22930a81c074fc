import { html, useMemo, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { ChangeDialog } from "../lib/change.js";
import { Badge, Banner, Button, Card, Copy, Empty, Failure, Field, Loaded, Loading, PageHeader, Pairs, Segments, Status, Table, Time } from "../lib/components.js";
import { absolute, bytes, count, duration, fromBase64, hexDump } from "../lib/format.js";
import { href, useMay, useQuery } from "../lib/state.js";

const STATES = {
  consumed: ["good", "consumed"],
  filtered: ["off", "filtered out"],
  notConsumed: ["warn", "not consumed"],
  offline: ["off", "group is offline"],
  pulled: ["plain", "pulled"],
  unknown: ["off", "unknown"],
};
const STEPS = { sent: "Sent", stored: "Stored", delivered: "Delivered", consumed: "Consumed", failed: "Failed", sentBack: "Sent back for a retry", deadLetter: "Became a dead letter", transactionEnded: "Transaction ended" };

export function MessagePage({ name: id }) {
  const message = useQuery(`message ${id}`, (signal) => api.message(id, signal));
  const [resend, setResend] = useState(null);
  const canChange = useMay("operator");
  const summary = message.data?.summary;
  const crumbs = [["Messages", href(["messages"])], ...(summary ? [[summary.topic, href(["topics", summary.topic])]] : [])];
  return html`<${PageHeader} title="Message" crumbs=${crumbs} actions=${canChange && summary && html`<${Button} icon="send" onClick=${() => setResend("")}>Resend to a group<//>`}><span class="mono break">${id}</span> <${Copy} text=${id} label="Copy the id" /><//>
    <${Loaded} query=${message}>${(data) => html`<${Content} message=${data} id=${id} onResend=${canChange ? setResend : null} />`}<//>
    ${resend !== null && html`<${Resend} id=${id} group=${resend} onClose=${() => setResend(null)} />`}`;
}

function Content({ message, id, onResend }) {
  const { summary, properties } = message;
  const rows = Object.entries(properties);
  return html`
    ${!message.bodyCrcOk && html`<${Banner} kind="bad" title="The body is damaged">Its checksum does not match what the broker stored.<//>`}
    <div class="columns two-one">
      <div class="stack">
        <${Body} message=${message} />
        <${Trace} id=${id} />
        <${Consumers} id=${id} onResend=${onResend} />
      </div>
      <div class="stack">
        <${Card} title="Details"><${Pairs} items=${[
          ["Topic", html`<a href=${href(["topics", summary.topic])}>${summary.topic}</a>`],
          ["Queue", html`<span class="mono">${summary.broker} · ${summary.queue}</span>`],
          ["Offset", count(summary.offset)],
          ["Tag", summary.tag ? html`<${Badge}>${summary.tag}<//>` : undefined],
          ["Keys", summary.keys.length ? summary.keys.join(" ") : undefined],
          ["Size", bytes(summary.sizeBytes)],
          ["Born", html`<${Time} ms=${summary.bornMs} both />`],
          ["Stored", html`<${Time} ms=${summary.storedMs} both />`],
          ["Producer", html`<span class="mono">${summary.bornHost}</span>`],
          ["Broker", html`<span class="mono">${summary.storeHost}</span>`],
          ["Deliveries before", count(summary.retries)],
          ["Id", html`<span class="mono break">${summary.id}</span>`],
          ["Unique key", summary.uniqueKey ? html`<span class="mono break">${summary.uniqueKey}</span>` : undefined],
        ]} /><//>
        <${Card} title="Properties" flush><${Table} label="Properties" rows=${rows} rowKey=${([name]) => name} empty=${html`<${Empty} title="No properties" />`} columns=${[
          { id: "name", title: "Name", cell: ([name]) => html`<code>${name}</code>` },
          { id: "value", title: "Value", className: "break", cell: ([, value]) => html`<span class="mono">${value}</span>` },
        ]} /><//>
      </div>
    </div>`;
}

function Body({ message }) {
  const json = useMemo(() => {
    try {
      const value = JSON.parse(message.text);
      return value !== null && typeof value === "object" ? JSON.stringify(value, null, 2) : null;
    } catch {
      return null;
    }
  }, [message.text]);
  const data = useMemo(() => fromBase64(message.body), [message.body]);
  const options = [...(json ? [["json", "JSON"]] : []), ...(message.text !== null ? [["text", "Text"]] : []), ["hex", "Hex"]];
  const [way, setWay] = useState(options[0][0]);
  const limit = 4096;
  return html`<${Card} title="Body" note=${bytes(data.length)} actions=${html`<${Segments} label="Show the body as" options=${options} value=${way} onChange=${setWay} />${message.text !== null && html`<${Copy} text=${message.text} label="Copy the body" />`}`}>
    ${data.length === 0 ? html`<p class="faint">The body is empty.</p>`
      : html`<pre class="code" tabindex="0" role="region" aria-label="Content of the body">${way === "json" ? html`<${Json} text=${json} />` : way === "text" ? message.text : hexDump(data, limit)}</pre>`}
    ${way === "hex" && data.length > limit && html`<p class="hint">The first ${bytes(limit)} of ${bytes(data.length)}.</p>`}
  <//>`;
}

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;

/** JSON with colours. */
function Json({ text }) {
  if (text.length > 200000) return text;
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(TOKEN)) {
    parts.push(text.slice(last, match.index));
    const kind = match[1] ? (match[2] ? "key" : "string") : match[3] ? "word" : "number";
    parts.push(html`<span class=${`json-${kind}`}>${match[1] || match[0]}</span>`, match[2] || "");
    last = match.index + match[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}

function Trace({ id }) {
  const trace = useQuery(`trace ${id}`, (signal) => api.trace(id, signal));
  const steps = trace.data || [];
  const begin = steps.length ? Math.min(...steps.map((each) => each.atMs)) : 0;
  return html`<${Card} title="Time line" note="from the trace topic and the store">
    ${trace.loading && html`<${Loading} rows=${3} />`}
    ${trace.error && html`<${Failure} error=${trace.error} retry=${trace.reload} />`}
    ${trace.data && !steps.length && html`<${Empty} icon="clock" title="No trace">Clients write a trace when they are told to.<//>`}
    ${steps.length > 0 && html`<ol class="timeline">${steps.map((step, index) => html`<li key=${index} class=${step.success === false ? "bad" : step.kind === "consumed" ? "good" : ""}>
      <div class="timeline-head"><b>${STEPS[step.kind] || step.kind}</b>${step.group && html` <${Badge}>${step.group}<//>`}${step.success === false && html` <${Badge} kind="bad" icon="warn">failed<//>`}
        <span class="timeline-time" title=${absolute(step.atMs)}>${step.atMs === begin ? absolute(step.atMs) : `+${duration((step.atMs - begin) / 1000)}`}</span></div>
      <small>${[step.client, step.durationMs !== null && `took ${duration(step.durationMs / 1000)}`, step.detail].filter(Boolean).join(" · ")}</small></li>`)}</ol>`}
  <//>`;
}

function Consumers({ id, onResend }) {
  const consumers = useQuery(`consumers ${id}`, (signal) => api.consumers(id, signal));
  return html`<${Card} title="Who consumed it" flush>
    ${consumers.loading && html`<${Loading} rows=${3} />`}
    ${consumers.error && html`<${Failure} error=${consumers.error} retry=${consumers.reload} />`}
    ${consumers.data && html`<${Table} label="Consumer groups of the message" rows=${consumers.data} rowKey=${(row) => row.group} empty=${html`<${Empty} icon="groups" title="No group reads this topic" />`} columns=${[
      { id: "group", title: "Consumer group", wide: true, className: "break", cell: (row) => html`<a href=${href(["consumer-groups", row.group])}>${row.group}</a>` },
      { id: "state", title: "State", cell: (row) => html`<${Status} kind=${(STATES[row.state] || ["off"])[0]}>${(STATES[row.state] || [0, row.state])[1]}<//>` },
      { id: "reason", title: "Reason", cell: (row) => html`<span class="faint">${row.reason}</span>` },
      ...(onResend ? [{ id: "actions", title: "", cell: (row) => html`<span class="row-actions"><${Button} kind="small" onClick=${() => onResend(row.group)} aria-label=${`Resend to ${row.group}`}>Resend<//></span>` }] : []),
    ]} />`}
  <//>`;
}

function Resend({ id, group: first, onClose }) {
  const [group, setGroup] = useState(first);
  const [client, setClient] = useState("");
  const form = html`<${Field} label="Consumer group" value=${group} onInput=${setGroup} required />
    <${Field} label="Client" value=${client} onInput=${setClient} hint="the id of a member; empty: the cluster chooses one" />`;
  return html`<${ChangeDialog} title="Resend the message" verb="Resend" form=${form} valid=${group.trim() !== ""} run=${(dryRun) => api.resend(id, group.trim(), client.trim(), dryRun)} onClose=${onClose} />`;
}
