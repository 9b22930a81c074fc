// The parts that pages are made of.
import { html, useEffect, useId, useMemo, useRef, useState } from "./html.js";
import { absolute, count, relative } from "./format.js";
import { Icon } from "./icons.js";
import { notify, useNow } from "./state.js";

// --- text ---

export function Badge({ kind = "plain", icon, title, children }) {
  return html`<span class=${`badge ${kind}`} title=${title}>${icon && html`<${Icon} name=${icon} size=${13} />`}${children}</span>`;
}

/** A state with a dot; the word says it too, so that colour is not needed. */
export function Status({ kind, children }) {
  return html`<span class=${`status ${kind}`}><i aria-hidden="true"></i>${children}</span>`;
}

/** A time, as its age; the exact time is the tooltip, or stands below with `both`. */
export function Time({ ms, both = false }) {
  const now = useNow(ms && Date.now() - ms < 120000 ? 1000 : 15000);
  if (!ms || ms <= 0) return html`<span class="faint">never</span>`;
  const iso = new Date(ms).toISOString();
  if (both) return html`<time dateTime=${iso} class="time-both"><span>${absolute(ms)}</span><small>${relative(ms, now)}</small></time>`;
  return html`<time dateTime=${iso} title=${absolute(ms)}>${relative(ms, now)}</time>`;
}

/** The Kubernetes resource that manages an object. */
export function Owner({ owner }) {
  if (!owner) return null;
  return html`<${Badge} kind="kube" icon="kube" title=${`The Kubernetes resource ${owner} manages this object.`}>${owner}<//>`;
}

export function Copy({ text, label = "Copy" }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      notify("Copied to the clipboard");
    } catch {
      notify("The browser does not allow the console to copy.", "bad");
    }
  };
  return html`<button type="button" class="icon-button small" aria-label=${label} title=${label} onClick=${copy}><${Icon} name="copy" size=${15} /></button>`;
}

// --- states of a page ---

export function Loading({ rows = 6, label = "Loading" }) {
  return html`<div class="skeleton" role="status" aria-label=${label}>
    ${Array.from({ length: rows }, (_, row) => html`<div key=${row} class=${`skeleton-row w${row % 3}`}></div>`)}
  </div>`;
}

export function Empty({ title, children, icon = "empty", action }) {
  return html`<div class="empty"><span class="empty-icon"><${Icon} name=${icon} size=${26} /></span>
    <h3>${title}</h3>${children && html`<p>${children}</p>`}${action}</div>`;
}

/** What the server said about a failure. */
export function Failure({ error, retry, title }) {
  return html`<div class="banner bad" role="alert"><${Icon} name="warn" />
    <div><b>${title || error.title || "The request failed"}</b><p>${error.message}</p></div>
    ${retry && html`<button type="button" class="button small" onClick=${retry}>Try again</button>`}
  </div>`;
}

export function Banner({ kind = "info", title, children, action }) {
  return html`<div class=${`banner ${kind}`} role=${kind === "bad" ? "alert" : "note"}><${Icon} name=${kind === "info" ? "info" : "warn"} />
    <div>${title && html`<b>${title}</b>`}${children && html`<div class="banner-text">${children}</div>`}</div>${action}</div>`;
}

/** What the server could not read: the page below is incomplete. */
export function Problems({ problems }) {
  if (!problems?.length) return null;
  return html`<div class="banner warn" role="note"><${Icon} name="warn" /><div><b>This page is incomplete</b>
    <ul class="plain">${problems.map((each) => html`<li key=${each.subject + each.reason}><code>${each.subject}</code> ${each.reason}</li>`)}</ul></div></div>`;
}

/** The answer of a query: a skeleton, an error, or the content, marked if the last read failed. */
export function Loaded({ query, rows, children }) {
  if (query.loading) return html`<${Loading} rows=${rows} />`;
  if (!query.data) return query.error && html`<${Failure} error=${query.error} retry=${query.reload} />`;
  return html`${query.stale && html`<${Stale} query=${query} />`}${children(query.data)}`;
}

function Stale({ query }) {
  const now = useNow();
  return html`<div class="banner warn" role="status"><${Icon} name="clock" />
    <div><b>Stale data, read ${relative(query.at, now)}</b><p>${query.error.message}</p></div>
    <button type="button" class="button small" onClick=${query.reload}>Try again</button></div>`;
}

// --- layout ---

export function PageHeader({ title, mono, crumbs = [], badges, actions, children }) {
  useEffect(() => {
    document.title = `${title} · Tallystick Console`;
  }, [title]);
  return html`<header class="page-header">
    <div class="page-title">
      ${crumbs.length > 0 && html`<nav class="crumbs" aria-label="Breadcrumb"><ol>${crumbs.map(([text, to]) => html`<li key=${text}><a href=${to}>${text}</a></li>`)}</ol></nav>`}
      <h1 id="page-title" tabindex="-1" class=${mono ? "mono" : ""}>${title}</h1>
      ${badges && html`<div class="badges">${badges}</div>`}
      ${children && html`<p class="lead">${children}</p>`}
    </div>
    ${actions && html`<div class="actions">${actions}</div>`}
  </header>`;
}

export function Card({ title, note, actions, flush = false, children, className = "" }) {
  const id = useId();
  return html`<section class=${`card ${flush ? "flush" : ""} ${className}`} aria-labelledby=${title ? id : null}>
    ${title && html`<div class="card-head"><h2 id=${id}>${title}</h2>${note && html`<span class="card-note">${note}</span>`}
      ${actions && html`<div class="actions">${actions}</div>`}</div>`}
    <div class="card-body">${children}</div>
  </section>`;
}

export function Figure({ label, value, note, kind = "" }) {
  return html`<div class=${`figure ${kind}`}><dt>${label}</dt><dd><b>${value}</b>${note && html`<span>${note}</span>`}</dd></div>`;
}

export const Figures = ({ children }) => html`<dl class="figures">${children}</dl>`;

/** Names and values. `items`: [name, value] pairs; those whose value is undefined are left out. */
export function Pairs({ items }) {
  return html`<dl class="pairs">${items.filter(([, value]) => value !== undefined).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Tabs whose state is in the address. `tabs`: [id, title, count]. */
export function Tabs({ tabs, active, to, label }) {
  return html`<nav class="tabs" aria-label=${label}><ul>${tabs.map(([id, title, number]) => html`<li key=${id}>
    <a href=${to(id)} aria-current=${id === active ? "page" : null}>${title}${number !== undefined && number !== null && html`<span class="tab-count">${count(number)}</span>`}</a></li>`)}</ul></nav>`;
}

/** A choice of a few. `options`: [value, title]. */
export function Segments({ label, options, value, onChange }) {
  const name = useId();
  return html`<fieldset class="segments"><legend class="sr">${label}</legend>${options.map(([each, title]) => html`<label key=${each}>
    <input type="radio" name=${name} value=${each} checked=${each === value} onChange=${() => onChange(each)} /><span>${title}</span></label>`)}</fieldset>`;
}

export function Button({ kind = "", icon, children, ...rest }) {
  return html`<button type="button" class=${`button ${kind}`} ...${rest}>${icon && html`<${Icon} name=${icon} size=${16} />`}<span>${children}</span></button>`;
}

// --- forms ---

/** A labelled input. `input`: attributes of it; `options` makes it a choice, `area` a text of several lines. */
export function Field({ label, hint, error, options, area, value, onInput, className = "", ...input }) {
  const id = useId();
  const shared = { id, value, "aria-describedby": hint || error ? `${id}-hint` : null, "aria-invalid": error ? "true" : null, ...input };
  const change = (event) => onInput(event.currentTarget.value);
  let control;
  if (options) control = html`<select ...${shared} onChange=${change}>${options.map(([each, title]) => html`<option key=${each} value=${each} selected=${each === value}>${title}</option>`)}</select>`;
  else if (area) control = html`<textarea ...${shared} rows=${area} onInput=${change}></textarea>`;
  else control = html`<input type="text" autocomplete="off" spellcheck=${false} ...${shared} onInput=${change} />`;
  return html`<div class=${`field ${className}`}><label for=${id}>${label}</label>${control}
    ${(error || hint) && html`<p id=${`${id}-hint`} class=${error ? "field-error" : "hint"}>${error || hint}</p>`}</div>`;
}

export function Check({ label, hint, checked, onChange, ...rest }) {
  const id = useId();
  return html`<div class="check"><input id=${id} type="checkbox" checked=${checked} onChange=${(event) => onChange(event.currentTarget.checked)} ...${rest} />
    <label for=${id}>${label}${hint && html`<small>${hint}</small>`}</label></div>`;
}

/** The search field of a page; the key `/` moves the focus to it. */
export function Search({ value, onInput, label, placeholder }) {
  return html`<div class="search"><${Icon} name="search" size=${16} />
    <input type="search" data-search value=${value} aria-label=${label} placeholder=${placeholder} autocomplete="off" spellcheck=${false}
      onInput=${(event) => onInput(event.currentTarget.value)} /><kbd aria-hidden="true">/</kbd></div>`;
}

// --- tables ---

const compare = (left, right) => {
  if (left === right) return 0;
  if (left === null || left === undefined) return 1;
  if (right === null || right === undefined) return -1;
  return typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right;
};

/**
 * A table that can be sorted, in parts of `size` rows: long lists paint as fast as short ones. Below 720 pixels each row is a card.
 * `columns`: {id, title, cell(row), value(row): to sort by, number: aligned right, full: full width in a card, wide: so, and
 * without its title}.
 * `selected` (a Set of keys) and `onSelect` add a column of check boxes.
 */
export function Table({ label, columns, rows, rowKey, sort: firstSort, size = 50, selected, onSelect, empty }) {
  const [sort, setSort] = useState(firstSort || null);
  const [part, setPart] = useState(0);
  const sorted = useMemo(() => {
    const column = sort && columns.find((each) => each.id === sort[0]);
    if (!column?.value) return rows;
    const sign = sort[1] === "descending" ? -1 : 1;
    return [...rows].sort((left, right) => {
      const a = column.value(left);
      const b = column.value(right);
      const missing = (a === null || a === undefined) || (b === null || b === undefined);
      return compare(a, b) * (missing ? 1 : sign); // rows without a value are last in both directions
    });
  }, [rows, sort, columns]);
  const parts = Math.max(1, Math.ceil(sorted.length / size));
  const current = Math.min(part, parts - 1);
  const shown = sorted.slice(current * size, (current + 1) * size);
  if (!rows.length && empty) return empty;

  const turn = (column) => setSort((now) => (now?.[0] === column.id ? [column.id, now[1] === "ascending" ? "descending" : "ascending"] : [column.id, column.number ? "descending" : "ascending"]));
  const toggle = (keys, on) => {
    const next = new Set(selected);
    keys.forEach((key) => (on ? next.add(key) : next.delete(key)));
    onSelect(next);
  };
  const keys = shown.map(rowKey);
  const whole = keys.length > 0 && selected && keys.every((key) => selected.has(key));

  return html`<div class="table-box">
    <table role="table" aria-label=${label} aria-rowcount=${rows.length + 1}>
      <thead role="rowgroup"><tr role="row">
        ${selected && html`<th role="columnheader" scope="col" class="select"><input type="checkbox" aria-label="Select all rows of this page" checked=${whole} onChange=${(event) => toggle(keys, event.currentTarget.checked)} /></th>`}
        ${columns.map((column) => html`<th key=${column.id} role="columnheader" scope="col" class=${column.number ? "number" : ""} aria-sort=${column.value ? (sort?.[0] === column.id ? sort[1] : "none") : null}>
          ${column.value ? html`<button type="button" class="sort" onClick=${() => turn(column)}>${column.title}<${Icon} name=${sort?.[0] === column.id && sort[1] === "descending" ? "down" : "up"} size=${12} /></button>` : column.title || html`<span class="sr">Actions</span>`}
        </th>`)}
      </tr></thead>
      <tbody role="rowgroup">
        ${shown.map((row, index) => html`<tr role="row" key=${rowKey(row)} aria-rowindex=${current * size + index + 2} class=${selected?.has(rowKey(row)) ? "selected" : ""}>
          ${selected && html`<td role="cell" class="select"><input type="checkbox" aria-label=${`Select ${rowKey(row)}`} checked=${selected.has(rowKey(row))} onChange=${(event) => toggle([rowKey(row)], event.currentTarget.checked)} /></td>`}
          ${columns.map((column) => html`<td role="cell" key=${column.id} data-label=${column.title} class=${`${column.number ? "number" : ""} ${column.wide ? "wide" : column.full ? "full" : ""} ${column.className || ""}`}><div>${column.cell(row)}</div></td>`)}
        </tr>`)}
      </tbody>
    </table>
    ${parts > 1 && html`<${Pager} label=${label} part=${current} parts=${parts} size=${size} total=${sorted.length} onPart=${setPart} />`}
  </div>`;
}

function Pager({ label, part, parts, size, total, onPart }) {
  return html`<nav class="pager" aria-label=${`Pages of ${label}`}>
    <span aria-live="polite">${count(part * size + 1)}–${count(Math.min(total, (part + 1) * size))} of ${count(total)}</span>
    <button type="button" class="icon-button" aria-label="Previous page" disabled=${part === 0} onClick=${() => onPart(part - 1)}><${Icon} name="left" /></button>
    <button type="button" class="icon-button" aria-label="Next page" disabled=${part >= parts - 1} onClick=${() => onPart(part + 1)}><${Icon} name="right" /></button>
  </nav>`;
}

// --- dialogs ---

/** A modal dialog. Esc and the button close it; the focus stays in it, and returns to where it was. */
export function Dialog({ title, onClose, wide = false, busy = false, children, footer }) {
  const element = useRef(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => {
      element.current?.close();
      if (before?.isConnected) before.focus();
      else document.getElementById("page-title")?.focus();
    };
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    if (!busy) onClose();
  };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${cancel}>
    <div class="dialog-head"><h2 id=${id}>${title}</h2>
      <button type="button" class="icon-button" aria-label="Close the dialog" disabled=${busy} onClick=${onClose}><${Icon} name="close" /></button></div>
    <div class="dialog-body">${children}</div>
    ${footer && html`<div class="dialog-foot">${footer}</div>`}
  </dialog>`;
}
