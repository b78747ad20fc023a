// One consumer group: how far it is behind, who consumes which partition, and its offsets.

import { path } from "../lib/api.js";
import { historyPanel, RangePicker } from "../lib/chart.js";
import { ActionDialog, CheckField, column, Empty, fixed, Loaded, Menu, named, nodeLink, number, openDialog, opener, Page, QueryTabs, Rows, SearchField, Table, tile, useForm } from "../lib/components.js";
import { count, duration, localTime, parseLocalTime, plural, short } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link, navigate, useQuery } from "../lib/router.js";
import { canWrite, useResource } from "../lib/state.js";
import { GroupState, lag } from "./groups.js";

const SHOWN_MAX = 500;
const TARGETS = [
  ["earliest", "Earliest: read everything again"],
  ["latest", "Latest: skip to the end"],
  ["time", "A time: the first record from then on"],
  ["offset", "An offset"],
  ["by", "By a number of records"],
];
const FIELDS = { time: { label: "Time", type: "datetime-local", step: "1" }, offset: { label: "Offset", type: "number", min: "0" }, by: { label: "Records", type: "number", hint: "Negative goes back" } };

const place = (row) => `${row.topic} ${row.partition}`;
const step = (row) => (row.from === null ? 0 : row.to - row.from);
const changeColumns = [
  fixed("topic", "Topic", undefined, { class: "wrap" }),
  number("partition", "Partition"),
  number("from", "From", (from) => (from === null ? "none" : count(from))),
  number("to", "To"),
  fixed("step", "Step", (row) => `${step(row) > 0 ? "+" : ""}${count(step(row))}`, { align: "end" }),
];

function Changes({ changes }) {
  if (!changes.length) return html`<p class="muted">No partition would change.</p>`;
  const total = (sign) => changes.reduce((sum, row) => sum + Math.max(0, sign * step(row)), 0);
  return html`<p>${plural(changes.length, "partition")}: ${plural(total(-1), "record is", "records are")} read again, ${plural(total(1), "record is", "records are")} skipped.</p>
    <${Rows} label="Changes" columns=${changeColumns} rows=${changes.slice(0, SHOWN_MAX)} rowKey=${place} />
    ${changes.length > SHOWN_MAX && html`<p class="muted">The first ${SHOWN_MAX} are shown.</p>`}`;
}

function ResetOffsets({ group, topics, active, close }) {
  const { values: { to, text, chosen }, field, set } = useForm({ to: "earliest", text: "", chosen: topics });
  const number = to === "time" ? parseLocalTime(text) : (to === "by" ? /^-?\d+$/ : /^\d+$/).test(text.trim()) ? Number(text) : null;
  const asked = FIELDS[to];
  const change = (next) => set({ to: next, text: next === "time" ? localTime(Date.now() - 3_600_000) : "" });
  const body = { topics: chosen.length === topics.length ? null : chosen, to, value: asked ? number : null };
  return html`<${ActionDialog} title=${`Reset offsets of ${group}`} action="Reset offsets" danger wide call=${["post", path`groups/${group}/reset`, body]} close=${close} ready=${chosen.length > 0 && (!asked || number !== null)}
    preview=${({ changes }) => html`<${Changes} changes=${changes} />`} success=${({ changes }) => `Offsets of ${plural(changes.length, "partition")} reset`}>
    ${active && html`<p class="stale">The group has active members. Stop them first: they would overwrite the offsets.</p>`}
    <div class="form-grid">${field("to", "To", { options: TARGETS, onInput: change })}${asked && field("text", asked.label, asked)}</div>
    ${topics.length > 1 && html`<fieldset><legend>Topics</legend><div class="row">
      ${topics.map((topic) => html`<${CheckField} key=${topic} label=${topic} checked=${chosen.includes(topic)} onInput=${(on) => set({ chosen: on ? [...chosen, topic] : chosen.filter((each) => each !== topic) })} />`)}
    </div></fieldset>`}
  <//>`;
}

const deleted = ({ changes }) => html`<p>${plural(changes.length, "offset")} would be deleted.</p>`;

function DeleteOffsets({ group, topics, close }) {
  const { values: { topic }, field } = useForm({ topic: topics[0] });
  return html`<${ActionDialog} title=${`Delete offsets of ${group}`} action="Delete offsets" danger call=${["delete", path`groups/${group}/offsets`, { topic }]} close=${close} preview=${deleted} success=${`Offsets of ${topic} deleted`}>
    <p>The group forgets how far it has read the topic. Its consumers must not be subscribed to the topic.</p>
    ${field("topic", "Topic", { options: topics, wide: true })}
  <//>`;
}

function DeleteGroup({ group, close }) {
  return html`<${ActionDialog} title=${`Delete group ${group}`} action="Delete" danger typed=${group} call=${["delete", path`groups/${group}`]} close=${close} success=${`Group ${group} deleted`} after=${() => navigate(link("groups"))}>
    <p>All committed offsets of the group are deleted. Consumers that start later begin where their own setting says.</p>
  <//>`;
}

function Partitions({ group }) {
  const [text, setText] = useQuery("q");
  const found = group.partitions.filter((row) => `${row.topic} ${row.member ?? ""}`.toLowerCase().includes(text.toLowerCase()));
  const rows = found.length > SHOWN_MAX ? [...found].sort((a, b) => b.lag - a.lag).slice(0, SHOWN_MAX) : found;
  const clients = new Map(group.members.map((each) => [each.member, each.client_id]));
  const columns = [
    column("topic", "Topic", (row) => named("topic", row.topic)),
    number("partition", "Partition"),
    fixed("committed", "Committed", ({ topic, partition, committed }) => (committed === null ? "none" : html`<a href=${link("messages", { topic }, { partition, from: "offset", offset: committed })} title="Browse from here">${count(committed)}</a>`), { align: "end" }),
    number("end", "End", count, { sort: false }),
    number("lag", "Lag", count, { hint: lag[0].hint }),
    lag[1],
    fixed("member", "Consumer", (row) => (row.member ? html`<span class="name-cell" title=${row.member}>${clients.get(row.member) ?? row.member}</span>` : html`<span class="muted">none</span>`)),
    fixed("metadata", "Metadata", (row) => row.metadata || "–"),
  ];
  return html`<section class="panel list" aria-label="Partitions">
    <div class="toolbar"><${SearchField} label="Search topics and members" value=${text} onInput=${setText} />
      <span class="muted push" role="status">${found.length > rows.length && `The ${SHOWN_MAX} with the most lag of `}${plural(found.length, "partition")}</span></div>
    <${Table} inUrl label="Partitions" columns=${columns} rowKey=${place} sort="lag" order="desc" rows=${rows} empty=${html`<${Empty} title=${text ? `Nothing matches “${text}”` : "No committed offsets"} icon="groups" />`} />
  </section>`;
}

// Partitions of a member as text: "orders 0, 1; payments 3".
function assigned({ partitions }) {
  const topics = {};
  for (const { topic, partition } of partitions) (topics[topic] ??= []).push(partition);
  return Object.entries(topics).map(([topic, all]) => `${topic} ${all.sort((a, b) => a - b).join(", ")}`).join("; ") || "none";
}

const memberColumns = [
  column("client_id", "Client", (row) => html`<b>${row.client_id || "–"}</b>`),
  column("host", "Address", (row) => html`<span class="mono">${row.host}</span>`),
  fixed("member", "Member", (row) => html`<span class="mono">${row.member}</span>`, { class: "wrap" }),
  fixed("instance", "Instance", (row) => row.instance ?? "–"),
  number("partitions", "Partitions", (all) => count(all.length), { value: (row) => row.partitions.length }),
  fixed("assigned", "Assigned", assigned, { class: "wrap" }),
];

const members = (rows) => html`<section class="panel flush"><${Table} inUrl label="Members" columns=${memberColumns} rows=${rows} rowKey=${(row) => row.member} sort="client_id"
  empty=${html`<${Empty} title="No members" icon="groups">No consumer of this group is connected.<//>`} /></section>`;

function Tiles({ group: { lag, lag_seconds, catch_up_seconds, members, protocol, partitions }, topics }) {
  const active = members.length > 0;
  const catchUp = !lag ? "caught up" : catch_up_seconds ? `caught up in ${duration(catch_up_seconds)}` : active ? "not catching up" : "no consumers";
  return html`<div class="tiles">
    ${tile("Lag", short(lag), plural(lag, "record"))}
    ${tile("Behind by", duration(lag_seconds), catchUp, null, lag > 0 && !active && "care")}
    ${tile("Members", count(members.length), protocol && `assignor ${protocol}`)}
    ${tile("Topics", count(topics.length), plural(partitions.length, "partition"))}
  </div>`;
}

export default function Group({ params: { group } }) {
  const resource = useResource(path`groups/${group}`, {}, { every: 5_000 });
  const { data } = resource;
  const [tab] = useQuery("tab");
  const topics = [...new Set(data?.partitions.map((each) => each.topic))].sort();
  const props = { group, topics, active: data?.members.length > 0 };
  const items = [
    { label: "Delete offsets of a topic…", danger: true, disabled: !topics.length, run: () => openDialog(DeleteOffsets, props) },
    { label: "Delete group…", danger: true, run: () => openDialog(DeleteGroup, props) },
  ];
  const actions = html`<${RangePicker} />${canWrite.value && data && html`${topics.length > 0 && opener("Reset offsets", ResetOffsets, props)}<${Menu} label="Actions of this group" items=${items} />`}`;
  return html`<${Page} title=${group} note=${data && html`<${GroupState} state=${data.state} />${data.type} · coordinator ${nodeLink(data.coordinator)}`} actions=${actions}>
    <${Loaded} resource=${resource}>${(about) => html`<${Tiles} group=${about} topics=${topics} />
      <div class="columns">${historyPanel("Lag in records", "count", { lag: "Records" }, { group })}${historyPanel("Lag in time", "seconds", { lag_seconds: "Behind by" }, { group })}</div>
      <${QueryTabs} label="Group" tabs=${[["partitions", "Partitions"], ["members", "Members"]]} />
      ${tab === "members" ? members(about.members) : html`<${Partitions} group=${about} />`}`}<//>
  <//>`;
}
