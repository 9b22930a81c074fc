// Line charts, sparklines and meters as SVG, in the colours of the style sheet.
import { html, useEffect, useRef, useState } from "./html.js";
import { clock, short } from "./format.js";

const MARGIN = { top: 10, right: 8, bottom: 22, left: 48 };

/** The width of an element, as it changes. */
function useWidth(first) {
  const element = useRef(null);
  const [width, setWidth] = useState(first);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(120, Math.round(entry.contentRect.width))));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

/** Round values for a scale from 0 to at least `top`: 0, 50, 100, 150. */
export function ticks(top, wanted = 3) {
  if (!(top > 0)) return [0, 1];
  const rough = top / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const list = [];
  for (let value = 0; value < top + step * 0.999; value += step) list.push(Number(value.toPrecision(6)));
  return list;
}

const known = (values) => values.filter((each) => each !== null && each !== undefined);

/** The path of a line, with gaps where values are null. */
function pathOf(values, x, y) {
  let text = "";
  let pen = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      pen = false;
      return;
    }
    text += `${pen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
  });
  return text;
}

function areaOf(values, x, y, base) {
  const first = values.findIndex((each) => each !== null && each !== undefined);
  if (first < 0) return "";
  const filled = values.slice(first).map((each) => each ?? 0);
  const line = filled.map((value, index) => `L${x(first + index).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return `M${x(first).toFixed(1)} ${base}${line}L${x(values.length - 1).toFixed(1)} ${base}Z`;
}

/**
 * A chart of series over time. `series`: [{name, values, color: 1..4}], all as long as `times` (milliseconds).
 * `format` is for the figures of the legend, `axis` for the scale.
 * `label` says what it shows; screen readers read it with the last values.
 */
export function LineChart({ label, series, times, format = short, axis = short, height = 190 }) {
  const [box, width] = useWidth(560);
  const [at, setAt] = useState(null);
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const marks = ticks(Math.max(0, ...series.flatMap((each) => known(each.values))));
  const top = marks[marks.length - 1];
  const end = times[times.length - 1];
  const span = Math.max(end - times[0], 60000) || 60000;
  const begin = end - span; // the newest value is at the right edge
  const x = (index) => MARGIN.left + ((times[index] - begin) / span) * inner.width;
  const y = (value) => MARGIN.top + inner.height * (1 - value / top);
  const base = MARGIN.top + inner.height;
  const last = series.map((each) => `${each.name}: ${format(each.values[each.values.length - 1])}`).join(", ");

  const onMove = (event) => {
    const left = event.currentTarget.getBoundingClientRect().left;
    const time = begin + ((event.clientX - left - MARGIN.left) / inner.width) * span;
    let best = 0;
    times.forEach((each, index) => {
      if (Math.abs(each - time) < Math.abs(times[best] - time)) best = index;
    });
    setAt(best);
  };
  const shown = at !== null && at < times.length ? at : null;
  const dates = times.length ? [0, 1, 2, 3].map((part) => begin + (span * part) / 3) : [];

  return html`<figure class="chart" ref=${box}>
    <figcaption class="legend">
      ${series.map((each) => html`<span class="legend-item" key=${each.name}>
        <i class=${`swatch color-${each.color}`}></i>${each.name}
        <b>${format(each.values[shown ?? each.values.length - 1])}</b>
      </span>`)}
      <span class="legend-time">${shown === null ? "now" : clock(times[shown])}</span>
    </figcaption>
    <svg width=${width} height=${height} role="img" aria-label=${`${label}. ${times.length ? last : "No values yet"}`}
      onMouseMove=${times.length ? onMove : null} onMouseLeave=${() => setAt(null)}>
      ${marks.map((mark) => html`<g key=${mark}>
        <line class="grid" x1=${MARGIN.left} x2=${width - MARGIN.right} y1=${y(mark)} y2=${y(mark)} />
        <text class="tick" x=${MARGIN.left - 8} y=${y(mark) + 4} text-anchor="end">${axis(mark)}</text>
      </g>`)}
      ${dates.map((date, part) => html`<text class="tick" key=${part} y=${height - 4}
        x=${MARGIN.left + (inner.width * part) / 3} text-anchor=${["start", "middle", "middle", "end"][part]}>${clock(date)}</text>`)}
      ${series.map((each) => html`<g key=${each.name} class=${`color-${each.color}`}>
        <path class="area" d=${areaOf(each.values, x, y, base)} />
        <path class="line" d=${pathOf(each.values, x, y)} />
      </g>`)}
      ${shown !== null && html`<g>
        <line class="cross" x1=${x(shown)} x2=${x(shown)} y1=${MARGIN.top} y2=${base} />
        ${series.map((each) => each.values[shown] !== null && html`<circle key=${each.name} class=${`dot color-${each.color}`}
          cx=${x(shown)} cy=${y(each.values[shown])} r="3.500" />`)}
      </g>`}
      ${times.length < 2 && html`<text class="tick" x=${width / 2} y=${height / 2} text-anchor="middle">Waiting for values …</text>`}
    </svg>
  </figure>`;
}

/** A small line without axes. It repeats a figure that stands beside it, so screen readers skip it. */
export function Sparkline({ values, color = 1, width = 88, height = 24 }) {
  const top = Math.max(...known(values), 0) || 1;
  const x = (index) => (values.length < 2 ? 0 : (index / (values.length - 1)) * width);
  const y = (value) => 2 + (height - 4) * (1 - value / top);
  return html`<svg class=${`spark color-${color}`} width=${width} height=${height} aria-hidden="true">
    <path class="area" d=${areaOf(values, x, y, height)} /><path class="line" d=${pathOf(values, x, y)} />
  </svg>`;
}

/** A part of a whole, from 0 to 1, such as the used disk. */
export function Meter({ ratio, label, warn = 0.75, bad = 0.9 }) {
  const part = Math.min(1, Math.max(0, ratio ?? 0));
  const state = part >= bad ? "bad" : part >= warn ? "warn" : "good";
  return html`<svg class=${`meter ${state}`} role="img" aria-label=${label} width="100%" height="6" preserveAspectRatio="none" viewBox="0 0 100 6">
    <rect class="meter-back" width="100" height="6" rx="3" /><rect class="meter-value" width=${part * 100} height="6" rx="3" />
  </svg>`;
}
