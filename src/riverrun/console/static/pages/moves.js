// Moves of partitions between nodes: progress, plans, balancing, cancelling.

import { ActionDialog, Badge, column, Empty, fixed, Loaded, Meter, moment, number, opener, Page, Panel, Status, Table, TextField, topicLink, Verdict } from "../lib/components.js";
import { bytes, count, duration, percent, plural, rate } from "../lib/format.js";
import { html, useState } from "../lib/preact.js";
import { useResource } from "../lib/state.js";

const SHOWN_MAX = 100;
const MIB = 1024 * 1024;

const where = (row) => topicLink(row.topic, row.partition);
const nodes = (name) => (row) => (row[name]?.length ? row[name].join(", ") : "–");
const place = (row) => `${row.topic}-${row.partition}`;

const planned = [fixed("topic", "Partition", where), fixed("from", "Replicas now", nodes("from")), fixed("to", "Replicas then", nodes("to")), number("bytes", "To copy", bytes)];

const figure = (of) => (of ? `${of.max_over_mean.toFixed(2)} ×` : "–");

function Figures({ before, after }) {
  const changes = [
    fixed("name", "Most loaded node to the mean", (name) => name.replaceAll("_", " ")),
    fixed("before", "Before", (name) => figure(before[name]), { align: "end" }),
    fixed("after", "After", (name) => html`<b>${figure(after?.[name])}</b>`, { align: "end" }),
  ];
  return html`<${Table} label="Balance before and after" columns=${changes} rows=${Object.keys(before).filter((name) => before[name].max_over_mean)} rowKey=${(name) => name} />`;
}

export function PlanPreview({ plan: { moves, before, after, ...plan } }) {
  if (!moves?.length) return html`<p>No replica has to move.${plan.state === "empty" && " The node holds no data: its vote is removed, and you can stop it."}</p>`;
  return html`<div class="stack">
    <p><b>${plural(moves.length, "partition")}</b> would change, <b>${bytes(plan.bytes)}</b> would be copied${plan.seconds ? `, in about ${duration(plan.seconds)}` : ""}.</p>
    ${plan.outlook && plan.seconds === null && html`<p class="text-bad">It ${plan.outlook}.</p>`}
    ${plan.behind?.length > 0 && html`<p class="text-care">A plan runs already: ${plan.behind.join(", ")}. Its moves go first where they need the same nodes.</p>`}
    ${before && html`<${Figures} before=${before} after=${after} />`}
    ${plan.unplaced?.length > 0 && html`<p class="text-bad">No place was found for: ${plan.unplaced.join("; ")}</p>`}
    <${Table} label="Planned moves" columns=${planned} rows=${moves.slice(0, SHOWN_MAX)} rowKey=${place} />
    ${moves.length > SHOWN_MAX && html`<p class="muted">The first ${SHOWN_MAX} are shown.</p>`}
    ${plan.moves_left > 0 && html`<p>${plural(plan.moves_left, "further move")} did not fit into one plan. Repeat this when the plan has ended.</p>`}
  </div>`;
}

// What a toast says of a plan that was handed in.
export function startedText({ behind = [] }, what) {
  return behind.length ? `${what} takes its turn behind plan ${behind.join(", ")}. The page Moves shows the progress.` : `${what} has started. The page Moves shows the progress.`;
}

const preview = (plan) => html`<${PlanPreview} plan=${plan} />`;

function BalanceDialog({ close }) {
  const [limit, setLimit] = useState("");
  const valid = limit === "" || Number(limit) > 0;
  return html`<${ActionDialog} title="Balance the cluster" action="Balance" wide call=${["post", "balance", { throttle: limit === "" ? null : Math.round(Number(limit) * MIB) }]} ready=${valid} preview=${preview} success=${(plan) => startedText(plan, "The plan")} close=${close}>
    <p>Replicas, leaders and data are spread evenly over the nodes. The controller runs a few moves at a time and moves as little as possible.</p>
    <${TextField} label="Limit per node, MiB/s" value=${limit} onInput=${setLimit} inputmode="decimal" error=${valid ? null : "A number above 0"} hint="Empty: no limit. Clients may get slower while data is copied." />
  <//>`;
}

// Cancels one move, one plan, or everything.
function CancelDialog({ move, plan, close }) {
  const what = move ? `the move of ${place(move)}` : plan ? `plan ${plan}` : "all moves and plans";
  const body = move ? { topic: move.topic, partition: move.partition } : plan ? { plan } : { all: true };
  return html`<${ActionDialog} title=${`Cancel ${what}`} action=${`Cancel ${move ? "the move" : plan ? "the plan" : "all"}`} danger call=${["post", "moves/cancel", body]} success="Cancelled" close=${close}
    preview=${(found) => html`<p><b>${plural(found.moves.length, "move")}</b> and <b>${plural(found.plans.length, "plan")}</b> would be cancelled.</p>`}>
    <p>Partitions return to the replicas from before, and what was copied is deleted. Moves that have ended stay as they are.</p>
  <//>`;
}

const cancelButton = (label, props) => opener("Cancel…", CancelDialog, props, "small", label);
const part = (row) => (row.bytes_total ? row.bytes_done / row.bytes_total : 0);

const moving = [
  column("topic", "Partition", where, { value: place }),
  fixed("from", "From", nodes("from")),
  fixed("to", "To", nodes("to")),
  column("progress", "Progress", (row) => html`<${Meter} value=${part(row)} label=${`Progress of ${place(row)}`} plain /> ${percent(part(row) * 100)} <span class="muted">${bytes(row.bytes_done)} of ${bytes(row.bytes_total)}</span>`, { value: part }),
  number("rate", "Rate", rate),
  column("eta_seconds", "Time left", (row) => (row.stalled ? html`<${Badge} kind="care" title="No bytes were copied lately">stalled<//>` : row.rate !== null && row.eta_seconds === null ? html`<span class="text-care" title="Producers write it faster than it is copied">not at this rate</span>` : duration(row.eta_seconds)), { align: "end" }),
  fixed("plan", "Plan", (row) => row.plan ?? "–"),
  fixed("cancel", "Actions", (row) => cancelButton(`Cancel the move of ${place(row)}`, { move: row }), { align: "end" }),
];

const PLAN_KINDS = { running: "good", cancelled: "care" };

const plans = [
  fixed("id", "Plan"),
  fixed("reason", "Reason", (row) => html`${row.reason} <span class="muted">${row.requester}</span>`, { class: "wrap" }),
  fixed("state", "State", (row) => html`<${Status} kind=${PLAN_KINDS[row.state]}>${row.state}<//>`),
  fixed("moves", "Moves done", (row) => html`<${Meter} value=${row.moves ? row.moves_done / row.moves : 1} label=${`Moves done of plan ${row.id}`} plain /> ${count(row.moves_done)} of ${count(row.moves)}`),
  number("bytes", "Bytes", bytes),
  number("throttle", "Limit", (limit) => (limit ? rate(limit) : "none")),
  number("started_ms", "Started", moment),
  fixed("cancel", "Actions", (row) => row.state === "running" && cancelButton(`Cancel plan ${row.id}`, { plan: row.id }), { align: "end" }),
];

const failuresOf = ({ failures = {} }) => Object.keys(failures).length > 0 && Object.entries(failures).map(([name, reason]) => html`<p class="text-bad" key=${name}>${name}: ${reason}</p>`);

const rollbacks = [fixed("topic", "Partition", where), number("replica", "New replica", String), number("at_ms", "Rolled back", moment), fixed("reason", "Because", undefined, { class: "wrap" })];

export default function Moves() {
  const resource = useResource("moves", {}, { every: 3000 });
  const running = resource.data && (resource.data.moves.length > 0 || resource.data.plans.some((row) => row.state === "running"));
  const actions = html`${running && opener("Cancel all…", CancelDialog)}${opener("Balance…", BalanceDialog, {}, "primary")}`;
  const none = html`<${Empty} title="No partition is being moved" icon="moves">Balance the cluster, decommission a node, or move partitions on the page of their topic.<//>`;
  return html`<${Page} title="Moves" actions=${actions}>
    <${Loaded} resource=${resource}>${({ moves, plans: known, suggestion, rollbacks: undone = [] }) => html`
      ${suggestion?.needed && !running && html`<${Verdict} kind="care" label="Suggestion" text=${html`<span class="sentence">${suggestion.reason ?? "The cluster is not balanced."}</span>`} />`}
      <${Panel} title="In progress" flush=${true}><${Table} label="Moves in progress" inUrl columns=${moving} rows=${moves} rowKey=${place} sort="topic" empty=${none} /><//>
      ${known.length > 0 && html`<${Panel} title="Plans" flush=${true}><${Table} label="Plans" columns=${plans} rows=${known} rowKey=${(row) => row.id} detail=${failuresOf} /><//>`}
      ${undone.length > 0 && html`<${Panel} title="Moves that were rolled back" flush=${true}><${Table} label="Moves that were rolled back" columns=${rollbacks} rows=${undone} rowKey=${place} /><//>`}`}
    <//>
  <//>`;
}
