// The nodes of the cluster: state, traffic, leaders and disks.

import { Badge, Empty, Loaded, Meter, Page, Status, Table } from "../lib/components.js";
import { bytes, count, plural, rate } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link } from "../lib/router.js";
import { useResource } from "../lib/state.js";

function Disk({ node }) {
  if (!node.disk_total) return "–";
  const used = 1 - node.disk_free / node.disk_total;
  return html`<${Meter} value=${used} label=${`Disk of node ${node.node}`} /> <span class="muted">${bytes(node.disk_free)} free</span>`;
}

function State({ node }) {
  if (!node.alive) return html`<${Status} kind="bad">Not responding<//>`;
  if (node.cordoned || (node.mode && node.mode !== "normal")) return html`<${Status} kind="care">${node.cordoned ? "Cordoned" : node.mode}<//>`;
  return html`<${Status} kind="good">Alive<//>`;
}

const columns = [
  { key: "node", title: "Node", sort: true, render: (row) => html`<a class="name-cell" href=${link("node", { node: row.node })}>Node ${row.node}</a> ${row.controller && html`<${Badge} kind="accent" title="Active controller">controller<//>`}` },
  { key: "alive", title: "State", render: (row) => html`<${State} node=${row} />` },
  { key: "host", title: "Address", render: (row) => html`<span class="mono">${row.host}:${row.port}</span>` },
  { key: "rack", title: "Rack", render: (row) => row.rack ?? "–" },
  { key: "leaders", title: "Leaders", align: "end", sort: true, render: (row) => count(row.leaders) },
  { key: "replicas", title: "Replicas", align: "end", sort: true, render: (row) => count(row.replicas) },
  { key: "bytes_in", title: "In", align: "end", sort: true, render: (row) => rate(row.bytes_in) },
  { key: "bytes_out", title: "Out", align: "end", sort: true, render: (row) => rate(row.bytes_out) },
  { key: "disk_used", title: "Data", align: "end", sort: true, render: (row) => bytes(row.disk_used) },
  { key: "disk_free", title: "Disk", render: (row) => html`<${Disk} node=${row} />` },
  { key: "version", title: "Version", render: (row) => row.version ?? "–" },
];

export function NodesTable() {
  const resource = useResource("nodes", {}, { every: 5_000 });
  return html`<${Loaded} resource=${resource} lines=${4}>
    ${({ items }) => html`<${Table} label="Nodes" columns=${columns} rows=${items} rowKey=${(row) => row.node} sort="node" empty=${html`<${Empty} title="No nodes" />`} />`}
  <//>`;
}

export default function Nodes() {
  const { data } = useResource("nodes", {}, { every: 5_000 });
  const note = data && plural(data.items.length, "node");
  return html`<${Page} title="Nodes" note=${note}>
    <section class="panel flush"><${NodesTable} /></section>
  <//>`;
}
