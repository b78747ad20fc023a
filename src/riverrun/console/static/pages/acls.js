// Access rules: list, add, delete, and "Why?": may a user do something, and which rule decides.

import { api } from "../lib/api.js";
import { ActionDialog, Badge, CheckField, column, Empty, Failure, fixed, Icon, ListTable, Loading, opener, Page, Panel, QueryTabs, Segmented, SelectField, Table, useForm, Verdict } from "../lib/components.js";
import { plural } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/preact.js";
import { link, route, setQuery, useQuery } from "../lib/router.js";
import { canWrite, useResource } from "../lib/state.js";

const OPERATIONS = {
  topic: "read write create describe delete alter describe_configs alter_configs all",
  group: "read describe delete describe_configs alter_configs all",
  cluster: "create cluster_action describe_configs alter_configs idempotent_write alter describe all",
  transactional_id: "describe write two_phase_commit all",
  delegation_token: "describe all",
  user: "create_tokens describe_tokens all",
};
const CLUSTER = "kafka-cluster";

const words = (name) => String(name).toLowerCase().replaceAll("_", " ");
const option = (value) => [value, words(value)];
const TYPES = Object.keys(OPERATIONS).map(option);
const operationsOf = (type) => OPERATIONS[type].split(" ");
const keyOf = (rule) => `${rule.principal} ${rule.permission} ${rule.operation} ${rule.resource_type} ${rule.resource} ${rule.pattern} ${rule.host}`;
const isPrefix = (rule) => words(rule.pattern) === "prefixed";

function resource(rule) {
  const page = words(rule.resource_type);
  const name = `${rule.resource}${isPrefix(rule) ? "…" : ""}`;
  const linked = ["topic", "group"].includes(page) && !isPrefix(rule) && rule.resource !== "*";
  return html`<span class="muted">${page}</span> ${linked ? html`<a href=${link(page, { [page]: rule.resource })}>${name}</a>` : html`<span class="mono">${name}</span>`}`;
}

const columns = [
  column("principal", "Principal", (row) => html`<span class="name-cell">${row.principal}</span>`),
  column("permission", "Permission", (row) => html`<${Badge} kind=${words(row.permission) === "deny" ? "bad" : "good"}>${words(row.permission)}<//>`),
  column("operation", "Operation", (row) => words(row.operation)),
  column("resource", "Resource", resource),
  fixed("pattern", "Pattern", (row) => (isPrefix(row) ? "prefix" : row.resource === "*" ? "any name" : "exact name")),
  fixed("host", "Host", (row) => (row.host === "*" ? "any" : html`<span class="mono">${row.host}</span>`)),
];

const RuleTable = ({ rules, label }) => html`<${Table} label=${label} columns=${columns.map((each) => ({ ...each, sort: false }))} rows=${rules} rowKey=${keyOf} />`;

function rulesOf({ role, principal, host, permission, pattern, type, resource: name, group, operations }) {
  const base = { principal: principal.includes(":") ? principal : `User:${principal}`, host: host || "*", permission, pattern };
  const rules = (resource_type, resource_, list) => list.map((operation) => ({ ...base, resource_type, resource: resource_, operation }));
  if (role === "producer") return rules("topic", name, ["write", "describe", "create"]);
  if (role === "consumer") return [...rules("topic", name, ["read", "describe"]), ...rules("group", group, ["read"])];
  return type === "cluster" ? rules(type, CLUSTER, operations).map((rule) => ({ ...rule, pattern: "literal" })) : rules(type, name, operations);
}

function AddDialog({ principal = "", close }) {
  const { values, field, set } = useForm({ role: "own", principal: principal.replace(/^User:/, ""), host: "*", permission: "allow", type: "topic", resource: "", group: "", pattern: "literal", operations: ["read"] });
  const own = values.role === "own";
  const known = operationsOf(values.type);
  const form = { ...values, operations: known.filter((each) => values.operations.includes(each)) };
  const cluster = own && form.type === "cluster";
  const rules = rulesOf(form);
  const ready = form.principal !== "" && (cluster || form.resource !== "") && rules.length > 0 && (form.role !== "consumer" || form.group !== "");
  const toggle = (operation) => set({ operations: known.filter((each) => (each === operation) !== form.operations.includes(each)) });
  return html`<${ActionDialog} title="Add rules" action=${`Add ${plural(rules.length, "rule")}`} wide call=${["post", "acls", { rules }]} ready=${ready} preview=${() => html`<${RuleTable} rules=${rules} label="New rules" />`} success="The rules are added" close=${close}>
    <${Segmented} label="What to allow" value=${form.role} options=${[["own", "Single operations"], ["producer", "Producer"], ["consumer", "Consumer"]]} onInput=${(role) => set({ role })} />
    <div class="form-grid">
      ${field("principal", "User", { required: true, hint: "A name, or * for all users" })}
      ${own && field("type", "Resource type", { options: TYPES })}
      ${!cluster && field("resource", own ? "Resource" : "Topic", { required: true, hint: "* for all" })}
      ${form.role === "consumer" && field("group", "Group", { required: true, hint: "* for all" })}
      ${!cluster && field("pattern", "The name is", { options: [["literal", "the exact name"], ["prefixed", "a prefix"]] })}
      ${field("permission", "Permission", { options: ["allow", ["deny", "deny (wins over allow)"]] })}
      ${field("host", "Host", { hint: "An address, or * for any" })}
    </div>
    ${own && html`<div class="row" role="group" aria-label="Operations">${known.map((each) => html`<${CheckField} key=${each} label=${words(each)} checked=${form.operations.includes(each)} onInput=${() => toggle(each)} />`)}</div>`}
  <//>`;
}

function DeleteDialog({ rules, after, close }) {
  return html`<${ActionDialog} title=${`Delete ${plural(rules.length, "rule")}`} action="Delete" wide danger call=${["post", "acls/delete", { rules }]} success=${`${plural(rules.length, "rule")} deleted`} after=${after} close=${close}>
    <p>Users lose access at once, or gain it where a deny rule goes.</p>
    <${RuleTable} rules=${rules} label="Rules to delete" />
  <//>`;
}

function Rules() {
  const { principal = "", resource_type = "", resource: name = "" } = route.value.query;
  const [chosen, setChosen] = useState({});
  const { data } = useResource("acls", { limit: 1 });
  const rules = Object.values(chosen).filter(Boolean);
  const set = (key) => (value) => setQuery({ [key]: value, page: null });
  const box = fixed("choose", html`<span class="hidden">Choose</span>`, (row) => html`<input type="checkbox" aria-label=${`Choose ${keyOf(row)}`} checked=${Boolean(chosen[keyOf(row)])} onChange=${(event) => setChosen({ ...chosen, [keyOf(row)]: event.currentTarget.checked && row })} />`);
  const chip = (key, value) => value && html`<button type="button" class="small" aria-label=${`Remove the filter ${value}`} onClick=${() => set(key)(null)}>${value}<${Icon} name="close" size=${10} /></button>`;
  const toolbar = html`<${SelectField} compact label="Resource type" value=${resource_type} onInput=${set("resource_type")} options=${[["", "All types"], ...TYPES]} />
    ${chip("principal", principal)}${chip("resource", name)}
    ${rules.length > 0 && opener(`Delete ${plural(rules.length, "rule")}…`, DeleteDialog, { rules, after: () => setChosen({}) }, "danger push")}`;
  return html`${data?.authorizer === false && html`<p class="stale" role="status"><${Icon} name="warning" /> Access control is off: everybody may do everything. Set authorizer.class.name=riverrun on all nodes.</p>`}
    <${ListTable} path="acls" params=${{ principal, resource_type, resource: name }} columns=${canWrite.value ? [box, ...columns] : columns} rowKey=${keyOf} label="Rules" search="Search users and resources" sort="principal" toolbar=${toolbar}
      empty=${html`<${Empty} title=${principal || name || resource_type ? "No rule matches" : "No rules"} icon="acls">Without rules only super users may do anything, unless allow.everyone.if.no.acl.found is true.<//>`} />`;
}

function useDecision(question, isComplete) {
  const [state, setState] = useState({});
  useEffect(() => {
    let current = isComplete;
    setState({ loading: isComplete });
    if (isComplete) api.post("acls/check", question).then((answer) => current && setState({ answer }), (error) => current && setState({ error }));
    return () => (current = false);
  }, [JSON.stringify(question)]);
  return state;
}

// The question is in the URL, so that a link shows the same decision.
function Why() {
  const { user = "", host = "", operation = "read", type = "topic", resource: name = "" } = route.value.query;
  const { values, field } = useForm({ user, host, resource: name });
  const cluster = type === "cluster";
  const { answer, error, loading } = useDecision({ user, host: host || "*", operation, resource_type: type, resource: cluster ? CLUSTER : name }, user !== "" && (cluster || name !== ""));
  const ask = (event) => {
    event.preventDefault();
    setQuery(values, { replace: false });
  };
  const setType = (next) => setQuery({ type: next, operation: operationsOf(next).includes(operation) ? operation : operationsOf(next)[0] });
  return html`<${Panel} title="May a user do something, and which rule decides?"><form class="stack" onSubmit=${ask}>
      <div class="form-grid">
        ${field("user", "User", { required: true })}
        <${SelectField} label="Operation" value=${operation} onInput=${(next) => setQuery({ operation: next })} options=${operationsOf(type).filter((each) => each !== "all").map(option)} />
        <${SelectField} label="Resource type" value=${type} onInput=${setType} options=${TYPES} />
        ${!cluster && field("resource", "Resource", { required: true })}
        ${field("host", "Host", { placeholder: "any" })}
      </div>
      <div class="row"><button type="submit" class="primary">Check</button></div>
    </form><//>
    ${loading && html`<${Loading} lines=${2} />`}${error && html`<${Failure} error=${error} />`}
    ${answer && html`<${Verdict} kind=${answer.allowed ? "good" : "bad"} label="Decision" text=${`${answer.allowed ? "Allowed" : "Denied"}${answer.rule ? " by this rule" : `: ${answer.reason}`}`}>
      ${answer.rule && html`<${RuleTable} rules=${[answer.rule]} label="The rule that decides" />`}<//>`}`;
}

export default function Acls() {
  const [tab] = useQuery("tab", "rules");
  return html`<${Page} title="ACLs" actions=${opener("Add rules…", AddDialog, { principal: route.value.query.principal }, "primary")} tabs=${html`<${QueryTabs} label="ACLs" tabs=${[["rules", "Rules"], ["why", "Why?"]]} />`}>${tab === "why" ? html`<${Why} />` : html`<${Rules} />`}<//>`;
}
