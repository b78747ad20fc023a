// One topic: partitions and replicas, settings, groups that read it, producers, and charts.

import { path } from "../lib/api.js";
import { historyPanel, RangePicker } from "../lib/chart.js";
import { Badge, column, Configs, Empty, Facts, fixed, Icon, ListTable, Loaded, Menu, moment, number, openDialog, opener, Page, QueryTabs, Status, WholeList } from "../lib/components.js";
import { bytes, count, duration, plural, short } from "../lib/format.js";
import { registerCommand } from "../lib/palette.js";
import { html, useEffect } from "../lib/preact.js";
import { link, useQuery } from "../lib/router.js";
import { canWrite, useResource } from "../lib/state.js";
import { groupColumn, lag, stateColumn } from "./groups.js";
import { ProduceDialog } from "./produce.js";
import { AddPartitions, ChangeReplication, DeleteTopic, MovePartitions, TrimTopic } from "./topic-dialogs.js";
import { noTitle } from "./topics.js";

const TABS = [["partitions", "Partitions"], ["settings", "Settings"], ["groups", "Groups"], ["producers", "Producers"], ["charts", "Charts"]];

function Replica({ replica: { node, is_leader, is_added, in_sync, lag_records, lag_seconds, size } }) {
  const behind = !is_leader && (lag_records || lag_seconds) ? `${plural(lag_records ?? 0, "record")}${lag_seconds ? `, ${duration(lag_seconds)}` : ""} behind` : "";
  const words = [`Node ${node}`, is_leader ? "leader" : is_added ? "being added" : in_sync ? "in sync" : "not in sync", behind, bytes(size)].filter(Boolean).join(", ");
  return html`<a class="replica ${is_leader ? "leader" : ""} ${in_sync || is_added ? "" : "care"}" href=${link("node", { node })} title=${words} aria-label=${words}>
    ${node}${behind && html` <span>−${short(lag_records ?? 0)}${lag_seconds >= 0.1 && ` · ${duration(lag_seconds)}`}</span>`}
  </a>`;
}

const partitionColumns = (topic, move) => [
  fixed("partition", "Partition", (row) => html`<a href=${link("messages", { topic }, { partition: row.partition })} title="Browse the messages of this partition">${row.partition}</a>`),
  fixed("state", "State", (row) => html`<${Status} kind=${row.offline ? "bad" : row.under_replicated ? "care" : "good"}>${row.offline ? "Offline" : row.under_replicated ? "Under-replicated" : "In sync"}<//>${row.moving && html` <a href=${link("moves")}><${Badge}>moving<//></a>`}`),
  fixed("leader", "Leader", (row) => (row.leader >= 0 && row.leader !== null ? html`${row.leader} <span class="muted">epoch ${row.leader_epoch}</span>` : "none")),
  fixed("replicas", "Replicas", (row) => html`<span class="replicas">${row.replicas.map((each) => html`<${Replica} key=${each.node} replica=${each} />`)}</span>`, { hint: "The leader is bold. Others show their lag in records and time." }),
  fixed("isr", "ISR", (row) => row.replicas.filter((each) => each.in_sync).map((each) => each.node).join(", ") || "–", { hint: "In-sync replicas" }),
  ...[number("start_offset", "Start"), number("end_offset", "End"), number("size", "Size", bytes)].map((each) => ({ ...each, sort: false })),
  ...(canWrite.value ? [fixed("menu", noTitle, ({ partition }) => html`<${Menu} label=${`Actions of partition ${partition}`} items=${[{ label: "Move…", run: () => move(partition) }]} />`, { align: "end" })] : []),
];

const producerColumns = [
  column("partition", "Partition"),
  number("producer_id", "Producer id", String),
  number("epoch", "Epoch"),
  number("last_sequence", "Last sequence"),
  column("last_timestamp_ms", "Last record", (row) => moment(row.last_timestamp_ms)),
  column("transaction_start", "Transaction", (row) => (row.transaction_start >= 0 && row.transaction_start !== null ? html`<${Badge} kind="care">open since offset ${count(row.transaction_start)}<//>` : "–")),
];

const charts = (params) => html`<div class="row end-row"><${RangePicker} /></div>
  <div class="columns">${historyPanel("Traffic", "bytes/s", { bytes_in: "In", bytes_out: "Out" }, params)}${historyPanel("Records written", "records/s", { messages_in: "Records" }, params)}</div>`;

const facts = (topic) => [
  ["Partitions", count(topic.partitions)],
  ["Replicas per partition", html`${count(topic.replication_factor)}${topic.moving > 0 && html` <a href=${link("moves")}><${Badge}>${plural(topic.moving, "partition")} moving<//></a>`}`],
  ["Records", count(topic.records)],
  ["Size", bytes(topic.size)],
  ["Clean-up", topic.cleanup_policy ?? "–"],
  ["Kept for", topic.retention_ms < 0 ? "no limit" : duration(topic.retention_ms && topic.retention_ms / 1000)],
  ["Topic id", html`<code>${topic.topic_id ?? "–"}</code>`, "wide"],
];

function actions(about) {
  const open = (label, Dialog, props) => ({ label, title: label, danger: Boolean(props), run: () => openDialog(Dialog, { ...about, ...props }) });
  return [open("Add partitions…", AddPartitions), open("Change replication factor…", ChangeReplication), open("Move partitions…", MovePartitions), open("Delete records…", TrimTopic, {}), open("Delete topic…", DeleteTopic, { leave: true })];
}

export default function Topic({ params: { topic } }) {
  const resource = useResource(path`topics/${topic}`);
  const { partitions = 1, replication_factor: replication = 1, internal } = resource.data ?? {};
  const about = { topic, partitions, replication };
  const [asked] = useQuery("tab", "partitions");
  const tab = resource.error?.status === 404 ? null : asked;
  const ready = canWrite.value && resource.data;
  const produce = { title: "Produce messages…", run: () => openDialog(ProduceDialog, about) };
  useEffect(() => {
    const added = ready ? [...actions(about), produce].map(registerCommand) : [];
    return () => added.forEach((remove) => remove());
  }, [Boolean(ready), partitions, replication]);
  const list = (name, props) => html`<${WholeList} path=${`${path`topics/${topic}`}/${name}`} ...${props} />`;
  const buttons = html`<a class="button primary" href=${link("messages", { topic })}><${Icon} name="topics" />Messages</a>
    ${ready && html`${opener(html`<${Icon} name="send" />Produce`, ProduceDialog, about)}<${Menu} label="Actions of this topic" items=${actions(about)} />`}`;
  return html`<${Page} title=${topic} note=${internal && html`<${Badge}>internal<//>`} actions=${buttons}>
    <section class="panel"><${Loaded} resource=${resource} lines=${2}>${(data) => html`<${Facts} items=${facts(data)} />`}<//></section>
    ${tab && html`<${QueryTabs} label="Topic" tabs=${TABS} />`}
    ${tab === "partitions" && html`<${ListTable} path=${path`topics/${topic}/partitions`} label="Partitions" rowKey=${(row) => row.partition} columns=${partitionColumns(topic, (partition) => openDialog(MovePartitions, { ...about, partition }))} />`}
    ${tab === "settings" && html`<${Configs} path=${path`topics/${topic}/configs`} what=${topic} />`}
    ${tab === "groups" && list("groups", { label: "Groups", columns: [groupColumn, stateColumn, ...lag], rowKey: (row) => row.group, sort: "group", empty: html`<${Empty} title="No group reads this topic" icon="groups">Groups appear here when they have committed an offset.<//>` })}
    ${tab === "producers" && list("producers", { label: "Producers", columns: producerColumns, rowKey: (row) => `${row.producer_id} ${row.partition}`, sort: "partition", empty: html`<${Empty} title="No idempotent producers" icon="send">Only idempotent producers have an id; others are not listed.<//>` })}
    ${tab === "charts" && charts({ topic })}
  <//>`;
}
