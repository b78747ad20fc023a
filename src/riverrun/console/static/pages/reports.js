// Reports that chaos runs, audits and benchmarks have published to the cluster.

import { path } from "../lib/api.js";
import { Badge, Code, column, Empty, Facts, fixed, Loaded, moment, number, Page, Panel, Segmented, Table, WholeList } from "../lib/components.js";
import { words } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link, useQuery } from "../lib/router.js";
import { useResource } from "../lib/state.js";

const ROWS_MAX = 200;
const DEPTH_MAX = 2;
const KINDS = [["", "All"], ["chaos", "Chaos"], ["audit", "Audit"], ["bench", "Benchmark"]];

function verdict(row) {
  const kind = /fail|bad|differ|lost|violat|broken|error/i.test(row.verdict) ? "bad" : /good|pass|ok|equal|held|safe|clean/i.test(row.verdict) ? "good" : "plain";
  return row.verdict ? html`<${Badge} kind=${kind}>${row.verdict}<//>` : "–";
}

const columns = [
  column("title", "Report", (row) => html`<a class="name-cell" href=${link("report", { name: row.name })}>${row.title || row.name}</a>`),
  column("kind", "Kind", (row) => html`<${Badge}>${row.kind}<//>`),
  column("verdict", "Verdict", verdict),
  fixed("summary", "Summary", undefined, { class: "wrap" }),
  number("created_ms", "Made", moment),
];

function List() {
  const [kind, setKind] = useQuery("kind");
  return html`<${Page} title="Reports" note="proofs by chaos runs and audits"><${WholeList} path="reports" label="Reports" columns=${columns} rowKey=${(row) => row.name} keep=${(row) => !kind || row.kind === kind} sort="created_ms" order="desc" every=${30_000}
    toolbar=${html`<${Segmented} label="Kind" value=${kind} options=${KINDS} onInput=${setKind} />`}
    empty=${html`<${Empty} title="No reports" icon="reports">Publish one: <code>riverrun chaos run all --publish</code> or <code>riverrun audit replicas --publish</code><//>`} /><//>`;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isTable = (value) => Array.isArray(value) && value.length > 0 && value.every(isObject);
const UNITS = ["ms", "s"];
const IDENTITIES = ["seed", "id"]; // numbers that are names

// longest_silence_s becomes "Longest silence, s".
function named(name) {
  const parts = name.split("_");
  const unit = parts.length > 1 && UNITS.includes(parts.at(-1)) ? `, ${parts.pop()}` : "";
  const text = parts.join(" ");
  return `${/^p\d/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1)}${unit}`;
}

const shown = (name, value) => (IDENTITIES.includes(name) ? String(value ?? "–") : words(value));
const json = (label, value) => html`<${Panel} key=${label} title=${label}><${Code} json label=${label} text=${JSON.stringify(value, null, 2)} /><//>`;

function ObjectTable({ label, all }) {
  const rows = all.slice(0, ROWS_MAX).map((row, at) => ({ ...row, at }));
  const names = [...new Set(all.slice(0, ROWS_MAX).flatMap(Object.keys))];
  const isNumeric = (name) => rows.every((row) => typeof (row[name] ?? 0) === "number");
  const shapes = names.map((name) => column(name, named(name), (row) => shown(name, row[name]), isNumeric(name) ? { align: "end" } : { class: "wrap" }));
  return html`<${Panel} title=${label} note=${all.length > ROWS_MAX && `the first ${ROWS_MAX} of ${all.length}`} flush=${true}><${Table} label=${label} rows=${rows} rowKey=${({ at }) => at} columns=${shapes} /><//>`;
}

// Plain values become facts, lists of objects tables, and objects sections of their own.
function Content({ title, value, depth = 0 }) {
  const entries = Object.entries(value);
  const facts = entries.filter(([, each]) => !isTable(each) && !isObject(each)).map(([name, each]) => [named(name), shown(name, each)]);
  return html`${facts.length > 0 && html`<${Panel} title=${title}><${Facts} items=${facts} /><//>`}
    ${entries.map(([name, each]) => isTable(each) && html`<${ObjectTable} key=${name} label=${named(name)} all=${each} />`)}
    ${entries.map(([name, each]) => isObject(each) && (depth < DEPTH_MAX ? html`<${Content} key=${name} title=${named(name)} value=${each} depth=${depth + 1} />` : json(named(name), each)))}`;
}

function One({ name }) {
  const resource = useResource(path`reports/${name}`, {}, { every: 0 });
  const { data } = resource;
  return html`<${Page} title=${data?.title || name} note=${data && html`${verdict(data)} ${data.kind} · ${moment(data.created_ms)}`}>
    <${Loaded} resource=${resource}>${({ summary, content }) => html`${summary && html`<${Panel}><p>${summary}</p><//>`}
      ${isObject(content) && html`<${Content} title="Facts" value=${content} />`}${json("The whole report", content)}`}<//>
  <//>`;
}

export default function Reports({ params }) {
  return params.name ? html`<${One} name=${params.name} />` : html`<${List} />`;
}
