// All consumer groups, with their lag in records and in seconds.

import { Badge, column, Empty, fixed, ListTable, named, nodeLink, number, Page } from "../lib/components.js";
import { count, duration, short } from "../lib/format.js";
import { html } from "../lib/preact.js";

const KINDS = { stable: "good", empty: "plain", dead: "bad" };

export function GroupState({ state }) {
  const word = String(state ?? "unknown").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return html`<${Badge} kind=${KINDS[word] ?? "care"}>${word}<//>`;
}

export const groupColumn = column("group", "Group", (row) => named("group", row.group));
export const stateColumn = column("state", "State", (row) => html`<${GroupState} state=${row.state} />`);
export const lag = [
  number("lag", "Lag", (lag) => html`<span title=${count(lag)}>${short(lag)}</span>`, { hint: "Records that are not consumed yet" }),
  number("lag_seconds", "Behind by", duration, { hint: "Age of the oldest record that is not consumed yet" }),
];

const columns = [
  groupColumn,
  stateColumn,
  fixed("type", "Type"),
  number("members", "Members"),
  number("topics", "Topics", count, { sort: false }),
  lag[0],
  { ...lag[1], sort: false },
  fixed("coordinator", "Coordinator", (row) => (row.coordinator === null ? "–" : nodeLink(row.coordinator))),
];

export default function Groups() {
  return html`<${Page} title="Groups">
    <${ListTable} path="groups" label="Groups" search="Search groups" sort="group" columns=${columns} rowKey=${(row) => row.group} every=${5_000}
      empty=${html`<${Empty} title="No consumer groups yet" icon="groups">A group appears when its first consumer joins or commits an offset.<//>`} />
  <//>`;
}
