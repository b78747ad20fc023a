// The metadata quorum: leader, epoch, positions of voters and observers, and features.

import { Badge, column, CopyButton, Empty, Facts, fixed, Loaded, moment, nodeLink, number, Page, Panel, Table, Verdict } from "../lib/components.js";
import { count, plural } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link } from "../lib/router.js";
import { useResource } from "../lib/state.js";

// Replicas fetch several times a second, even without new records.
const BEHIND_MS = 4_000;

const isBehind = (row) => row.lag === null || (row.lag > 0 && row.last_caught_up_ms !== null && Date.now() - row.last_caught_up_ms > BEHIND_MS);

function columnsFor(leader) {
  const follower = (show) => (row) => (row.node === leader ? "–" : show(row));
  return [
    column("node", "Node", (row) => html`${nodeLink(row.node)} ${row.node === leader && html`<${Badge} kind="accent">leader<//>`}`),
    fixed("endpoint", "Endpoint", (row) => html`<span class="mono">${row.endpoint ?? "–"}</span>`),
    number("end_offset", "End offset"),
    column("lag", "Lag", follower((row) => html`<span class=${isBehind(row) ? "text-care" : ""}>${row.lag === null ? "unknown" : plural(row.lag, "record")}</span>`), { align: "end" }),
    column("last_fetch_ms", "Last fetch", follower((row) => moment(row.last_fetch_ms)), { align: "end" }),
    column("last_caught_up_ms", "Last caught up", follower((row) => moment(row.last_caught_up_ms)), { align: "end" }),
    fixed("directory_id", "Directory id", (row) => (row.directory_id ? html`<code>${row.directory_id}</code> <${CopyButton} text=${row.directory_id} label=${`Copy the directory id of node ${row.node}`} />` : "–")),
  ];
}

function Majority({ voters, leader }) {
  const good = voters.filter((row) => row.node === leader || !isBehind(row)).length;
  const needed = Math.floor(voters.length / 2) + 1;
  const spare = good - needed;
  if (leader === null || leader < 0 || spare < 0) return html`<${Verdict} kind="bad" label="Majority" text=${`The quorum has no majority: ${good} of ${voters.length} voters follow, ${needed} are needed. Metadata cannot change.`} />`;
  const text = spare ? `${good} of ${voters.length} voters follow the leader. ${plural(spare, "voter")} may fail.` : `${plural(good, "voter")} of ${voters.length} follow, the least that a majority needs: the quorum stops if one more fails.`;
  return html`<${Verdict} kind=${good < voters.length || !spare ? "care" : "good"} label="Majority" text=${text} />`;
}

const features = [column("name", "Feature", (row) => html`<code>${row.name}</code>`), number("level", "Level")];

export default function Quorum() {
  const resource = useResource("quorum", {}, { every: 2000 });
  const list = (title, columns, rows, none) => html`<${Panel} title=${title} flush=${true}><${Table} label=${title} columns=${columns} rows=${rows} rowKey=${(row) => row.name ?? `${row.node} ${row.directory_id}`} sort=${columns[0].key} empty=${html`<${Empty} title=${none} icon="quorum" />`} /><//>`;
  return html`<${Page} title="Quorum" actions=${html`<a class="button" href=${link("timeline", {}, { kinds: "quorum,broker,feature" })}>Open its timeline</a>`}>
    <${Loaded} resource=${resource}>${({ leader, voters, observers, ...quorum }) => html`<${Majority} voters=${voters} leader=${leader} />
      <${Panel}><${Facts} items=${[
        ["Leader", leader === null || leader < 0 ? html`<span class="text-bad">none</span>` : nodeLink(leader)],
        ["Leader epoch", count(quorum.epoch)],
        ["High watermark", count(quorum.high_watermark)],
        ["Voters", count(voters.length)],
        ["Observers", count(observers.length)],
      ]} /><//>
      ${list("Voters", columnsFor(leader), voters, "No voters")}
      ${list("Observers", columnsFor(leader), observers, "No observers: all nodes vote")}
      ${list("Features", features, Object.entries(quorum.features ?? {}).map(([name, level]) => ({ name, level })), "No features")}`}
    <//>
  <//>`;
}
