// Quotas: limits of users, client ids and addresses, with what is used of them now.

import { ActionDialog, Badge, column, Empty, fixed, ListTable, Meter, opener, Page, SelectField, TextField } from "../lib/components.js";
import { count, percent, rate } from "../lib/format.js";
import { html, useState } from "../lib/preact.js";

const MIB = 1024 * 1024;
const perSecond = (value) => `${count(Math.round(value * 100) / 100)}/s`;
// The factor converts the number in the form to that of the API.
const LIMITS = {
  producer_byte_rate: { label: "Produce", unit: "MiB/s", factor: MIB, show: rate },
  consumer_byte_rate: { label: "Consume", unit: "MiB/s", factor: MIB, show: rate },
  request_percentage: { label: "Request time", unit: "% of a node", factor: 1, show: percent },
  controller_mutation_rate: { label: "Partition changes", unit: "per s", factor: 1, show: perSecond },
  connection_creation_rate: { label: "New connections", unit: "per s", factor: 1, show: perSecond, isOfAddress: true },
};
const PARTS = { user: "User", client_id: "Client id", ip: "Address" };
const DEFAULT = "<default>";
const KINDS = [["user", "a user"], ["client_id", "a client id"], ["user client_id", "a user with a client id"], ["ip", "an address"]];

const limitOf = (name) => LIMITS[name] ?? { label: name, unit: "", factor: 1, show: count };
const partsOf = (row) => Object.keys(PARTS).filter((key) => row[key] !== null && row[key] !== undefined);
const keyOf = (row) => partsOf(row).map((key) => `${PARTS[key].toLowerCase()} ${row[key]}`).join(", ");

function entity(row) {
  return html`<span class="row">${partsOf(row).map((key) => html`<span key=${key}><span class="muted">${PARTS[key]}</span> ${row[key] === DEFAULT ? html`<${Badge}>each other<//>` : html`<b>${row[key]}</b>`}</span>`)}</span>`;
}

function Use({ row, name }) {
  const { label, show } = limitOf(name);
  const limit = row.limits[name];
  const used = row.use?.[name] ?? null;
  return html`<div class="quota" title=${row.busiest?.[name]}><span>${label}</span>${used === null ? html`<span></span>` : html`<${Meter} value=${limit ? used / limit : 0} label=${`${label} of ${keyOf(row)}`} />`}
    <span>${used === null ? "not in use" : show(used)} <span class="muted">of ${show(limit)}</span></span></div>`;
}

function limitsIn(texts, names, quota) {
  const limits = {};
  for (const name of names) {
    const text = (texts[name] ?? "").trim();
    if (text) limits[name] = Number(text) * limitOf(name).factor;
    else if (quota && name in quota.limits) limits[name] = null;
  }
  return limits;
}

const entityOf = (row) => ({ user: row.user ?? null, client_id: row.client_id ?? null, ip: row.ip ?? null });

// Sets limits of a new entity, or changes those of a quota. An empty name is the default of its kind.
function QuotaDialog({ quota, close }) {
  const [kind, setKind] = useState("user");
  const [names, setNames] = useState({});
  const [texts, setTexts] = useState(quota ? Object.fromEntries(Object.entries(quota.limits).map(([name, value]) => [name, String(value / limitOf(name).factor)])) : {});
  const who = entityOf(quota ?? Object.fromEntries(kind.split(" ").map((key) => [key, names[key]?.trim() || DEFAULT])));
  const fields = Object.keys(LIMITS).filter((name) => Boolean(LIMITS[name].isOfAddress) === (who.ip !== null));
  const limits = limitsIn(texts, fields, quota);
  const isWrong = (name) => typeof limits[name] === "number" && !(limits[name] > 0);
  return html`<${ActionDialog} title=${quota ? `Change the limits of ${keyOf(quota)}` : "Set limits"} action="Set" wide call=${["put", "quotas", { ...who, limits }]} ready=${Object.keys(limits).length > 0 && !fields.some(isWrong)} success="The limits are set" close=${close}>
    ${!quota && html`<div class="form-grid"><${SelectField} label="Limits of" value=${kind} onInput=${setKind} options=${KINDS} />
      ${kind.split(" ").map((key) => html`<${TextField} key=${key} label=${PARTS[key]} value=${names[key] ?? ""} onInput=${(value) => setNames({ ...names, [key]: value })} hint="Empty: each one without limits of its own" />`)}</div>`}
    <div class="form-grid">${fields.map((name) => html`<${TextField} key=${name} label=${`${limitOf(name).label}, ${limitOf(name).unit}`} value=${texts[name] ?? ""} onInput=${(value) => setTexts({ ...texts, [name]: value })} inputmode="decimal" placeholder="no limit" error=${isWrong(name) ? "A number above 0" : null} />`)}</div>
    <p class="hint">All clients of one quota share it, on each node. The most specific quota holds.</p>
  <//>`;
}

function RemoveDialog({ quota, close }) {
  const limits = Object.fromEntries(Object.keys(quota.limits).map((name) => [name, null]));
  return html`<${ActionDialog} title=${`Remove the limits of ${keyOf(quota)}`} action="Remove" danger call=${["put", "quotas", { ...entityOf(quota), limits }]} success="The limits are removed" close=${close}>
    <p>The next less specific quota holds, or none.</p>
  <//>`;
}

const button = (label, quota, dialog, kind) => opener(`${label}…`, dialog, { quota }, `small ${kind}`, `${label} the limits of ${keyOf(quota)}`);

const columns = [
  column("entity", "Limits of", entity, { sort: "user" }),
  fixed("limits", "Use now, on the busiest node", (row) => Object.keys(row.limits).map((name) => html`<${Use} key=${name} row=${row} name=${name} />`), { class: "wrap" }),
  fixed("actions", "Actions", (row) => html`<span class="row end-row">${button("Change", row, QuotaDialog, "")}${button("Remove", row, RemoveDialog, "danger-text")}</span>`, { align: "end" }),
];

export default function Quotas() {
  return html`<${Page} title="Quotas" actions=${opener("Set limits…", QuotaDialog, {}, "primary")}><${ListTable} path="quotas" label="Quotas" search="Search quotas" columns=${columns} rowKey=${keyOf} sort="user" every=${3000}
    empty=${html`<${Empty} title="No limits are set" icon="quotas">Clients may use all that the nodes can give.<//>`} /><//>`;
}
