// Transactions: open ones with their age and cause, the records they hold back, hanging ones, abort.

import { path } from "../lib/api.js";
import { ActionDialog, Badge, column, Empty, Facts, fixed, groupLinks, ListTable, Loaded, nodeLink, number, opener, Page, Panel, QueryTabs, SelectField, Status, Table, topicLink, Verdict, WholeList } from "../lib/components.js";
import { count, duration } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link, setQuery, useQuery } from "../lib/router.js";
import { useResource } from "../lib/state.js";

const STATES = ["Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty", "Dead"];

const isOpen = (row) => STATES.indexOf(row.state) < 3;
const kindOf = (row) => (row.hanging ? "bad" : !isOpen(row) ? "plain" : row.age_seconds > row.timeout_seconds ? "care" : "good");
const state = (row) => html`<${Status} kind=${kindOf(row)}>${row.state}<//> ${row.hanging && html`<${Badge} kind="bad">hanging<//>`}`;
const age = (row) => (isOpen(row) ? duration(row.age_seconds) : "–");
const place = (row) => `${row.topic}-${row.partition}`;
const where = (row) => topicLink(row.topic, row.partition);

// `at` is a partition with a hanging transaction: only there a marker is written.
function AbortDialog({ id, at, close }) {
  const what = at ? `the transaction in ${place(at)}` : `the transaction of ${id}`;
  const body = at ? { topic: at.topic, partition: at.partition, start_offset: at.start_offset } : {};
  return html`<${ActionDialog} title=${`Abort ${what}`} action="Abort" danger typed=${at ? place(at) : id} call=${["post", path`transactions/${id}/abort`, body]} success=${`Aborted ${what}`} close=${close}>
    <p>${at
      ? "An abort marker is written to this partition only. Do this only for a hanging transaction: it ends one partition without the others."
      : "The coordinator aborts the transaction and fences its producer: the application gets an error and must start again. Consumers with read_committed never see its records."}</p>
  <//>`;
}

const abortButton = (label, props) => opener("Abort…", AbortDialog, props, "small danger-text", label);

const columns = [
  column("id", "Transactional id", (row) => html`<a class="name-cell" href=${link("transaction", { id: row.id })}>${row.id}</a>`),
  column("state", "State", state),
  column("age_seconds", "Open for", age, { align: "end" }),
  fixed("timeout_seconds", "Timeout", (row) => duration(row.timeout_seconds), { align: "end" }),
  fixed("partitions", "Partitions", (row) => count(row.partitions), { align: "end" }),
  fixed("producer_id", "Producer id, epoch", (row) => `${row.producer_id}, ${row.epoch}`, { align: "end" }),
  fixed("coordinator", "Coordinator", (row) => nodeLink(row.coordinator)),
  fixed("abort", "Actions", (row) => isOpen(row) && abortButton(`Abort ${row.id}`, { id: row.id }), { align: "end" }),
];

const partitions = [
  column("topic", "Partition", where, { value: place }),
  number("start_offset", "First record", count, { render: (row) => (row.start_offset === null ? "–" : html`<a href=${link("messages", { topic: row.topic }, { partition: row.partition, from: "offset", offset: row.start_offset })}>${count(row.start_offset)}</a>`) }),
  number("records_held", "Records held back", count, { hint: "Consumers with read_committed wait for these" }),
  fixed("waiting_groups", "Waiting groups", (row) => groupLinks(row.waiting_groups), { class: "wrap" }),
];

const hanging = [
  ...partitions,
  number("producer_id", "Producer id", String),
  number("age_seconds", "Last record", (seconds) => `${duration(seconds)} ago`),
  fixed("cause", "Cause", undefined, { class: "wrap" }),
  fixed("abort", "Actions", (row) => abortButton(`Abort in ${place(row)}`, { id: row.id ?? "-", at: row }), { align: "end" }),
];

function Hanging() {
  return html`<${WholeList} path="transactions-hanging" label="Hanging transactions" columns=${hanging} rowKey=${(row) => `${place(row)} ${row.producer_id}`} sort="topic" every=${30_000}
    note=${({ silent_nodes: silent = [] }) => silent.length > 0 && html`<p class="stale" role="status">Partitions led by these nodes were not checked, because they do not respond: ${silent.join(", ")}.</p>`}
    empty=${html`<${Empty} title="No hanging transactions" icon="transactions">A transaction hangs when it is open in a partition and no coordinator will end it.<//>`} />`;
}

function List() {
  const [wanted] = useQuery("state");
  const [tab] = useQuery("tab", "all");
  const filter = html`<${SelectField} compact label="State" value=${wanted} onInput=${(next) => setQuery({ state: next, page: null })} options=${[["", "All states"], ...STATES]} />`;
  return html`<${Page} title="Transactions" tabs=${html`<${QueryTabs} label="Transactions" tabs=${[["all", "All"], ["hanging", "Hanging"]]} />`}>
    ${tab === "hanging" ? html`<${Hanging} />` : html`<${ListTable} path="transactions" params=${{ state: wanted }} columns=${columns} rowKey=${(row) => row.id} label="Transactions" search="Search transactional ids" toolbar=${filter} sort="id" every=${5000}
      empty=${html`<${Empty} title=${wanted ? `No transaction is in state ${wanted}` : "No transactional ids that you may see"} icon="transactions" />`} />`}
  <//>`;
}

function Detail({ row }) {
  const held = row.partitions.reduce((sum, each) => sum + (each.records_held ?? 0), 0);
  const waiting = [...new Set(row.partitions.flatMap((each) => each.waiting_groups ?? []))];
  return html`<${Verdict} kind=${kindOf(row)} label="Cause" text=${html`<span class="sentence">${row.cause}</span>`} />
    <${Panel}><${Facts} items=${[
      ["State", state(row)],
      ["Open for", age(row)],
      ["Timeout", duration(row.timeout_seconds)],
      ["Records held back", count(held)],
      ["Waiting groups", groupLinks(waiting)],
      ["Producer id, epoch", `${row.producer_id}, ${row.epoch}`],
      ["Coordinator", nodeLink(row.coordinator)],
    ]} /><//>
    <${Panel} title="Partitions" flush=${true}><${Table} label="Partitions" inUrl columns=${partitions} rows=${row.partitions} rowKey=${place} sort="topic" empty=${html`<${Empty} title="It has no partitions" icon="transactions" />`} /><//>`;
}

function One({ id }) {
  const resource = useResource(path`transactions/${id}`, {}, { every: 3000 });
  const { data } = resource;
  const action = data && isOpen(data) && opener("Abort…", AbortDialog, { id }, "danger");
  return html`<${Page} title=${id} actions=${action}><${Loaded} resource=${resource}>${(row) => html`<${Detail} row=${row} />`}<//><//>`;
}

export default function Transactions({ params }) {
  return params.id ? html`<${One} id=${params.id} />` : html`<${List} />`;
}
