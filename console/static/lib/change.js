// The dialog of every change: a form, then what the change would do at each server (the dry run), then what it did.
import { html, useEffect, useId, useRef, useState } from "./html.js";
import { count, plain } from "./format.js";
import { Icon } from "./icons.js";
import { Badge, Banner, Button, Dialog, Failure, Field, Loading } from "./components.js";

const STATES = { planned: ["plain", "planned"], done: ["good", "done"], unchanged: ["plain", "unchanged"], failed: ["bad", "failed"] };

export function StepState({ state }) {
  const [kind, text] = STATES[state] || ["plain", state];
  return html`<${Badge} kind=${kind} icon=${state === "done" ? "check" : state === "failed" ? "warn" : null}>${text}<//>`;
}

/** A name of Python as the interface has it: read_queues -> readQueues. */
const camelCase = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** What a step changes: of two objects only the keys that differ. */
function Difference({ before, after }) {
  if (isObject(after) && (isObject(before) || before === null || before === undefined)) {
    const keys = Object.keys(after).filter((key) => plain(before?.[key]) !== plain(after[key]));
    if (!keys.length) return html`<span class="faint">no difference</span>`;
    return html`<ul class="differences">${keys.map((key) => html`<li key=${key}><span>${camelCase(key)}</span> <${Arrow} before=${before ? before[key] : undefined} after=${after[key]} /></li>`)}</ul>`;
  }
  return html`<${Arrow} before=${isObject(before) ? "present" : before} after=${after ?? (before === undefined || before === null ? null : "removed")} />`;
}

function Arrow({ before, after }) {
  return html`<span class="arrow"><del>${plain(before)}</del><span class="sr"> becomes </span><${Icon} name="right" size=${12} /><ins>${plain(after)}</ins></span>`;
}

function Steps({ steps, label }) {
  return html`<div class="table-box"><table role="table" aria-label=${label} class="steps">
    <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Server</th><th role="columnheader" scope="col">Action</th><th role="columnheader" scope="col">Change</th><th role="columnheader" scope="col">State</th></tr></thead>
    <tbody role="rowgroup">${steps.map((step, index) => html`<tr role="row" key=${index}>
      <td role="cell" data-label="Server" class="mono"><div>${step.target}</div></td><td role="cell" data-label="Action"><div>${step.action}</div></td>
      <td role="cell" data-label="Change" class="wide"><div><${Difference} before=${step.before} after=${step.after} />${step.error && html`<p class="field-error">${step.error}</p>`}</div></td>
      <td role="cell" data-label="State"><div><${StepState} state=${step.state} /></div></td></tr>`)}</tbody></table></div>`;
}

function OffsetSteps({ steps, label }) {
  return html`<div class="table-box"><table role="table" aria-label=${label} class="steps">
    <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Queue</th><th role="columnheader" scope="col" class="number">Before</th><th role="columnheader" scope="col" class="number">After</th><th role="columnheader" scope="col" class="number">Difference</th><th role="columnheader" scope="col">State</th></tr></thead>
    <tbody role="rowgroup">${steps.map((step) => html`<tr role="row" key=${`${step.topic} ${step.broker} ${step.queue}`}>
      <td role="cell" data-label="Queue"><div class="mono">${step.broker} · ${step.queue}</div></td>
      <td role="cell" data-label="Before" class="number"><div>${count(step.before)}</div></td><td role="cell" data-label="After" class="number"><div><b>${count(step.after)}</b></div></td>
      <td role="cell" data-label="Difference" class="number"><div>${step.before === null ? "" : `${step.after >= step.before ? "+" : "−"}${count(Math.abs(step.after - step.before))}`}</div></td>
      <td role="cell" data-label="State"><div><${StepState} state=${step.state} />${step.error && html`<p class="field-error">${step.error}</p>`}</div></td></tr>`)}</tbody></table></div>`;
}

function ResentSteps({ steps, label }) {
  return html`<div class="table-box"><table role="table" aria-label=${label} class="steps">
    <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Message</th><th role="columnheader" scope="col">To</th><th role="columnheader" scope="col">New message</th><th role="columnheader" scope="col">State</th></tr></thead>
    <tbody role="rowgroup">${steps.map((step) => html`<tr role="row" key=${step.messageId}>
      <td role="cell" data-label="Message" class="mono break wide"><div>${step.messageId}</div></td><td role="cell" data-label="To" class="break"><div>${step.target}</div></td>
      <td role="cell" data-label="New message" class="mono break"><div>${step.newMessageId || ""}</div></td>
      <td role="cell" data-label="State"><div><${StepState} state=${step.state} />${step.error && html`<p class="field-error">${step.error}</p>`}</div></td></tr>`)}</tbody></table></div>`;
}

/** The steps of any result: a Change, an OffsetChange, a Resent, or a list of Resent. */
export function stepsOf(result) {
  if (Array.isArray(result)) return result;
  if (result?.steps) return result.steps;
  if (result?.items) return result.items;
  return result ? [result] : [];
}

/** How many steps of a result failed. */
export const failedOf = (result) => stepsOf(result).filter((step) => step.state === "failed").length;

function ResultTable({ result, label }) {
  const steps = stepsOf(result);
  if (!steps.length) return html`<p class="faint">There is nothing to change.</p>`;
  if ("messageId" in steps[0]) return html`<${ResentSteps} steps=${steps} label=${label} />`;
  return "min" in steps[0] ? html`<${OffsetSteps} steps=${steps} label=${label} />` : html`<${Steps} steps=${steps} label=${label} />`;
}

/** Warns before a change of an object that Kubernetes manages. */
export function OwnerWarning({ owner }) {
  if (!owner) return null;
  const [kind, name = ""] = owner.split(" ");
  const [namespace, object] = name.includes("/") ? name.split("/") : ["default", name];
  return html`<${Banner} kind="warn" title=${`Kubernetes manages this object: ${owner}`}>
    The operator replaces a change that you make here with what the resource says. Change the resource instead:
    <code class="block">kubectl --namespace ${namespace} edit ${kind.toLowerCase()} ${object}</code><//>`;
}

/**
 * `run(dryRun)` does the change, or says what it would do. `form`: inputs that stand before the preview; without them the preview
 * comes at once. `confirm`: a name that the user types before a change that loses data. `onDone(result)`: it was made.
 */
export function ChangeDialog({ title, verb, danger = false, form, valid = true, confirm, owner, run, onDone, onClose, children }) {
  const [stage, setStage] = useState(form ? "form" : "preview");
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [typed, setTyped] = useState("");
  const formId = useId();
  const heading = useRef(null);

  const ask = async (dryRun) => {
    setBusy(true);
    setError(null);
    try {
      const answer = await run(dryRun);
      setResult(answer);
      setStage(dryRun ? "preview" : "result");
      if (!dryRun) onDone?.(answer);
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  useEffect(() => {
    if (!form) ask(true);
  }, []);
  useEffect(() => {
    if (result) heading.current?.focus();
  }, [result, stage]);

  const submit = (event) => {
    event.preventDefault();
    if (valid && !busy) ask(true);
  };
  const failed = failedOf(result);
  const ready = stage === "preview" && result && !busy && (!confirm || typed === confirm);
  const footer = stage === "form"
    ? html`<${Button} onClick=${onClose}>Cancel<//><button type="submit" form=${formId} class="button primary" disabled=${!valid || busy}><span>${busy ? "Reading …" : "Preview"}</span></button>`
    : stage === "preview"
      ? html`${form ? html`<${Button} disabled=${busy} onClick=${() => { setStage("form"); setResult(null); setError(null); }}>Back<//>` : html`<${Button} disabled=${busy} onClick=${onClose}>Cancel<//>`}
          <${Button} kind=${danger ? "danger" : "primary"} disabled=${!ready} onClick=${() => ask(false)}>${busy && result ? "Working …" : verb}<//>`
      : html`<${Button} kind="primary" onClick=${onClose}>Close<//>`;

  return html`<${Dialog} title=${title} onClose=${onClose} wide=${stage !== "form"} busy=${busy && Boolean(result)} footer=${footer}>
    ${stage !== "result" && html`<${OwnerWarning} owner=${owner} />`}
    ${stage === "form" && html`<form id=${formId} class="form" onSubmit=${submit}>${form}</form>`}
    ${stage === "preview" && html`${children}
      ${result && html`<h3 ref=${heading} tabindex="-1">Preview: nothing has been changed yet</h3><${ResultTable} result=${result} label="Steps of the preview" />
        ${result.online === false && html`<p class="hint">No member of the group is connected: members read the new offsets when they start.</p>`}`}
      ${!result && !error && html`<${Loading} rows=${3} label="Reading what the change would do" />`}
      ${result && confirm && html`<${Field} label=${html`Type <code>${confirm}</code> to confirm`} value=${typed} onInput=${setTyped} />`}`}
    ${stage === "result" && html`<div role="status"><h3 ref=${heading} tabindex="-1" class=${failed ? "bad-text" : "good-text"}>
      ${failed ? `${failed} of ${stepsOf(result).length} steps failed` : "Done"}</h3></div><${ResultTable} result=${result} label="Results" />`}
    ${error && html`<${Failure} error=${error} />`}
  <//>`;
}
