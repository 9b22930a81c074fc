// Create, change and delete a consumer group, reset its offsets, and copy them to another group.
import { html, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { ChangeDialog, failedOf } from "../lib/change.js";
import { Banner, Check, Field } from "../lib/components.js";
import { absolute, toLocalInput } from "../lib/format.js";

const NAME = /^[%|a-zA-Z0-9_-]{1,255}$/;
const whole = (text) => /^\d+$/.test(text);

/** Creates a consumer group, or changes `group`. */
export function GroupDialog({ group, onClose, onDone }) {
  const config = (group && Object.values(group.configs)[0]) || { consumeEnable: true, consumeFromMinEnable: true, consumeBroadcastEnable: true, retryQueues: 1, maxRetries: 16 };
  const [etag] = useState(group?.etag); // of what the user saw: a later change by another user is not overwritten
  const [name, setName] = useState(group?.name || "");
  const [enabled, setEnabled] = useState(config.consumeEnable);
  const [fromMin, setFromMin] = useState(config.consumeFromMinEnable);
  const [broadcast, setBroadcast] = useState(config.consumeBroadcastEnable);
  const [queues, setQueues] = useState(String(config.retryQueues));
  const [retries, setRetries] = useState(String(config.maxRetries));
  const badName = name !== "" && !NAME.test(name) && "Letters, digits, and the characters % | _ - are allowed, up to 255 of them.";
  const values = { consumeEnable: enabled, consumeFromMinEnable: fromMin, consumeBroadcastEnable: broadcast, retryQueues: Number(queues), maxRetries: Number(retries) };
  const form = html`
    ${!group && html`<${Field} label="Name" value=${name} onInput=${setName} error=${badName} required maxlength="255" />`}
    <div class="field-row">
      <${Field} label="Deliveries until dead letter" value=${retries} onInput=${setRetries} inputmode="numeric" error=${!whole(retries) && "A whole number"} hint="retries of a message" />
      <${Field} label="Retry queues" value=${queues} onInput=${setQueues} inputmode="numeric" error=${!whole(queues) && "A whole number"} hint="at each broker" />
    </div>
    <${Check} label="Members may consume" checked=${enabled} onChange=${setEnabled} hint="Without it brokers refuse to deliver to the group." />
    <${Check} label="May begin at the oldest message" checked=${fromMin} onChange=${setFromMin} />
    <${Check} label="May use broadcast" checked=${broadcast} onChange=${setBroadcast} />`;
  return html`<${ChangeDialog} title=${group ? `Change ${group.name}` : "Create consumer group"} verb=${group ? "Change group" : "Create group"} form=${form}
    valid=${name !== "" && !badName && whole(retries) && whole(queues)} owner=${group?.owner}
    run=${(dryRun) => api.putGroup(name, values, etag, dryRun)} onDone=${(result) => onDone(group || failedOf(result) ? null : name)} onClose=${onClose} />`;
}

export function DeleteGroupDialog({ group, onClose, onDone }) {
  const [etag] = useState(group.etag);
  return html`<${ChangeDialog} title=${`Delete ${group.name}`} verb="Delete group" danger confirm=${group.name} owner=${group.owner}
    run=${(dryRun) => api.deleteGroup(group.name, etag, dryRun)} onDone=${onDone} onClose=${onClose}>
    <${Banner} kind="warn" title="The offsets of this group are lost">A group with this name begins again at its first offset.${group.members > 0 ? " Members are connected now: they create the group again." : ""}<//>
  <//>`;
}

const TARGETS = [["earliest", "the oldest message"], ["latest", "behind the newest message"], ["timestamp", "a time"], ["offset", "an offset"], ["shift", "a shift by messages"]];

/** The topics of a group without its retry topic. */
export const topicsOf = (group) => group.topics.filter((each) => !each.startsWith("%RETRY%"));

export function ResetDialog({ group, onClose, onDone }) {
  const topics = topicsOf(group);
  const [topic, setTopic] = useState(topics[0] || "");
  const [kind, setKind] = useState("earliest");
  const [time, setTime] = useState(toLocalInput(Date.now() - 3600000));
  const [number, setNumber] = useState("0");
  const at = new Date(time).getTime();
  const numeric = kind === "offset" ? whole(number) : /^[+-]?\d+$/.test(number);
  const valid = topic !== "" && (kind === "timestamp" ? !Number.isNaN(at) : kind === "offset" || kind === "shift" ? numeric : true);
  const to = kind === "timestamp" ? { timestamp: at } : kind === "offset" || kind === "shift" ? { [kind]: Number(number) } : { [kind]: true };
  const form = html`
    <${Field} label="Topic" value=${topic} onInput=${setTopic} options=${topics.length ? topics.map((each) => [each, each]) : undefined} required />
    <${Field} label="Move the offsets to" value=${kind} onInput=${setKind} options=${TARGETS} />
    ${kind === "timestamp" && html`<${Field} label="Time" type="datetime-local" step="1" value=${time} onInput=${setTime} hint=${Number.isNaN(at) ? "local time" : `local time: ${absolute(at)}`} />`}
    ${(kind === "offset" || kind === "shift") && html`<${Field} label=${kind === "offset" ? "Offset" : "Messages"} value=${number} onInput=${setNumber} error=${!numeric && "A whole number"} hint=${kind === "shift" ? "-100: a hundred messages back" : "in each queue"} />`}`;
  return html`<${ChangeDialog} title=${`Reset offsets of ${group.name}`} verb="Reset offsets" danger form=${form} valid=${valid} owner=${group.owner}
    run=${(dryRun) => api.resetOffsets(group.name, { topic, to, queues: null }, dryRun)} onDone=${onDone} onClose=${onClose} />`;
}

export function CloneDialog({ group, onClose, onDone }) {
  const topics = topicsOf(group);
  const [topic, setTopic] = useState(topics[0] || "");
  const [target, setTarget] = useState("");
  const form = html`<${Field} label="Topic" value=${topic} onInput=${setTopic} options=${topics.length ? topics.map((each) => [each, each]) : undefined} required />
    <${Field} label="Group that gets the offsets" value=${target} onInput=${setTarget} required hint=${`It continues where ${group.name} is now.`} />`;
  return html`<${ChangeDialog} title=${`Copy offsets of ${group.name}`} verb="Copy offsets" form=${form} valid=${topic !== "" && NAME.test(target)}
    run=${(dryRun) => api.cloneOffsets(group.name, { target, topic }, dryRun)} onDone=${onDone} onClose=${onClose} />`;
}
