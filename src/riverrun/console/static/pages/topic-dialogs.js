// What can be done to a topic: create, grow, change replicas, move, trim and delete. Each dialog
// shows what the request would do, and the command of the command line, before it is sent.

import { path } from "../lib/api.js";
import { ActionDialog, AreaField, CheckField, fixed, number, Rows, SelectField, TextField } from "../lib/components.js";
import { bytes, plural } from "../lib/format.js";
import { html, useState } from "../lib/preact.js";
import { link, navigate } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { PlanPreview } from "./moves.js";

const SHOWN_MAX = 100;
const HOUR_MS = 3_600_000;
const STANDARD = { value: "", label: "Default of the cluster" };
const RETENTIONS = [STANDARD, ...[[1, "1 hour"], [24, "1 day"], [168, "7 days"], [720, "30 days"], [8760, "1 year"]].map(([hours, label]) => ({ value: `${hours * HOUR_MS}`, label })), { value: "-1", label: "No limit" }];
const POLICIES = [STANDARD, { value: "delete", label: "Delete old records" }, { value: "compact", label: "Keep the last record of each key" }, { value: "compact,delete", label: "Both" }];

// The number in a text, or null when it is not a whole number from `low` to `high`.
const whole = (text, low = 1, high = Infinity) => (/^\d+$/.test(text.trim()) && Number(text) >= low && Number(text) <= high ? Number(text) : null);

function NumberField({ value, low = 1, high = Infinity, ...rest }) {
  const range = high === Infinity ? `from ${low}` : `from ${low} to ${high}`;
  return html`<${TextField} type="number" min=${low} value=${value} error=${whole(value, low, high) === null ? `A whole number ${range}` : ""} ...${rest} />`;
}

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
    <details><summary>${plural(placement.length, "partition")}</summary>
      <${Rows} label="Placement by partition" rows=${placement.slice(0, SHOWN_MAX)} rowKey=${(row) => row.partition} columns=${[fixed("partition", "Partition"), fixed("replicas", "Replicas, leader first", (row) => row.replicas.join(", "))]} />
      ${placement.length > SHOWN_MAX && html`<p class="muted">The first ${SHOWN_MAX} are shown.</p>`}
    </details>`;
}

// Lines of name=value as an object, and the first line that is none.
function parseSettings(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const bad = lines.find((line) => line.indexOf("=") < 1);
  return { bad, settings: Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()])) };
}

export function CreateTopic({ close }) {
  const nodes = useResource("nodes", {}, { every: 0 }).data?.items.length ?? 3;
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("3");
  const [replication, setReplication] = useState(null);
  const [policy, setPolicy] = useState("");
  const [retention, setRetention] = useState("");
  const [more, setMore] = useState("");
  const { bad, settings } = parseSettings(more);
  const named = /^[\w.-]{1,249}$/.test(name) && !/^\.\.?$/.test(name);
  const replicas = replication ?? String(Math.min(3, nodes));
  const configs = { ...(policy && { "cleanup.policy": policy }), ...(retention && { "retention.ms": retention }), ...settings };
  const body = { name, partitions: whole(partitions), replication_factor: whole(replicas), configs };
  return html`<${ActionDialog} title="Create a topic" action="Create" close=${close} call=${["post", "topics", body]} preview=${preview}
    ready=${named && !bad && body.partitions && body.replication_factor} success=${`Topic ${name} created`} after=${() => navigate(link("topic", { topic: name }))}>
    <${TextField} label="Name" value=${name} onInput=${setName} wide autofocus error=${name && !named ? "Letters, digits, dots, dashes and underscores; at most 249" : ""} />
    <div class="form-grid">
      <${NumberField} label="Partitions" value=${partitions} onInput=${setPartitions} />
      <${NumberField} label="Replication factor" value=${replicas} onInput=${setReplication} />
      <${SelectField} label="Clean-up" value=${policy} onInput=${setPolicy} options=${POLICIES} />
      <${SelectField} label="Keep records" value=${retention} onInput=${setRetention} options=${RETENTIONS} />
    </div>
    <details><summary>More settings</summary>
      <${AreaField} label="One setting per line" value=${more} onInput=${setMore} rows=${3} error=${bad && `“${bad}” is not name=value`} placeholder="min.insync.replicas=2" />
    </details>
  <//>`;
}

export function DeleteTopic({ topic, close, leave }) {
  return html`<${ActionDialog} title=${`Delete topic ${topic}`} action="Delete" danger typed=${topic} call=${["delete", path`topics/${topic}`]} close=${close} success=${`Topic ${topic} deleted`} after=${() => leave && navigate(link("topics"))}
    preview=${({ records, size }) => html`<p>${plural(records, "record")}, ${bytes(size)}</p>`}>
    <p>All records of the topic are deleted on all nodes. This cannot be undone.</p>
  <//>`;
}

export function AddPartitions({ topic, partitions, close }) {
  const [text, setText] = useState(String(partitions + 1));
  const count = whole(text, partitions + 1);
  return html`<${ActionDialog} title=${`Add partitions to ${topic}`} action="Add partitions" call=${["post", path`topics/${topic}/partitions`, { count }]} close=${close} ready=${count} preview=${preview} success=${`Topic ${topic} has ${count} partitions`}>
    <p class="muted">New records of a key may go to another partition than the old ones. Partitions cannot be removed again.</p>
    <${NumberField} label="Partitions in total" low=${partitions + 1} value=${text} onInput=${setText} hint=${`Now ${partitions}`} wide />
  <//>`;
}

export function ChangeReplication({ topic, replication, close }) {
  const [text, setText] = useState(String(replication));
  const wanted = whole(text);
  return html`<${ActionDialog} title=${`Change the replication factor of ${topic}`} action="Change" call=${["post", path`topics/${topic}/replicas`, { replication_factor: wanted }]} close=${close}
    ready=${wanted && wanted !== replication} preview=${preview} success="Replicas are being changed. The page Moves shows the progress.">
    <${NumberField} label="Replicas of each partition" hint=${`Now ${replication}. Data is copied in the background.`} value=${text} onInput=${setText} wide />
  <//>`;
}

export function MovePartitions({ topic, partitions, replication, partition, close }) {
  const nodes = useResource("nodes", {}, { every: 0 }).data?.items ?? [];
  const [text, setText] = useState(String(partition ?? ""));
  const [to, setTo] = useState([]);
  const wanted = text === "" ? null : whole(text, 0, partitions - 1);
  const wrong = text !== "" && wanted === null;
  return html`<${ActionDialog} title=${`Move partitions of ${topic}`} action="Move" call=${["post", path`topics/${topic}/move`, { partition: wanted, to }]} close=${close} ready=${!wrong && to.length}
    preview=${(plan) => html`<${PlanPreview} plan=${plan} />`} success="The move has started. The page Moves shows the progress.">
    <${TextField} label="Partition" placeholder="all" hint="Empty: all partitions" value=${text} onInput=${setText} error=${wrong ? `A partition from 0 to ${partitions - 1}` : ""} wide />
    <fieldset><legend>To nodes; the first one chosen leads</legend><div class="row">
      ${nodes.map(({ node, rack, alive }) => html`<${CheckField} key=${node} label=${`Node ${node}${rack ? ` (${rack})` : ""}${alive ? "" : ", not responding"}`} checked=${to.includes(node)} onInput=${(on) => setTo(on ? [...to, node] : to.filter((each) => each !== node))} />`)}
    </div>${to.length > 0 && html`<p class="hint">Order: ${to.join(", ")}. The topic has ${plural(replication, "replica")} per partition.</p>`}</fieldset>
  <//>`;
}

export function TrimTopic({ topic, partitions, close }) {
  const [which, setWhich] = useState("all");
  const [partition, setPartition] = useState("0");
  const [offset, setOffset] = useState("0");
  const at = whole(partition, 0, partitions - 1);
  const end = whole(offset, 0);
  const all = which === "all";
  return html`<${ActionDialog} title=${`Delete records of ${topic}`} action="Delete records" danger typed=${topic} call=${["post", path`topics/${topic}/trim`, { before: all ? "all" : { [at]: end } }]} close=${close}
    ready=${all || (at !== null && end !== null)} success=${`Records of ${topic} deleted`} preview=${({ records }) => records !== undefined && html`<p>${plural(records, "record")} would be deleted.</p>`}>
    <p>Records are deleted from the start of the partitions. The topic, its settings and its offsets stay. This cannot be undone.</p>
    <${SelectField} label="Delete" value=${which} onInput=${setWhich} wide options=${[{ value: "all", label: "All records of all partitions" }, { value: "before", label: "Records of a partition before an offset" }]} />
    ${!all && html`<div class="form-grid">
      <${NumberField} label="Partition" low=${0} high=${partitions - 1} value=${partition} onInput=${setPartition} />
      <${NumberField} label="Before offset" low=${0} value=${offset} onInput=${setOffset} />
    </div>`}
  <//>`;
}
