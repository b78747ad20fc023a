// What can be done to a topic: create, grow, change replicas, move, trim and delete. Each dialog
// shows what the request would do, and the command of the command line, before it is sent.

import { path } from "../lib/api.js";
import { ActionDialog, CheckField, fixed, number, Rows, useForm } from "../lib/components.js";
import { bytes, plural } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link, navigate } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { PlanPreview, startedText } from "./moves.js";

const HOUR_MS = 3_600_000;
const STANDARD = ["", "Default of the cluster"];
const RETENTIONS = [STANDARD, ...[[1, "1 hour"], [24, "1 day"], [168, "7 days"], [720, "30 days"], [8760, "1 year"]].map(([hours, label]) => [hours * HOUR_MS, label]), ["-1", "No limit"]];
const POLICIES = [STANDARD, ["delete", "Delete old records"], ["compact", "Keep the last record of each key"], ["compact,delete", "Both"]];

// The number in a text, or null when it is not a whole number from `low` to `high`.
const whole = (text, low = 1, high = Infinity) => (/^\d+$/.test(text.trim()) && Number(text) >= low && Number(text) <= high ? Number(text) : null);
const digits = (text, low = 1, high = Infinity) => ({ type: "number", min: low, error: whole(text, low, high) === null ? `A whole number from ${low}${high < Infinity ? ` to ${high}` : ""}` : "" });

// How many leaders and replicas each node gets, then the single partitions.
const preview = ({ placement }) => placement?.length > 0 && html`<${Placement} placement=${placement} />`;

function Placement({ placement }) {
  const nodes = {};
  for (const { replicas } of placement) {
    replicas.forEach((node, index) => {
      nodes[node] ??= { node, leaders: 0, replicas: 0 };
      nodes[node].replicas++;
      if (index === 0) nodes[node].leaders++;
    });
  }
  return html`<h3>Placement</h3>
    <${Rows} label="Placement by node" columns=${[fixed("node", "Node"), number("leaders", "Leaders"), number("replicas", "Replicas")]} rows=${Object.values(nodes)} rowKey=${(row) => row.node} />
    <details><summary>${plural(placement.length, "partition")}</summary>${placement.map(({ partition, replicas }) => `${partition}: ${replicas.join(", ")}`).join("; ")}</details>`;
}

// Lines of name=value or name: value as pairs, and the first line that is none.
export function parsePairs(text, separator) {
  const lines = text.split("\n").filter((line) => line.trim());
  const at = (line) => line.indexOf(separator);
  const bad = lines.find((line) => at(line) < 1);
  return { bad: bad && `“${bad}” is not name${separator} value`, pairs: lines.map((line) => [line.slice(0, at(line)).trim(), line.slice(at(line) + 1).trim()]) };
}

export function CreateTopic({ close }) {
  const nodes = useResource("nodes", {}, { every: 0 }).data?.items.length ?? 3;
  const { values, field } = useForm({ name: "", partitions: "3", replicas: null, policy: "", retention: "", more: "" });
  const { name, partitions, policy, retention } = values;
  const replicas = values.replicas ?? String(Math.min(3, nodes));
  const { bad, pairs } = parsePairs(values.more, "=");
  const named = /^[\w.-]{1,249}$/.test(name) && !/^\.\.?$/.test(name);
  const configs = { ...(policy && { "cleanup.policy": policy }), ...(retention && { "retention.ms": retention }), ...Object.fromEntries(pairs) };
  const body = { name, partitions: whole(partitions), replication_factor: whole(replicas), configs };
  return html`<${ActionDialog} title="Create a topic" action="Create" close=${close} call=${["post", "topics", body]} preview=${preview}
    ready=${named && !bad && body.partitions && body.replication_factor} success=${`Topic ${name} created`} after=${() => navigate(link("topic", { topic: name }))}>
    ${field("name", "Name", { wide: true, autofocus: true, error: name && !named && "At most 249 letters, digits, dots, dashes, underscores" })}
    <div class="form-grid">
      ${field("partitions", "Partitions", digits(partitions))}${field("replicas", "Replication factor", { ...digits(replicas), value: replicas })}
      ${field("policy", "Clean-up", { options: POLICIES })}${field("retention", "Keep records", { options: RETENTIONS })}
    </div>
    <details><summary>More settings</summary>${field("more", "One setting per line", { rows: 3, error: bad, placeholder: "min.insync.replicas=2" })}</details>
  <//>`;
}

export function DeleteTopic({ topic, close, leave }) {
  return html`<${ActionDialog} title=${`Delete topic ${topic}`} action="Delete" danger typed=${topic} call=${["delete", path`topics/${topic}`]} close=${close} success=${`Topic ${topic} deleted`} after=${() => leave && navigate(link("topics"))}
    preview=${({ records, size }) => html`<p>${plural(records, "record")}, ${bytes(size)}</p>`}>
    <p>All records of the topic are deleted on all nodes. This cannot be undone.</p>
  <//>`;
}

export function AddPartitions({ topic, partitions, close }) {
  const { values, field } = useForm({ total: String(partitions + 1) });
  const count = whole(values.total, partitions + 1);
  return html`<${ActionDialog} title=${`Add partitions to ${topic}`} action="Add partitions" call=${["post", path`topics/${topic}/partitions`, { count }]} close=${close} ready=${count} preview=${preview} success=${`Topic ${topic} has ${count} partitions`}>
    <p class="muted">New records of a key may go to another partition than the old ones. Partitions cannot be removed again.</p>
    ${field("total", "Partitions in total", { ...digits(values.total, partitions + 1), hint: `Now ${partitions}` })}
  <//>`;
}

export function ChangeReplication({ topic, replication, close }) {
  const { values, field } = useForm({ factor: String(replication) });
  const wanted = whole(values.factor);
  return html`<${ActionDialog} title=${`Change the replication factor of ${topic}`} action="Change" call=${["post", path`topics/${topic}/replicas`, { replication_factor: wanted }]} close=${close}
    ready=${wanted && wanted !== replication} preview=${preview} success="Replicas are being changed. The page Moves shows the progress.">
    ${field("factor", "Replicas of each partition", { ...digits(values.factor), hint: `Now ${replication}. Data is copied in the background.` })}
  <//>`;
}

export function MovePartitions({ topic, partitions, replication, partition = "", close }) {
  const nodes = useResource("nodes", {}, { every: 0 }).data?.items ?? [];
  const { values: { text, to }, field, set } = useForm({ text: String(partition), to: [] });
  const wanted = text === "" ? null : whole(text, 0, partitions - 1);
  const wrong = text !== "" && wanted === null;
  return html`<${ActionDialog} title=${`Move partitions of ${topic}`} action="Move" call=${["post", path`topics/${topic}/move`, { partition: wanted, to }]} close=${close} ready=${!wrong && to.length > 0}
    preview=${(plan) => html`<${PlanPreview} plan=${plan} />`} success=${(plan) => startedText(plan, "The move")}>
    ${field("text", "Partition", { placeholder: "all", hint: "Empty: all partitions", error: wrong && `From 0 to ${partitions - 1}` })}
    <fieldset><legend>To nodes; the first one chosen leads</legend><div class="row">
      ${nodes.map(({ node, alive }) => html`<${CheckField} key=${node} label=${`Node ${node}${alive ? "" : ", not responding"}`} checked=${to.includes(node)} onInput=${(on) => set({ to: on ? [...to, node] : to.filter((each) => each !== node) })} />`)}
    </div>${to.length > 0 && html`<p class="hint">Order: ${to.join(", ")}. Each partition has ${plural(replication, "replica")} now.</p>`}</fieldset>
  <//>`;
}

export function TrimTopic({ topic, partitions, close }) {
  const { values, field } = useForm({ which: "all", partition: "0", offset: "0" });
  const { which, partition, offset } = values;
  const [at, end] = [whole(partition, 0, partitions - 1), whole(offset, 0)];
  const all = which === "all";
  return html`<${ActionDialog} title=${`Delete records of ${topic}`} action="Delete records" danger typed=${topic} call=${["post", path`topics/${topic}/trim`, { before: all ? "all" : { [at]: end } }]} close=${close}
    ready=${all || (at !== null && end !== null)} success=${`Records of ${topic} deleted`} preview=${({ records }) => html`<p>${plural(records, "record")} would be deleted.</p>`}>
    <p>Records are deleted from the start of the partitions. Topic, settings and offsets stay. This cannot be undone.</p>
    ${field("which", "Delete", { wide: true, options: [["all", "All records of all partitions"], ["before", "Records of a partition before an offset"]] })}
    ${!all && html`<div class="form-grid">${field("partition", "Partition", digits(partition, 0, partitions - 1))}${field("offset", "Before offset", digits(offset, 0))}</div>`}
  <//>`;
}
