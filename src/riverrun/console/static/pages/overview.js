// The overview: health in one sentence, what needs care, sizes, and traffic over time.

import { historyPanel, RangePicker } from "../lib/chart.js";
import { Badge, column, Empty, Loaded, named, number, Page, Panel, prose, Table, tile, Verdict } from "../lib/components.js";
import { bytes, count, plural, short } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { groupColumn, lag } from "./groups.js";
import { NodesTable } from "./nodes.js";

const BEST = 5;

const concern = ({ level, text, remedy, link: address }) => html`<li key=${text}>
  <${Badge} kind=${level}>${level === "bad" ? "Failing" : "Care"}<//>
  <div><p>${address ? html`<a href=${address}>${text}</a>` : text}</p>${remedy && html`<p class="muted">${prose(remedy)}</p>`}</div>
</li>`;

function Health({ health: { level, sentence, concerns } }) {
  return html`<${Verdict} kind=${level} label="Health" text=${sentence}>
    ${concerns.length > 0 && html`<ul>${concerns.map(concern)}</ul>`}
  <//>`;
}

function Tiles({ overview: { nodes, nodes_alive, topics, partitions, under_replicated, offline, groups, moves, transactions_open } }) {
  const dead = nodes - nodes_alive;
  const troubled = link("topics", {}, { sort: "under_replicated", order: "desc", internal: "1" });
  return html`<div class="tiles">
    ${tile("Nodes", `${nodes_alive} / ${nodes}`, dead ? `${dead} not responding` : "all alive", link("nodes"), dead && "bad")}
    ${tile("All topics", count(topics), plural(partitions, "partition"), link("topics", {}, { internal: "1" }))}
    ${tile("Under-replicated", count(under_replicated), "partitions", troubled, under_replicated && "care")}
    ${tile("Offline", offline, "partitions", troubled, offline && "bad")}
    ${tile("Groups", count(groups), "of consumers", link("groups"))}
    ${tile("Moves", moves, moves ? "in progress" : "none in progress", link("moves"))}
    ${tile("Transactions", count(transactions_open), "open", link("transactions"))}
  </div>`;
}

function Ranking({ title, path, sort, columns, rowKey }) {
  const resource = useResource(path, { sort, order: "desc", limit: BEST });
  return html`<${Panel} title=${title} flush><${Loaded} resource=${resource} lines=${BEST}>
    ${({ items }) => html`<${Table} label=${title} columns=${columns.map((each) => ({ ...each, sort: false }))} rows=${items.filter((row) => row[sort] > 0)} rowKey=${rowKey} empty=${html`<${Empty} title="None now" icon="check" />`} />`}
  <//><//>`;
}

const topicColumns = [
  column("name", "Topic", (row) => named("topic", row.name)),
  number("messages_in", "Records/s", short),
  number("size", "Size", bytes),
];

export default function Overview() {
  const resource = useResource("overview", {}, { every: 5_000 });
  const { data } = resource;
  const note = data && html`cluster <code>${data.cluster_id}</code> · controller ${data.controller ?? "none"}${data.version && ` · version ${data.version}`}`;
  return html`<${Page} title="Overview" note=${note} actions=${html`<${RangePicker} />`}>
    <${Loaded} resource=${resource}>${(overview) => html`<${Health} health=${overview.health} /><${Tiles} overview=${overview} />`}<//>
    <div class="columns">
      ${historyPanel("Traffic", "bytes/s", { bytes_in: "In", bytes_out: "Out" })}
      ${historyPanel("Records written", "records/s", { messages_in: "Records" })}
      ${historyPanel("Latency, 99th percentile", "ms", { produce_p99: "Produce", fetch_p99: "Fetch" })}
      ${historyPanel("Lag of all groups", "count", { group_lag: "Records" })}
      <${Ranking} title="Busiest topics" path="topics" sort="messages_in" columns=${topicColumns} rowKey=${(row) => row.name} />
      <${Ranking} title="Groups with the most lag" path="groups" sort="lag" columns=${[groupColumn, ...lag]} rowKey=${(row) => row.group} />
    </div>
    <${Panel} title="Nodes" flush><${NodesTable} /><//>
  <//>`;
}
