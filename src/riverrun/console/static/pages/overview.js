// The overview: health in one sentence, what needs care, sizes, and traffic over time.

import { HistoryChart, RangePicker } from "../lib/chart.js";
import { Badge, Icon, Loaded, Page, Panel, Tile } from "../lib/components.js";
import { count, plural } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { NodesTable } from "./nodes.js";

const ICONS = { good: "check", care: "warning", bad: "error" };

function Health({ health }) {
  return html`<section class="panel verdict ${health.level}" aria-label="Health">
    <div class="verdict-head"><${Icon} name=${ICONS[health.level]} size=${22} /><p>${health.sentence}</p></div>
    ${health.concerns.length > 0 &&
    html`<ul>
      ${health.concerns.map((concern) => html`<li key=${concern.text}>
        <${Badge} kind=${concern.level}>${concern.level === "bad" ? "Failing" : "Care"}<//>
        <div><p>${concern.link ? html`<a href=${concern.link}>${concern.text}</a>` : concern.text}</p>
        ${concern.remedy && html`<p class="muted">${concern.remedy}</p>`}</div>
      </li>`)}
    </ul>`}
  </section>`;
}

function Tiles({ overview }) {
  const { nodes, nodes_alive, under_replicated, offline, moves } = overview;
  return html`<div class="tiles">
    <${Tile} label="Nodes" value=${`${nodes_alive} / ${nodes}`} detail=${nodes_alive === nodes ? "all alive" : `${nodes - nodes_alive} not responding`} kind=${nodes_alive < nodes ? "bad" : ""} href=${link("nodes")} />
    <${Tile} label="Topics" value=${count(overview.topics)} detail=${plural(overview.partitions, "partition")} href=${link("topics")} />
    <${Tile} label="Under-replicated" value=${count(under_replicated)} detail="partitions" kind=${under_replicated ? "care" : ""} href=${link("topics", {}, { sort: "under_replicated", order: "desc" })} />
    <${Tile} label="Offline" value=${count(offline)} detail="partitions" kind=${offline ? "bad" : ""} href=${link("topics", {}, { sort: "under_replicated", order: "desc" })} />
    <${Tile} label="Groups" value=${count(overview.groups)} detail="consumers" href=${link("groups")} />
    <${Tile} label="Moves" value=${count(moves)} detail=${moves ? "in progress" : "none in progress"} href=${link("moves")} />
  </div>`;
}

export default function Overview() {
  const resource = useResource("overview", {}, { every: 5_000 });
  const note = resource.data && html`cluster <code>${resource.data.cluster_id}</code> · controller ${resource.data.controller}`;
  return html`<${Page} title="Overview" note=${note} actions=${html`<${RangePicker} />`}>
    <${Loaded} resource=${resource}>${(overview) => html`<${Health} health=${overview.health} /><${Tiles} overview=${overview} />`}<//>
    <div class="columns">
      <${Panel}><${HistoryChart} title="Traffic" unit="bytes/s" series=${[{ name: "bytes_in", label: "In" }, { name: "bytes_out", label: "Out" }]} /><//>
      <${Panel}><${HistoryChart} title="Records written" unit="records/s" series=${[{ name: "messages_in", label: "Records" }]} /><//>
      <${Panel}><${HistoryChart} title="Latency, 99th percentile" unit="ms" series=${[{ name: "produce_p99", label: "Produce" }, { name: "fetch_p99", label: "Fetch" }]} /><//>
      <${Panel}><${HistoryChart} title="Requests" unit="requests/s" series=${[{ name: "requests", label: "Requests" }]} /><//>
    </div>
    <${Panel} title="Nodes" flush=${true}><${NodesTable} /><//>
  <//>`;
}
