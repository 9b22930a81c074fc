// Create, change and delete a topic, and send a test message to it.
import { html, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { ChangeDialog, failedOf } from "../lib/change.js";
import { Badge, Banner, Button, Check, Dialog, Failure, Field, Pairs } from "../lib/components.js";
import { href } from "../lib/state.js";

const PERMS = [["6", "read and write"], ["4", "read only"], ["2", "write only"], ["0", "neither"]];
const NAME = /^[%|a-zA-Z0-9_-]{1,127}$/;
const whole = (text, least = 1) => /^\d+$/.test(text) && Number(text) >= least && Number(text) <= 65535;

/** Creates a topic, or changes `topic`. */
export function TopicDialog({ topic, onClose, onDone }) {
  const config = topic ? Object.values(topic.configs)[0] : { readQueues: 8, writeQueues: 8, perm: 6, order: false, attributes: {} };
  const [etag] = useState(topic?.etag); // of what the user saw: a later change by another user is not overwritten
  const [name, setName] = useState(topic?.name || "");
  const [read, setRead] = useState(String(config.readQueues));
  const [write, setWrite] = useState(String(config.writeQueues));
  const [perm, setPerm] = useState(String(config.perm));
  const [order, setOrder] = useState(config.order);
  const badName = name !== "" && !NAME.test(name) && "Letters, digits, and the characters % | _ - are allowed, up to 127 of them.";
  const valid = name !== "" && !badName && whole(read) && whole(write);
  const values = { readQueues: Number(read), writeQueues: Number(write), perm: Number(perm), order };
  const form = html`
    ${!topic && html`<${Field} label="Name" value=${name} onInput=${setName} error=${badName} required maxlength="127" />`}
    <div class="field-row">
      <${Field} label="Queues to read" value=${read} onInput=${setRead} inputmode="numeric" error=${!whole(read) && "A whole number from 1 to 65535"} hint="at each broker" />
      <${Field} label="Queues to write" value=${write} onInput=${setWrite} inputmode="numeric" error=${!whole(write) && "A whole number from 1 to 65535"} hint="at each broker" />
    </div>
    <${Field} label="Permission" value=${perm} onInput=${setPerm} options=${PERMS} />
    <${Check} label="Ordered" hint="Producers keep to the brokers of an order configuration; a queue keeps the order of its messages in any case." checked=${order} onChange=${setOrder} />
    ${topic && Number(write) < config.writeQueues && html`<${Banner} kind="warn" title="Fewer queues">Messages in the queues that are left out stay, and can be read as long as they are among the queues to read.<//>`}`;
  return html`<${ChangeDialog} title=${topic ? `Change ${topic.name}` : "Create topic"} verb=${topic ? "Change topic" : "Create topic"} form=${form} valid=${valid} owner=${topic?.owner}
    run=${(dryRun) => api.putTopic(name, values, etag, dryRun)} onDone=${(result) => onDone(topic || failedOf(result) ? null : name)} onClose=${onClose} />`;
}

export function DeleteTopicDialog({ topic, onClose, onDone }) {
  const [etag] = useState(topic.etag);
  return html`<${ChangeDialog} title=${`Delete ${topic.name}`} verb="Delete topic" danger confirm=${topic.name} owner=${topic.owner}
    run=${(dryRun) => api.deleteTopic(topic.name, etag, dryRun)} onDone=${onDone} onClose=${onClose}>
    <${Banner} kind="warn" title="The messages of this topic are lost">Consumer groups keep offsets of a topic that no longer exists. Clients get an error when they use it.<//>
  <//>`;
}

/** One property a line: NAME=VALUE. Returns [properties, error]. */
export function parseProperties(text) {
  const properties = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) return [null, `“${line}” is not NAME=VALUE.`];
    properties[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return [properties, null];
}

export function SendDialog({ topic, onClose, onSent }) {
  const [text, setText] = useState('{"hello": "world"}');
  const [tag, setTag] = useState("");
  const [keys, setKeys] = useState("");
  const [order, setOrder] = useState("");
  const [delay, setDelay] = useState("0");
  const [extra, setExtra] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [result, setResult] = useState(null);
  const [properties, wrong] = parseProperties(extra);
  const submit = async (event) => {
    event.preventDefault();
    if (wrong) return;
    setBusy(true);
    setError(null);
    const message = { text };
    if (tag.trim()) message.tag = tag.trim();
    if (keys.trim()) message.keys = keys.trim().split(/\s+/);
    if (order) message.orderKey = order;
    if (delay !== "0") message.delayLevel = Number(delay);
    if (Object.keys(properties).length) message.properties = properties;
    try {
      const answer = await api.send(topic.name, message);
      setResult(answer.results ? answer.results[0] : answer);
      onSent?.();
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  const form = html`<form id="send-form" class="form" onSubmit=${submit}>
    <${Field} label="Body" area=${6} class="mono" value=${text} onInput=${setText} hint="sent as UTF-8" />
    <div class="field-row"><${Field} label="Tag" value=${tag} onInput=${setTag} /><${Field} label="Keys" value=${keys} onInput=${setKeys} hint="separated by blanks" /></div>
    <div class="field-row"><${Field} label="Order key" value=${order} onInput=${setOrder} hint="messages with one key go to one queue" />
      <${Field} label="Delay" value=${delay} onInput=${setDelay} options=${DELAYS} /></div>
    <${Field} label="Properties" area=${2} class="mono" value=${extra} onInput=${setExtra} placeholder="NAME=VALUE" error=${wrong} hint="one on each line" />
  </form>`;
  const STATES = { stored: ["good", "stored"], notStored: ["bad", "not stored"], unknown: ["warn", "unknown: it may be stored"], planned: ["plain", "planned"] };
  const footer = result
    ? html`<${Button} onClick=${() => setResult(null)}>Send another<//><${Button} kind="primary" onClick=${onClose}>Close<//>`
    : html`<${Button} onClick=${onClose}>Cancel<//><button type="submit" form="send-form" class="button primary" disabled=${busy || Boolean(wrong)}><span>${busy ? "Sending …" : "Send message"}</span></button>`;
  return html`<${Dialog} title=${`Send a message to ${topic.name}`} onClose=${onClose} footer=${footer} busy=${busy}>
    ${!result && form}
    ${error && html`<${Failure} error=${error} />`}
    ${result && html`<div role="status"><${Pairs} items=${[
      ["State", html`<${Badge} kind=${(STATES[result.state] || ["plain"])[0]}>${(STATES[result.state] || [0, result.state])[1]}<//>`],
      ["Message", result.messageId ? html`<a class="mono break" href=${href(["messages", result.messageId])}>${result.messageId}</a>` : undefined],
      ["Unique key", result.uniqueKey ? html`<span class="mono break">${result.uniqueKey}</span>` : undefined],
      ["Queue", result.broker ? `${result.broker} · ${result.queue}` : undefined],
      ["Offset", result.offset ?? undefined],
      ["Status", result.status && result.status !== "ok" ? result.status : undefined],
      ["Error", result.error || undefined],
    ]} /></div>`}
  <//>`;
}

const DELAYS = [["0", "none"], ...["1 s", "5 s", "10 s", "30 s", "1 min", "2 min", "3 min", "4 min", "5 min", "6 min", "7 min", "8 min", "9 min", "10 min", "20 min", "30 min", "1 h", "2 h"].map((each, index) => [String(index + 1), `level ${index + 1}: ${each}`])];
