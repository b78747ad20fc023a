// The nodes of the cluster: state, traffic, leaders and disks.

import { Badge, column, Empty, fixed, Loaded, Meter, number, Page, Status, Table } from "../lib/components.js";
import { bytes, plural, rate } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link } from "../lib/router.js";
import { useResource } from "../lib/state.js";

function disk({ node, disk_free, disk_total }) {
  if (!disk_total) return "–";
  return html`<${Meter} value=${1 - disk_free / disk_total} label=${`Used part of the disk of node ${node}`} /> ${bytes(disk_free)} free`;
}

function state({ alive, cordoned, mode }) {
  const word = !alive ? "Not responding" : cordoned ? "Cordoned" : mode && mode !== "active" ? mode : "Alive";
  return html`<${Status} kind=${!alive ? "bad" : word === "Alive" ? "good" : "care"}>${word}<//>`;
}

// The version of a node that does not respond is unknown.
const versionsDiffer = (items) => new Set(items.map((row) => row.version).filter(Boolean)).size > 1;

// Racks and versions are shown only where they tell something.
const columnsFor = (items) => [
  column("node", "Node", ({ node, controller }) => html`<a class="name-cell" href=${link("node", { node })}>Node ${node}</a> ${controller && html`<${Badge} kind="accent" title="Active controller">controller<//>`}`),
  column("alive", "State", state),
  fixed("host", "Address", (row) => html`<span class="mono">${row.host}:${row.port}</span>`),
  ...(items.some((row) => row.rack) ? [column("rack", "Rack")] : []),
  number("leaders", "Leaders"),
  number("replicas", "Replicas"),
  number("bytes_in", "In", rate),
  number("bytes_out", "Out", rate),
  number("disk_used", "Data", bytes),
  column("disk_free", "Disk", disk, { hint: "The bar is the used part. The order is that of the free space." }),
  ...(versionsDiffer(items) ? [column("version", "Version", (row) => row.version ?? "–")] : []),
];

export function NodesTable({ inUrl = false }) {
  const resource = useResource("nodes", {}, { every: 5_000 });
  return html`<${Loaded} resource=${resource} lines=${4}>
    ${({ items }) => html`<${Table} label="Nodes" inUrl=${inUrl} columns=${columnsFor(items)} rows=${items} rowKey=${(row) => row.node} sort="node" empty=${html`<${Empty} title="No nodes" />`} />`}
  <//>`;
}

export default function Nodes() {
  const { data } = useResource("nodes", {}, { every: 5_000 });
  // Sums are left out where no value is known, for example because the user lacks the right.
  const total = (name, format, words) => {
    const known = data.items.map((row) => row[name] ?? null).filter((value) => value !== null);
    return known.length ? [`${format(known.reduce((sum, value) => sum + value, 0))} ${words}`] : [];
  };
  const note = data && [plural(data.items.length, "node"), ...total("disk_used", bytes, "of data"), ...total("bytes_in", rate, "in"), ...total("bytes_out", rate, "out")].join(", ");
  return html`<${Page} title="Nodes" note=${note}>
    <section class="panel flush"><${NodesTable} inUrl /></section>
  <//>`;
}
