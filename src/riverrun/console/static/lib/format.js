// Numbers, sizes and times as text. All functions accept null and return "–".
//
//   bytes(1536) "1.5 KiB"    rate(1536) "1.5 KiB/s"    count(12345) "12,345"    short(12345) "12.3k"
//   duration(95) "1 min 35 s"    ago(ms) "3 min ago"    time(ms) "2026-05-01 10:30:15.250"
//   localTime(ms), parseLocalTime(text)    the value of a datetime-local field, and back (null: none)
//   words({ a: [1, 2] })     "a 1, 2": any JSON value as text
//   unit("bytes/s")          the formatter of a chart's unit
//   axisClock(ms, 10)        the time beside an axis whose marks are 10 s apart: "10:30:20"; "10:30" from a minute on

const NONE = "–";
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const numbers = new Intl.NumberFormat("en");

function scaled(value, step, suffixes, separator) {
  let size = Math.abs(value);
  let index = 0;
  while (size >= step && index < suffixes.length - 1) {
    size /= step;
    index++;
  }
  const digits = index === 0 || size >= 100 ? 0 : 1;
  const text = index === 0 && !Number.isInteger(size) ? size.toFixed(1) : size.toFixed(digits);
  return `${value < 0 ? "-" : ""}${text.replace(/\.0$/, "")}${separator}${suffixes[index]}`.trim();
}

const absent = (value) => value === null || value === undefined || Number.isNaN(value);

export const count = (value) => (absent(value) ? NONE : numbers.format(value));
export const short = (value) => (absent(value) ? NONE : scaled(value, 1000, ["", "k", "M", "G", "T"], ""));
export const bytes = (value) => (absent(value) ? NONE : scaled(value, 1024, BINARY, " "));
export const rate = (value) => (absent(value) ? NONE : `${bytes(value)}/s`);
export const percent = (value) => (absent(value) ? NONE : `${value.toFixed(value < 10 ? 1 : 0)} %`);

export function duration(seconds) {
  if (absent(seconds)) return NONE;
  if (seconds < 1) return seconds === 0 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return pair(whole, 60, "min", 1, "s");
  if (whole < 86_400) return pair(whole, 3600, "h", 60, "min");
  return pair(whole, 86_400, "d", 3600, "h");
}

function pair(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

const two = (value, width = 2) => String(value).padStart(width, "0");

export function clock(ms) {
  const date = new Date(ms);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export const axisClock = (ms, stepSeconds) => (stepSeconds < 60 ? clock(ms) : clock(ms).slice(0, 5));

export function day(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

export function time(ms) {
  if (absent(ms) || ms < 0) return NONE;
  return `${day(ms)} ${clock(ms)}.${two(new Date(ms).getMilliseconds(), 3)}`;
}

export const localTime = (ms) => `${day(ms)}T${clock(ms)}`;

export function parseLocalTime(text) {
  const ms = new Date(text).getTime();
  return Number.isNaN(ms) ? null : ms;
}

export function ago(ms, now = Date.now()) {
  if (absent(ms) || ms < 0) return NONE;
  const seconds = (now - ms) / 1000;
  if (seconds < 0) return "now";
  return seconds < 1 ? "now" : `${duration(Math.floor(seconds)).split(" ").slice(0, 2).join(" ")} ago`;
}

export function words(value) {
  if (absent(value) || value === "") return NONE;
  if (Array.isArray(value)) return value.length === 0 ? "none" : value.map(words).join(typeof value[0] === "object" ? "; " : ", ");
  if (typeof value === "object") return Object.entries(value).map(([name, each]) => `${name} ${words(each)}`).join(", ");
  return typeof value === "number" ? numbers.format(value) : String(value);
}

export function plural(amount, singular, several = `${singular}s`) {
  return `${count(amount)} ${amount === 1 ? singular : several}`;
}

const UNITS = {
  "bytes/s": rate,
  bytes,
  "records/s": (value) => (absent(value) ? NONE : `${short(value)}/s`),
  "requests/s": (value) => (absent(value) ? NONE : `${short(value)}/s`),
  ms: (value) => (absent(value) ? NONE : value < 1000 ? `${Math.round(value * 10) / 10} ms` : duration(value / 1000)),
  seconds: duration,
  percent,
  count: short,
};

export const unit = (name) => UNITS[name] ?? short;
