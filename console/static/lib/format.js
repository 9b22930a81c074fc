// Values as people read them. Each function takes null and undefined, and returns a dash for them.

export const DASH = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** 1234567 -> "1,234,567". */
export const count = (value) => (missing(value) ? DASH : whole.format(value));

/** 1234567 -> "1.23 M": three digits that count. */
export function short(value) {
  if (missing(value)) return DASH;
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= limit) {
      const scaled = unit === "k" ? value / 1e3 : value / limit;
      return `${scaled.toPrecision(3).replace(/\.?0+$/, (zeros) => (zeros.startsWith(".") ? "" : zeros))} ${unit}`;
    }
  }
  return Number.isInteger(value) ? whole.format(value) : oneDigit.format(value);
}

/** Messages per second: 1234.5 -> "1,235/s". */
export function rate(value) {
  if (missing(value)) return DASH;
  if (value >= 1e5) return `${short(value)}/s`;
  return value > 0 && value < 10 ? `${oneDigit.format(value)}/s` : `${whole.format(value)}/s`;
}

/** Bytes with the units of IEC: 1536 -> "1.5 KiB". */
export function bytes(value) {
  if (missing(value)) return DASH;
  let scaled = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]) {
    if (Math.abs(scaled) < 1024 || unit === "PiB") return `${unit === "B" ? whole.format(scaled) : oneDigit.format(scaled)} ${unit}`;
    scaled /= 1024;
  }
  return DASH;
}

/** 0.284 -> "28.4 %". */
export const percent = (ratio) => (missing(ratio) ? DASH : `${oneDigit.format(ratio * 100)} %`);

/** Seconds in the two largest units: 3725 -> "1 h 2 min". */
export function duration(seconds) {
  if (missing(seconds)) return DASH;
  if (seconds < 0) return DASH;
  if (seconds < 1) return seconds === 0 ? "0 s" : `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${oneDigit.format(seconds)} s`;
  let rest = Math.round(seconds);
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const whole_ = Math.floor(rest / size);
    rest -= whole_ * size;
    if (whole_ > 0) parts.push(`${whole_} ${unit}`);
    else if (parts.length) break;
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

const pad = (value, digits = 2) => String(value).padStart(digits, "0");

/** Local time with milliseconds: "2026-11-26 13:45:01.250". */
export function absolute(ms) {
  if (missing(ms) || ms <= 0) return DASH;
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(ms)}.${pad(at.getMilliseconds(), 3)}`;
}

/** Local time of day: "13:45:01". */
export function clock(ms) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** The age of a time: "3 min ago", "in 2 h", "just now". */
export function relative(ms, now = Date.now()) {
  if (missing(ms) || ms <= 0) return DASH;
  const seconds = (now - ms) / 1000;
  if (Math.abs(seconds) < 2) return "just now";
  const text = duration(Math.abs(seconds) < 60 ? Math.round(Math.abs(seconds)) : Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** A value for `<input type="datetime-local">`, in local time. */
export function toLocalInput(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${clock(ms)}`;
}

/** 1 message, 2 messages. */
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Base64 to bytes. */
export const fromBase64 = (text) => Uint8Array.from(atob(text || ""), (each) => each.charCodeAt(0));

/** Bytes as rows of sixteen: offset, hexadecimal, and the printable characters. */
export function hexDump(data, limit = 4096) {
  const rows = [];
  for (let begin = 0; begin < Math.min(data.length, limit); begin += 16) {
    const part = [...data.slice(begin, begin + 16)];
    const hex = part.map((each) => each.toString(16).padStart(2, "0"));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    const text = part.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    rows.push(`${begin.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  return rows.join("\n");
}

/** A value of a configuration in one line. */
export function plain(value) {
  if (missing(value)) return "not set";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
