import { html, useMemo, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { ChangeDialog } from "../lib/change.js";
import { Badge, Button, Card, Check, Empty, Field, Loaded, PageHeader, Search, Table } from "../lib/components.js";
import { plural } from "../lib/format.js";
import { go, useMay, useQuery } from "../lib/state.js";

const differs = (setting) => !setting.agree && !setting.perBroker;

export function SettingsPage({ query }) {
  const clusters = useQuery("clusters", (signal) => api.clusters(signal));
  const names = (clusters.data || []).map((each) => each.name);
  const cluster = query.cluster || names[0];
  const settings = useQuery(cluster === undefined ? null : `settings ${cluster}`, (signal) => api.settings(cluster, signal));
  const [editing, setEditing] = useState(null);
  const change = (values) => go(["settings"], { search: query.search, differences: query.differences, cluster: query.cluster, ...values }, { replace: true });
  return html`<${PageHeader} title="Configuration">The settings of all brokers, side by side. Those that differ and should not are first.<//>
    <div class="toolbar"><${Search} value=${query.search || ""} onInput=${(search) => change({ search })} label="Search settings" placeholder="Search settings" />
      ${names.length > 1 && html`<${Field} label="Cluster" value=${cluster} onInput=${(value) => change({ cluster: value })} options=${names.map((each) => [each, each])} className="inline" />`}
      <${Check} label="Only differences" checked=${query.differences === "true"} onChange=${(on) => change({ differences: on || "" })} /></div>
    ${clusters.data && !names.length ? html`<${Card}><${Empty} title="No broker is registered" /><//>`
      : html`<${Loaded} query=${clusters.error && !clusters.data ? clusters : settings} rows=${10}>${(list) => html`<${Settings} list=${list} text=${query.search || ""} only=${query.differences === "true"} onEdit=${setEditing} />`}<//>`}
    ${editing && html`<${EditSetting} setting=${editing} onDone=${settings.reload} onClose=${() => setEditing(null)} />`}`;
}

function Settings({ list, text, only, onEdit }) {
  const canChange = useMay("admin");
  const rows = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    return list.filter((each) => (!wanted || each.name.toLowerCase().includes(wanted)) && (!only || differs(each)))
      .sort((left, right) => differs(right) - differs(left) || left.name.localeCompare(right.name));
  }, [list, text, only]);
  const columns = [
    { id: "name", title: "Setting", value: (row) => row.name, cell: (row) => html`<span class="mono strong nowrap">${row.name}</span>${differs(row) ? html` <${Badge} kind="warn" icon="warn">differs<//>` : row.perBroker && html` <${Badge} title="This setting is meant to differ">per broker<//>`}` },
    { id: "value", title: "Value", wide: true, className: "break", cell: (row) => html`<${Values} setting=${row} />` },
    ...(canChange ? [{ id: "actions", title: "", cell: (row) => html`<span class="row-actions"><${Button} kind="small" onClick=${() => onEdit(row)} aria-label=${`Change ${row.name}`}>Change<//></span>` }] : []),
  ];
  const different = list.filter(differs).length;
  return html`<p class="summary" role="status">${plural(rows.length, "setting")}, ${different ? `${different} differ${different === 1 ? "s" : ""}` : "all brokers agree"}</p>
    <${Card} flush><${Table} label="Settings" rows=${rows} rowKey=${(row) => row.name} columns=${columns} empty=${html`<${Empty} icon=${only ? "check" : "search"} title=${only && !text ? "All brokers agree" : "No setting has this name"} />`} /><//>`;
}

/** The addresses of each value, the most frequent value first. */
function byValue(values) {
  const found = new Map();
  for (const [address, value] of Object.entries(values)) found.set(value, [...(found.get(value) || []), address]);
  return [...found].sort((left, right) => right[1].length - left[1].length);
}

function Values({ setting }) {
  const groups = byValue(setting.values);
  const all = Object.keys(setting.values).length;
  return html`<ul class="values">${groups.map(([value, addresses]) => html`<li key=${String(value)}>
    ${value === null ? html`<span class="faint">not set</span>` : html`<span class=${`mono ${differs(setting) ? "different" : ""}`}>${value === "" ? "“”" : value}</span>`}
    <small class="faint">${addresses.length === all && all > 1 ? `all ${all} brokers` : addresses.join(", ")}</small></li>`)}</ul>`;
}

function EditSetting({ setting, onDone, onClose }) {
  const addresses = Object.keys(setting.values).sort();
  const [where, setWhere] = useState(setting.perBroker ? addresses[0] : "all"); // what differs by intent is not made alike
  const [value, setValue] = useState(String(setting.values[addresses[0]] ?? ""));
  const targets = where === "all" ? addresses : [where];
  const run = async (dryRun) => {
    // One request for each broker. A failure is a step, so that the results of the other brokers are shown.
    const results = await Promise.all(targets.map(async (address) => {
      try {
        return (await api.setSettings(address, { [setting.name]: value }, dryRun)).steps;
      } catch (error) {
        if (targets.length === 1) throw error;
        return [{ target: address, action: `set ${setting.name}`, before: setting.values[address], after: value, state: "failed", error: error.message }];
      }
    }));
    return { dryRun, steps: results.flat() };
  };
  const form = html`<${Field} label="Brokers" value=${where} onInput=${setWhere} options=${[...(setting.perBroker ? [] : [["all", `all ${addresses.length} brokers`]]), ...addresses.map((each) => [each, each])]} />
    <${Field} label="Value" class="mono" value=${value} onInput=${setValue} hint="The broker checks it. A few settings take effect after a restart." />`;
  return html`<${ChangeDialog} title=${`Change ${setting.name}`} verb="Change setting" form=${form} run=${run} onDone=${onDone} onClose=${onClose} />`;
}
