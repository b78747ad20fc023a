// The messages of a topic: browse both ways by offset or time, search, follow live, and write.
// Everything that selects messages is in the URL, so that an address shows the same to others.

import { address, path } from "../lib/api.js";
import { AreaField, Badge, CheckField, Code, Dialog, Empty, Failure, fixed, Icon, Menu, number, openDialog, opener, Page, Rows, SearchField, Segmented, SelectField, TextField, useForm } from "../lib/components.js";
import { bytes, count, localTime, parseLocalTime, plural, time } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/preact.js";
import { route, setQuery } from "../lib/router.js";
import { canWrite, useResource } from "../lib/state.js";
import { FORMATS, MessageDetail, Preview } from "./message.js";
import { ROWS_MAX, useScan, useTail } from "./messages-read.js";
import { ProduceDialog, RedriveDialog } from "./produce.js";

const STARTS = [["latest", "Newest"], ["earliest", "Oldest"], ["offset", "Offset"], ["time", "Time"]];
const LIMITS = ["20", "50", "100", "200", "500"];
const FIRST_COLUMNS = "time,partition,offset,key,value,size";
const DEAD_LETTERS = /(^|[._-])(dlq|dlt|dead[._-]?letters?)([._-]|$)/i;

const keyOf = (message) => `${message.partition}:${message.offset}`;
const payload = (key, title, width) => fixed(key, title, (row) => html`<${Preview} payload=${row[key]} />`, { class: `payload-cell ${width}` });
const COLUMNS = [
  fixed("time", "Time", (row) => time(row.timestamp_ms)),
  number("partition", "Partition"),
  number("offset", "Offset", String),
  payload("key", "Key", "key"),
  payload("value", "Value"),
  fixed("headers", "Headers", (row) => row.headers.map((each) => `${each.name}=${each.value?.text ?? "null"}`).join(" "), { class: "payload-cell key mono" }),
  number("size", "Size", bytes),
  fixed("codec", "Compression"),
  number("producer_id", "Producer", (id) => (id >= 0 && id !== null ? id : "–")),
  fixed("format", "Format", ({ value }) => value && `${value.format}${value.schema_id ? ` (schema ${value.schema_id})` : ""}`),
];

// The URL's values, completed: what is sent to the server, and what only the page uses.
function useSelection() {
  const { partition = "all", from = "latest", offset = "0", time: time_, cursor = null, direction, limit, format = "auto", filter = "", isolation, js = "", live, open, columns = FIRST_COLUMNS } = route.value.query;
  const selection = {
    partition,
    from,
    offset: from === "offset" ? offset : null,
    time_ms: from === "time" ? time_ ?? 0 : null,
    direction: cursor ? direction : from === "latest" ? "older" : "newer",
    limit: LIMITS.includes(limit) ? limit : "50",
    format,
    filter,
    isolation: isolation ? "read_uncommitted" : "read_committed",
    cursor,
  };
  return { selection, code: js, live: live === "1", open, columns: columns.split(",") };
}

// A changed selection begins again at its first page. Defaults are not kept in the URL.
const select = (name, otherwise) => (next) => setQuery({ cursor: null, direction: null, open: null, [name]: next === otherwise ? null : next });

// A field whose text counts when it is left or Enter is pressed.
function LateField({ value, commit, ...rest }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<${TextField} value=${text} onInput=${setText} onChange=${() => commit(text)} ...${rest} />`;
}

function Start({ from, offset, time_ms }) {
  const begin = (next) => {
    select("from", "latest")(next);
    setQuery({ offset: null, time: next === "time" ? Date.now() - 3_600_000 : null });
  };
  return html`<${SelectField} label="Start at" value=${from} onInput=${begin} options=${STARTS} />
    ${from === "offset" && html`<${LateField} label="Offset" type="number" min="0" value=${offset} commit=${(text) => select("offset")(text || "0")} />`}
    ${from === "time" && html`<${LateField} label="Time" type="datetime-local" step="1" value=${localTime(Number(time_ms))} commit=${(text) => select("time")(parseLocalTime(text) ?? time_ms)} />`}`;
}

function PartitionField({ value, partitions = 0 }) {
  const known = Math.max(partitions, Number(value) + 1 || 0);
  return html`<${SelectField} label="Partition" value=${value} onInput=${select("partition", "all")} options=${[["all", "All"], ...Array(known).keys()]} />`;
}

function ScriptField({ code }) {
  const [text, setText] = useState(code);
  useEffect(() => setText(code), [code]);
  const apply = () => select("js", "")(text.trim());
  const onKey = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && apply();
  return html`<div class="script">
    <${AreaField} label="JavaScript filter" rows=${2} value=${text} onInput=${setText} onKeyDown=${onKey} placeholder=${'value.amount > 100 && key.startsWith("a")'}
      hint="Runs in your browser. Names: key, value, headers, offset, partition, timestamp, size; JSON is parsed. Ctrl-Enter applies it." />
    <button type="button" class="small primary" disabled=${text.trim() === code} onClick=${apply}>Apply</button>
  </div>`;
}

function ColumnsButton({ chosen }) {
  const toggle = (key) => (on) => {
    const next = COLUMNS.map((each) => each.key).filter((each) => (each === key ? on : chosen.includes(each))).join();
    setQuery({ columns: next === FIRST_COLUMNS ? null : next });
  };
  return html`<${Menu} label="Columns" text="Columns">${COLUMNS.map(({ key, title }) => html`<${CheckField} key=${key} label=${title} checked=${chosen.includes(key)} onInput=${toggle(key)} />`)}<//>`;
}

function DownloadDialog({ topic, selection: { cursor, ...selection }, code, close }) {
  const { values, field } = useForm({ format: "ndjson", limit: "10000" });
  const url = address(path`topics/${topic}/export`, { ...selection, ...values });
  const footer = html`<button type="button" onClick=${close}>Close</button><a class="button primary" href=${url} download><${Icon} name="download" />Download</a>`;
  return html`<${Dialog} title=${`Download messages of ${topic}`} close=${close} footer=${footer}><div class="stack">
    <div class="form-grid">
      ${field("format", "File", { options: [["ndjson", "NDJSON: a JSON object per line"], ["csv", "CSV"]] })}
      ${field("limit", "At most (messages)", { type: "number", min: 1, max: 1_000_000 })}
    </div>
    <p class="muted">The file has the messages of the present selection, from its start${selection.filter && `, that contain “${selection.filter}”`}.${code && " The JavaScript filter is not applied."}${values.format === "csv" && " Texts that a spreadsheet would run as a formula begin with a single quote; NDJSON is exact."}</p>
    <div><span class="command-label">The same in a script</span><${Code} label="Command" wrap text=${`curl -OJ '${window.location.origin}${url.replaceAll("'", "%27")}'`} /></div>
  </div><//>`;
}

function MessageRows({ topic, rows, chosen: { columns, open, selection }, busy = false, done }) {
  const toggle = (row) => setQuery({ open: open === keyOf(row) ? null : keyOf(row) });
  const expand = (row) => html`<button type="button" class="icon-only" aria-expanded=${open === keyOf(row) ? "true" : "false"} aria-label=${`Message ${keyOf(row)}`} onClick=${() => toggle(row)}><${Icon} name="chevron" size=${12} /></button>`;
  const all = [fixed("open", html`<span class="hidden">Details</span>`, expand, { class: "narrow" }), ...COLUMNS.filter((each) => columns.includes(each.key)).map((each) => ({ ...each, sort: false }))];
  const onRow = (row, event) => !event.target.closest("button, a") && !window.getSelection().toString() && toggle(row);
  return html`<${Rows} label="Rows" columns=${all} rows=${rows} rowKey=${keyOf} rowClass=${() => "clickable"} onRow=${onRow} busy=${busy} bones=${busy && !rows.length ? 8 : 0}
    detail=${(row) => open === keyOf(row) && html`<${MessageDetail} topic=${topic} message=${row} format=${selection.format} done=${done} />`} />`;
}

function FilterNote({ failures, failure, cut }) {
  const note = (text) => html`<p class="stale" role="status"><${Icon} name="warning" />${text}</p>`;
  return html`${failures > 0 && note(`The filter failed for ${plural(failures, "message")}, which ${failures === 1 ? "is" : "are"} not shown. ${failure ?? ""}`)}
    ${cut > 0 && note(`${plural(cut, "message")} ${cut === 1 ? "was" : "were"} too large to filter completely: the filter gets the first 64 KiB of a key, value or header. Matches may be missing.`)}`;
}

function Browse({ topic, chosen, scan }) {
  const { from, direction, cursor, filter } = chosen.selection;
  const { rows: read, loading, error, scanned } = scan;
  const newestFirst = from === "latest";
  const rows = (direction === "older") === newestFirst ? read : [...read].reverse();
  const go = (label, to, way) => html`<button type="button" disabled=${(way && !to) || loading} onClick=${() => setQuery({ cursor: to, direction: way, open: null }, { replace: false })}>${label}</button>`;
  const filtered = Boolean(chosen.code || filter);
  const status = filtered ? `${loading ? "Searching: " : ""}${plural(rows.length, "message")} of ${count(scanned)} read` : loading ? "Loading" : plural(rows.length, "message");
  const buttons = [go("Newer", scan.newer, "newer"), go("Older", scan.older, "older")];
  const none = !loading && !rows.length;
  return html`<${FilterNote} ...${scan} />
    ${error && html`<${Failure} error=${error} retry=${scan.refresh} />`}
    ${none && !error && html`<${Empty} title=${filtered ? "No message matches" : "No messages here"} icon="topics">${filtered ? `${count(scanned)} messages were searched.` : cursor ? "There is nothing further in this direction." : "The selection has no messages that you can read."}<//>`}
    ${!none && html`<${MessageRows} ...${{ topic, rows, chosen }} busy=${loading} done=${scan.refresh} />`}
    <nav class="pager" aria-label="Pages of messages">
      <span class="muted" role="status">${status}</span>
      <span class="pager-buttons wide-buttons">
        ${loading && filtered && html`<button type="button" onClick=${scan.stop}>Stop</button>`}
        ${!loading && scan.more && html`<button type="button" onClick=${scan.searchOn}>Search on</button>`}
        ${cursor && go("First page", null, null)}${newestFirst ? buttons : buttons.reverse()}
      </span>
    </nav>`;
}

const TAIL_KINDS = { connecting: "care", live: "good" };

function Tail({ topic, chosen }) {
  const [paused, setPaused] = useState(false);
  const tail = useTail(topic, chosen.selection, chosen.code, !paused);
  const { rows, sample, error } = tail;
  const status = paused ? "paused" : tail.status;
  const seen = !sample ? "Waiting for new messages" : sample.dropped ? `Sampled: ${count(sample.sent)} of ${count(sample.seen)} messages are shown` : `${plural(sample.seen, "message")} seen`;
  return html`<div class="toolbar">
      <${Badge} kind=${TAIL_KINDS[status]}>${status}<//><span class="muted">${seen}</span>
      <span class="row push">
        <button type="button" class="small" onClick=${tail.clear} disabled=${!rows.length}>Clear</button>
        <button type="button" class="small" onClick=${() => setPaused(!paused)}><${Icon} name=${paused ? "play" : "pause"} size=${12} />${paused ? "Resume" : "Pause"}</button>
      </span>
    </div>
    <${FilterNote} ...${tail} />
    ${error && html`<${Failure} error=${error} />`}
    ${!error && !rows.length && html`<${Empty} title="No new messages yet" icon="timeline">Messages appear as they are written. Busy topics are sampled.<//>`}
    ${rows.length > 0 && html`<${MessageRows} ...${{ topic, rows, chosen }} /><p class="pager muted">${plural(rows.length, "message")}, newest first. The last ${count(ROWS_MAX)} are kept.</p>`}`;
}

export default function Messages({ params: { topic } }) {
  const partitions = useResource(path`topics/${topic}`, {}, { every: 0 }).data?.partitions;
  const chosen = useSelection();
  const { selection, code, live, columns } = chosen;
  const scan = useScan(topic, selection, code, !live);
  const [script, setScript] = useState(Boolean(code));
  const props = { topic, partitions, selection, code, filter: selection.filter, done: scan.refresh };
  const item = (label, Dialog) => ({ label, run: () => openDialog(Dialog, props) });
  const items = [item("Download…", DownloadDialog), ...(canWrite.value ? [item("Redrive dead letters…", RedriveDialog)] : [])];
  const actions = html`
    ${DEAD_LETTERS.test(topic) && opener(html`<${Icon} name="moves" />Redrive`, RedriveDialog, props)}
    ${opener(html`<${Icon} name="send" />Produce`, ProduceDialog, props, "primary")}
    <${Menu} label="Actions of these messages" items=${items} />`;
  return html`<${Page} title=${`Messages of ${topic}`} actions=${actions}><section class="panel list" aria-label="Messages">
    <div class="toolbar fields">
      <${Segmented} label="Mode" value=${live ? "1" : ""} options=${[["", "Browse"], ["1", "Live"]]} onInput=${select("live")} />
      <${PartitionField} value=${selection.partition} partitions=${partitions} />
      ${!live && html`<${Start} ...${selection} />`}
      <${SelectField} label="Format" value=${selection.format} options=${FORMATS} onInput=${select("format", "auto")} />
      ${!live && html`<${SelectField} label="Show" value=${selection.limit} options=${LIMITS} onInput=${select("limit", "50")} />
        <${CheckField} label="Uncommitted" title="Also show records of open and aborted transactions" checked=${selection.isolation === "read_uncommitted"} onInput=${(on) => select("isolation")(on ? "1" : null)} />`}
    </div>
    <div class="toolbar">
      <${SearchField} label="Search in keys, values and headers" placeholder="Text in key, value or header" value=${selection.filter} onInput=${select("filter", "")} />
      <button type="button" aria-expanded=${script ? "true" : "false"} onClick=${() => setScript(!script)}><${Icon} name="filter" size=${14} />JavaScript${code && html` <${Badge} kind="accent">on<//>`}</button>
      <span class="row push">
        ${!live && html`<button type="button" onClick=${scan.refresh} disabled=${scan.loading}><${Icon} name="refresh" size=${14} />Refresh</button>`}
        <${ColumnsButton} chosen=${columns} />
      </span>
      ${script && html`<${ScriptField} code=${code} />`}
    </div>
    ${live ? html`<${Tail} topic=${topic} chosen=${chosen} />` : html`<${Browse} topic=${topic} chosen=${chosen} scan=${scan} />`}
  </section><//>`;
}
