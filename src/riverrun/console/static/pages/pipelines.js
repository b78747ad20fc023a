// Spark pipelines: their queries, rows, lag, failures and dead letters; start, stop and redrive.

import { path } from "../lib/api.js";
import { ActionDialog, Code, column, Empty, Facts, fixed, Loaded, moment, number, opener, Page, Panel, Status, Table, WholeList } from "../lib/components.js";
import { count, duration, plural, short } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { RedriveDialog } from "./produce.js";

const KINDS = { running: "good", starting: "care", waiting: "care", ending: "care", stopping: "care", failed: "bad", dead: "bad" };
const DOWN = ["ended", "stopped", "failed", "dead"];

const state = (row) => html`<${Status} kind=${KINDS[row.state]}>${row.state}<//>`;
const perSecond = (value) => `${short(value)}/s`;
const alarming = (value) => html`<span class=${value ? "text-bad" : ""}>${count(value)}</span>`;
const sparkLink = (row) => row.spark_ui && html`<a href=${row.spark_ui} target="_blank" rel="noopener">Spark UI</a>`;

function SwitchDialog({ name, verb, close }) {
  const stop = verb === "stop";
  return html`<${ActionDialog} title=${`${stop ? "Stop" : "Start"} pipeline ${name}`} action=${stop ? "Stop" : "Start"} danger=${stop} call=${["post", `${path`pipelines/${name}`}/${verb}`]} success=${stop ? `Pipeline ${name} stops` : `Pipeline ${name} starts`} close=${close}>
    <p>${stop ? "Its queries end after the batches that they are writing. The process waits, and Start continues from there. To end the process too, use riverrun pipeline stop on its host." : "The queries continue where they stopped."}</p>
  <//>`;
}

function DeadLetters({ row }) {
  const topic = row.dead_letter_topic;
  if (!topic) return alarming(row.dead_letters);
  return html`<span class="row end-row"><a href=${link("messages", { topic })} title=${`Open the messages of ${topic}`}>${alarming(row.dead_letters)}</a>
    ${row.dead_letters > 0 && opener("Redrive…", RedriveDialog, { topic }, "small", `Redrive dead letters of ${row.name}`)}</span>`;
}

const columns = [
  column("name", "Pipeline", (row) => html`<a class="name-cell" href=${link("pipeline", { name: row.name })}>${row.name}</a>`),
  column("state", "State", state),
  number("queries", "Queries"),
  number("rows_per_second", "Rows", perSecond),
  number("lag", "Lag"),
  number("failures", "Failures", alarming),
  number("dead_letters", "Dead letters", alarming),
  column("host", "Host"),
  number("updated_ms", "Updated", moment),
  fixed("spark_ui", "Spark", sparkLink),
];

function List() {
  return html`<${Page} title="Pipelines" note="Spark queries on this cluster"><${WholeList} path="pipelines" label="Pipelines" columns=${columns} rowKey=${(row) => row.name} sort="name" every=${5000}
    empty=${html`<${Empty} title="No pipeline has run on this cluster" icon="pipelines">A pipeline reads topics with Spark and writes tables and topics. Start one: <code>riverrun pipeline run FILE</code><//>`} /><//>`;
}

const queries = [
  column("name", "Query", (row) => html`<span class="name-cell">${row.name}</span>`),
  fixed("source", "From", undefined, { class: "wrap" }),
  fixed("sink", "To", undefined, { class: "wrap" }),
  column("state", "State", state),
  number("batch", "Batch"),
  number("rows", "Rows", count, { render: (row) => html`${count(row.rows)} <span class="muted">${perSecond(row.rows_per_second)}</span>` }),
  number("lag", "Lag", count, { render: (row) => html`${count(row.lag)} <span class="muted">${row.lag_seconds === null ? "" : duration(row.lag_seconds)}</span>` }),
  number("dead_letters", "Dead letters", count, { render: (row) => html`<${DeadLetters} row=${row} />` }),
];

function Detail({ pipeline }) {
  const { declaration } = pipeline;
  const text = typeof declaration === "string" ? declaration : JSON.stringify(declaration, null, 2);
  return html`<${Panel}><${Facts} items=${[
    ["State", state(pipeline)],
    ["Rows", perSecond(pipeline.rows_per_second)],
    ["Lag", pipeline.lag === null ? "–" : plural(pipeline.lag, "record")],
    ["Failures", alarming(pipeline.failures)],
    ["Dead letters", alarming(pipeline.dead_letters)],
    ["Host", pipeline.host],
    ["Updated", moment(pipeline.updated_ms)],
    ["Spark", sparkLink(pipeline) || "–"],
  ]} /><//>
  <${Panel} title="Queries" flush=${true}><${Table} label="Queries" inUrl columns=${queries} rows=${pipeline.queries} rowKey=${(row) => row.name} sort="name" detail=${(row) => row.last_error && html`<p class="text-bad">${row.last_error}</p>`} empty=${html`<${Empty} title="No query has started yet" icon="pipelines" />`} /><//>
  ${declaration && html`<${Panel} title="Declaration"><${Code} label="Declaration" json=${text !== declaration} text=${text} /><//>`}`;
}

function One({ name }) {
  const resource = useResource(path`pipelines/${name}`, {}, { every: 3000 });
  const { data } = resource;
  const verb = DOWN.includes(data?.state) ? "start" : "stop";
  const actions = data && opener(verb === "start" ? "Start…" : "Stop…", SwitchDialog, { name, verb });
  return html`<${Page} title=${name} actions=${actions}><${Loaded} resource=${resource}>${(pipeline) => html`<${Detail} pipeline=${pipeline} />`}<//><//>`;
}

export default function Pipelines({ params }) {
  return params.name ? html`<${One} name=${params.name} />` : html`<${List} />`;
}
