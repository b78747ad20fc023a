// One node: facts, charts, data directories, settings, connected clients, maintenance, removal.

import { path } from "../lib/api.js";
import { historyPanel, RangePicker } from "../lib/chart.js";
import { ActionDialog, Badge, CheckField, column, Configs, Empty, Facts, fixed, groupLinks, ListTable, Loaded, Meter, moment, number, opener, Page, Panel, QueryTabs, Status, Table, Verdict } from "../lib/components.js";
import { bytes, count, duration, plural, rate } from "../lib/format.js";
import { html, useState } from "../lib/preact.js";
import { useQuery } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { PlanPreview } from "./moves.js";

const NAMES_MAX = 10;
const CHARTS = [
  ["Traffic", "bytes/s", { bytes_in: "In", bytes_out: "Out" }],
  ["Requests", "requests/s", { requests: "Requests" }],
  ["Latency, 99th percentile", "ms", { produce_p99: "Produce", fetch_p99: "Fetch" }],
  ["Connections", "count", { connections: "Connections" }],
  ["CPU", "percent", { cpu: "CPU" }],
  ["Memory", "bytes", { memory: "Memory" }],
];

// What stops working while the node is away.
function Effect({ plan }) {
  const lists = [["would be offline", plan.offline], ["could not be written", plan.not_writable]].filter(([, names]) => names?.length);
  return html`<p>${plan.leaders ? `${plural(plan.leaders, "leadership")} would move to other nodes.` : "No leadership has to move."}</p>
    ${lists.map(([text, names]) => html`<p class="text-bad" key=${text}>${plural(names.length, "partition")} ${text} if the node stopped: ${names.slice(0, NAMES_MAX).join(", ")}${names.length > NAMES_MAX ? " …" : ""}</p>`)}`;
}

function MaintenanceDialog({ node, on, close }) {
  const [force, setForce] = useState(false);
  return html`<${ActionDialog} title=${`${on ? "Start" : "End"} maintenance of node ${node}`} action=${on ? "Start maintenance" : "End maintenance"} call=${["post", path`nodes/${node}/maintenance`, { on, force }]} close=${close}
    preview=${on && ((plan) => html`<${Effect} plan=${plan} />`)} success=${on ? `Node ${node} is in maintenance` : `Node ${node} leads again`}>
    <p>${on ? "The node gives its leaderships to other nodes and leads nothing until maintenance ends. Its replicas stay in sync while it runs." : "The node may lead partitions again."}</p>
    ${on && html`<${CheckField} label="Also if another node is in maintenance or data becomes unavailable" checked=${force} onInput=${setForce} />`}
  <//>`;
}

function DecommissionDialog({ node, undo = false, close }) {
  return html`<${ActionDialog} title=${undo ? `Keep node ${node}` : `Decommission node ${node}`} action=${undo ? "Keep the node" : "Decommission"} wide danger=${!undo} typed=${undo ? null : String(node)} close=${close}
    call=${["post", path`nodes/${node}/decommission`, { undo }]} preview=${(plan) => html`<${PlanPreview} plan=${plan} />`} success=${undo ? `Node ${node} stays` : `Node ${node} is being emptied`}>
    <p>${undo ? "The decommissioning ends, and its moves are cancelled. The node may lead and get replicas again." : "All replicas move to other nodes, and the node gets no new ones. When it is empty, decommission it again: this removes its vote. Then stop the node. Until then you can undo it."}</p>
  <//>`;
}

// A node that was decommissioned and holds nothing. Without the right to see votes it is unknown.
const isEmpty = ({ mode, replicas, voter }) => mode === "decommissioning" && replicas === 0 && voter !== null;

function actionsOf(about) {
  const { node, mode } = about;
  const undo = mode === "decommissioning" && opener("Undo decommissioning…", DecommissionDialog, { node, undo: true });
  if (isEmpty(about)) return html`${undo}${about.voter && opener("Remove the vote…", DecommissionDialog, { node }, "danger-text")}`;
  const maintained = mode === "maintenance";
  return html`${undo}${opener("Decommission…", DecommissionDialog, { node }, "danger-text")}
    ${opener(`${maintained ? "End" : "Start"} maintenance…`, MaintenanceDialog, { node, on: !maintained })}`;
}

function Emptied({ node, voter, alive }) {
  const text = voter ? "holds no replica. Remove its vote in the quorum, then stop it." : alive ? "holds no replica and has no vote: you can stop it. The cluster unregisters it by itself." : "holds no replica and is stopped.";
  return html`<${Verdict} kind="good" label="Decommissioning" text=${`Node ${node} ${text}`} />`;
}

const MODES = { maintenance: "In maintenance", decommissioning: "Decommissioning" };

function State({ node }) {
  const care = MODES[node.mode] ?? (node.cordoned && "Cordoned");
  return html`<${Status} kind=${!node.alive ? "bad" : care ? "care" : "good"}>${!node.alive ? "Not responding" : care || "Alive"}<//>`;
}

const directories = [
  fixed("path", "Path", (row) => html`<code>${row.path}</code>`, { class: "wrap" }),
  number("size", "Size", bytes),
  fixed("offline", "State", (row) => html`<${Status} kind=${row.offline ? "bad" : "good"}>${row.offline ? "Offline" : "In use"}<//>`),
];

function Summary({ node }) {
  const { disk_total: total, disk_free: free } = node;
  return html`${isEmpty(node) && html`<${Emptied} ...${node} />`}<${Panel}><${Facts} items=${[
    ["State", html`<${State} node=${node} />`],
    ["Address", html`<span class="mono">${node.host}:${node.port}</span>`],
    ["Rack", node.rack || "–"],
    ["Version", node.version ?? "–"],
    ["Started", moment(node.started_ms)],
    ["Leaders", count(node.leaders)],
    ["Replicas", count(node.replicas)],
    ["Under-replicated", html`<span class=${node.under_replicated ? "text-care" : ""}>${count(node.under_replicated)}</span>`],
    ["Traffic in, out", `${rate(node.bytes_in)}, ${rate(node.bytes_out)}`],
    ["Disk", node.disk_used === null ? "–" : html`<span class="nowrap">${bytes(node.disk_used)} data</span>${total ? html`, <span class="nowrap">${bytes(free)} free</span> <${Meter} value=${1 - free / total} label="Used part of the disk" />` : ""}`, "wide"],
  ]} /><//>
  <div class="row"><${RangePicker} /></div>
  <div class="columns">${CHARTS.map((chart) => historyPanel(...chart, { node: node.node }))}</div>
  <${Panel} title="Data directories" flush=${true}><${Table} label="Data directories" columns=${directories} rows=${node.log_dirs} rowKey=${(row) => row.path} /><//>`;
}

const clients = [
  column("client_id", "Client", (row) => html`<span class="name-cell">${row.client_id || "–"}</span>`),
  column("software", "Library", (row) => [row.software, row.version].filter(Boolean).join(" ") || "–"),
  column("principal", "User", (row) => row.principal.replace(/^User:/, "")),
  column("address", "Address", (row) => html`<span class="mono" title=${row.listener}>${row.address}</span>`),
  fixed("groups", "Groups", (row) => groupLinks(row.groups)),
  number("connected_ms", "Connected", moment),
  number("requests", "Requests"),
  number("bytes_in", "In", bytes),
  number("bytes_out", "Out", bytes),
  fixed("last_api", "Last request", (row) => html`${row.last_api ?? "–"} <span class="muted">${duration(row.idle_seconds)} ago</span>`),
];

function Clients({ node }) {
  return html`<${ListTable} path=${path`nodes/${node}/connections`} columns=${clients} rowKey=${(row) => `${row.address} ${row.connected_ms}`} label="Clients" search="Search clients" sort="client_id" every=${5000} empty=${html`<${Empty} title="No clients are connected to this node" />`} />`;
}

export default function Node({ params: { node } }) {
  const resource = useResource(path`nodes/${node}`, {}, { every: 5000 });
  const { data } = resource;
  const [tab] = useQuery("tab", "summary");
  const tabs = html`<${QueryTabs} label="Node" tabs=${[["summary", "Summary"], ["settings", "Settings"], ["clients", "Clients"]]} />`;
  return html`<${Page} title=${`Node ${node}`} note=${data?.controller && html`<${Badge} kind="accent">active controller<//>`} actions=${data && actionsOf(data)} tabs=${tabs}>
    ${tab === "settings" && html`<${Configs} path=${path`nodes/${node}/configs`} what=${`node ${node}`} isChanged=${(config) => !config.is_default} />`}
    ${tab === "clients" && html`<${Clients} node=${node} />`}
    ${tab === "summary" && html`<${Loaded} resource=${resource}>${(found) => html`<${Summary} node=${found} />`}<//>`}
  <//>`;
}
