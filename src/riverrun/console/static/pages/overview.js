// The overview: health in one sentence, what needs care, sizes, and traffic over time.

import { HistoryChart, RangePicker } from "../lib/chart.js";
import { Badge, column, Empty, Loaded, number, Page, Panel, Table, Tile, Verdict } from "../lib/components.js";
import { bytes, count, plural, short } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { groupColumn, lag } from "./groups.js";
import { NodesTable } from "./nodes.js";

const BEST = 5;

function Concern({ concern: { level, text, remedy, link: address } }) {
  return html`<li>
    <${Badge} kind=${level}>${level === "bad" ? "Failing" : "Care"}<//>
    <div><p>${address ? html`<a href=${address}>${text}</a>` : text}</p>${remedy && html`<p class="muted">${remedy}</p>`}</div>
  </li>`;
}

function Health({ health: { level, sentence, concerns } }) {
  return html`<${Verdict} kind=${level} label="Health" text=${sentence}>
    ${concerns.length > 0 && html`<ul>${concerns.map((each) => html`<${Concern} key=${each.text} concern=${each} />`)}</ul>`}
  <//>`;
}

function Tiles({ overview: { nodes, nodes_alive, topics, partitions, under_replicated, offline, groups, moves, transactions_open } }) {
  const dead = nodes - nodes_alive;
  const troubled = link("topics", {}, { sort: "under_replicated", order: "desc", internal: "1" });
  return html`<div class="tiles">
    <${Tile} label="Nodes" value=${`${nodes_alive} / ${nodes}`} detail=${dead ? `${dead} not responding` : "all alive"} kind=${dead && "bad"} href=${link("nodes")} />
    <${Tile} label="Topics" value=${count(topics)} detail=${plural(partitions, "partition")} href=${link("topics")} />
    <${Tile} label="Under-replicated" value=${count(under_replicated)} detail="partitions" kind=${under_replicated && "care"} href=${troubled} />
    <${Tile} label="Offline" value=${count(offline)} detail="partitions" kind=${offline && "bad"} href=${troubled} />
    <${Tile} label="Groups" value=${count(groups)} detail="of consumers" href=${link("groups")} />
    <${Tile} label="Moves" value=${count(moves)} detail=${moves ? "in progress" : "none in progress"} href=${link("moves")} />
    <${Tile} label="Transactions" value=${count(transactions_open)} detail="open" href=${link("transactions")} />
  </div>`;
}

function Ranking({ title, path, sort, columns, rowKey }) {
  const resource = useResource(path, { sort, order: "desc", limit: BEST });
  return html`<${Panel} title=${title} flush><${Loaded} resource=${resource} lines=${BEST}>
    ${({ items }) => html`<${Table} label=${title} columns=${columns.map((each) => ({ ...each, sort: false }))} rows=${items.filter((row) => row[sort] > 0)} rowKey=${rowKey} empty=${html`<${Empty} title="None now" icon="check" />`} />`}
  <//><//>`;
}

const topicColumns = [
  column("name", "Topic", ({ name: topic }) => html`<a class="name-cell" href=${link("topic", { topic })} title=${topic}>${topic}</a>`),
  number("messages_in", "Records/s", short),
  number("size", "Size", bytes),
];

export default function Overview() {
  const resource = useResource("overview", {}, { every: 5_000 });
  const { data } = resource;
  const note = data && html`cluster <code>${data.cluster_id}</code> · controller ${data.controller ?? "none"}${data.version && ` · version ${data.version}`}`;
  const chart = (title, unit, ...series) => html`<${Panel}><${HistoryChart} title=${title} unit=${unit} series=${series.map(([name, label]) => ({ name, label }))} /><//>`;
  return html`<${Page} title="Overview" note=${note} actions=${html`<${RangePicker} />`}>
    <${Loaded} resource=${resource}>${(overview) => html`<${Health} health=${overview.health} /><${Tiles} overview=${overview} />`}<//>
    <div class="columns">
      ${chart("Traffic", "bytes/s", ["bytes_in", "In"], ["bytes_out", "Out"])}
      ${chart("Records written", "records/s", ["messages_in", "Records"])}
      ${chart("Latency, 99th percentile", "ms", ["produce_p99", "Produce"], ["fetch_p99", "Fetch"])}
      ${chart("Requests", "requests/s", ["requests", "Requests"])}
      <${Ranking} title="Busiest topics" path="topics" sort="messages_in" columns=${topicColumns} rowKey=${(row) => row.name} />
      <${Ranking} title="Groups with the most lag" path="groups" sort="lag" columns=${[groupColumn, ...lag]} rowKey=${(row) => row.group} />
    </div>
    <${Panel} title="Nodes" flush><${NodesTable} /><//>
  <//>`;
}
