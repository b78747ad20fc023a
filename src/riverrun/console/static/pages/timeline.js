// The timeline of the cluster, from its metadata log: what changed and when, and what differs
// between two moments.

import { Badge, column, Empty, fixed, Icon, Loaded, Page, Panel, SearchField, Table, TextField } from "../lib/components.js";
import { ago, clock, count, day, localTime, parseLocalTime, plural, time, words } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link, route, setQuery, useQuery } from "../lib/router.js";
import { useResource } from "../lib/state.js";

const LIMIT = 100;
// Smaller numbers are offsets of the metadata log, larger ones milliseconds.
const TIME_MIN = 1e11;
const HOUR_MS = 3_600_000;
const KINDS = {
  election: "Elections", isr: "In-sync replicas", topic: "Topics", config: "Settings", broker: "Nodes", move: "Moves",
  quorum: "Quorum", feature: "Features", acl: "ACLs", user: "Users", quota: "Quotas", other: "Other",
};
const NAMES = { ...KINDS, election: "Election", topic: "Topic", config: "Setting", broker: "Node", move: "Move", feature: "Feature", acl: "ACL", user: "User", quota: "Quota" };
const COLOURS = { election: "accent", quorum: "accent", isr: "care", topic: "good", user: "bad", acl: "bad" };
const FENCED = 1;
const PAGES = { acl: "acls", user: "users", quota: "quotas", quorum: "quorum", feature: "quorum", move: "moves" };

// Nodes that stop need care, those that register or become ready do not.
const isStopping = ({ kind, details }) => kind === "broker" && (details?.fenced === FENCED || details?.shutting_down);
const kindBadge = (event) => html`<${Badge} kind=${isStopping(event) ? "care" : COLOURS[event.kind]}>${NAMES[event.kind] ?? event.kind}<//>`;

// The page about the subject of an event or change, or null.
function target({ kind, subject, details }) {
  const [, type, name] = /^(node|topic) (.+)$/.exec(subject) ?? (kind === "topic" ? [null, "topic", subject] : []);
  if (type) return link(type, { [type]: name });
  if (details?.partitions?.length === 1) return link("topic", { topic: details.partitions[0].topic });
  return PAGES[kind] ? link(PAGES[kind]) : null;
}

function subjectLink(event) {
  const href = target(event);
  return href ? html`<a href=${href}>${event.subject}</a>` : event.subject;
}

function KindFilter({ chosen }) {
  const choose = (kinds) => setQuery({ kinds: kinds.join(",") || null, before: null });
  const toggle = (kind) => choose(Object.keys(KINDS).filter((each) => (each === kind) !== chosen.includes(each)));
  return html`<div class="chips" role="group" aria-label="Kinds of events">
    ${Object.entries(KINDS).map(([kind, label]) => html`<button key=${kind} type="button" class="small" aria-pressed=${chosen.includes(kind) ? "true" : "false"} onClick=${() => toggle(kind)}>${label}</button>`)}
    ${chosen.length > 0 && html`<button type="button" class="small ghost" onClick=${() => choose([])}>All kinds</button>`}
  </div>`;
}

function Event({ event, comparing }) {
  const { offset, details = {} } = event;
  const pick = (name, label) => html`<button type="button" class="small ghost" aria-label=${`${label} offset ${offset}`} onClick=${() => setQuery({ [name]: offset })}>${label}</button>`;
  return html`<li>
    <time dateTime=${new Date(event.time_ms).toISOString()} title=${`${time(event.time_ms)}, offset ${offset}`}>${clock(event.time_ms)}</time>
    ${kindBadge(event)}
    <div><p>${event.text}</p><span class="subject">${subjectLink(event)}</span>
      <details><summary>Details</summary><dl class="pairs">
        ${[["offset", offset], ...Object.entries(details).map(([name, value]) => [name, html`<code>${words(value)}</code>`])].map(([name, value]) => html`<div key=${name}><dt>${name.replaceAll("_", " ")}</dt><dd>${value}</dd></div>`)}
      </dl></details></div>
    ${comparing && html`<span class="row nowrap">${pick("from", "From")}${pick("to", "To")}</span>`}
  </li>`;
}

function Events({ items, comparing }) {
  const days = Map.groupBy(items, (event) => day(event.time_ms));
  return [...days].map(([name, events]) => html`<section key=${name} aria-label=${name}><h2 class="day">${name} <span class="muted">${ago(events[0].time_ms)}</span></h2>
    <ol class="events">${events.map((event) => html`<${Event} key=${event.offset} event=${event} comparing=${comparing} />`)}</ol></section>`);
}

function Moment({ name, label }) {
  const [value, set] = useQuery(name);
  const isTime = Number(value) >= TIME_MIN;
  return html`<${TextField} label=${label} type="datetime-local" step="1" value=${isTime ? localTime(Number(value)) : ""} onInput=${(text) => set(String(parseLocalTime(text) ?? ""))}
    hint=${value && !isTime ? `Offset ${count(Number(value))} of the metadata log` : "Or choose an event below"} />`;
}

// The fields of an object that another one does not have in the same form.
const difference = (own, other) => own && Object.fromEntries(Object.entries(own).filter(([name, value]) => !other || words(value) !== words(other[name])));

const changes = [
  column("kind", "Kind", kindBadge),
  column("subject", "Subject", subjectLink, { class: "wrap" }),
  ...[["before", "Before", "after"], ["after", "After", "before"]].map(([key, title, other]) => fixed(key, title, (row) => html`<code>${words(difference(row[key], row[other]))}</code>`, { class: "wrap" })),
];

function Difference({ from, to }) {
  const resource = useResource("timeline/diff", { from, to }, { every: 0 });
  return html`<${Loaded} resource=${resource} lines=${3}>${(data) => html`
    <p class="toolbar muted" role="status">${plural(data.total ?? data.changes.length, "difference")} between offsets ${count(data.from_offset)} and ${count(data.to_offset)}${data.total > data.changes.length ? `; the first ${count(data.changes.length)} are shown` : ""}</p>
    <${Table} label="Differences" columns=${changes} rows=${data.changes} rowKey=${(row) => `${row.kind} ${row.subject}`} empty=${html`<${Empty} title="Nothing differs" />`} />`}<//>`;
}

const endCompare = () => setQuery({ compare: null, from: null, to: null });

function Compare() {
  const { from, to } = route.value.query;
  const now = () => String(Date.now());
  return html`<${Panel} title="Compare two moments" flush=${true} actions=${html`<button type="button" class="ghost icon-only" aria-label="Close the comparison" onClick=${endCompare}><${Icon} name="close" /></button>`}>
    <div class="toolbar">
      <${Moment} name="from" label="From" /><${Moment} name="to" label="To" />
      <button type="button" onClick=${() => setQuery({ to: now() })}>To now</button>
      <button type="button" onClick=${() => setQuery({ from: String(Date.now() - HOUR_MS), to: now() })}>The last hour</button>
    </div>
    ${from && to ? html`<${Difference} from=${from} to=${to} />` : html`<${Empty} title="Choose two moments" icon="timeline">Type times, or use From and To beside two events.<//>`}
  <//>`;
}

export default function Timeline() {
  const { kinds = "", before, compare } = route.value.query;
  const [q] = useQuery("q");
  const resource = useResource("timeline", { before, limit: LIMIT, kinds, q }, { every: before ? 0 : 5000 });
  const goTo = (label, offset) => html`<a class="button small" href=${link("timeline", {}, { ...route.value.query, before: offset })}>${label}</a>`;
  const actions = html`<button type="button" aria-pressed=${compare ? "true" : "false"} onClick=${() => (compare ? endCompare() : setQuery({ compare: 1 }))}>Compare moments</button>`;
  return html`<${Page} title="Timeline" note="from the metadata log" actions=${actions}>
    ${compare && html`<${Compare} />`}
    <section class="panel list" aria-label="Events">
      <div class="toolbar"><${SearchField} label="Search events" value=${q} onInput=${(text) => setQuery({ q: text, before: null })} /><${KindFilter} chosen=${kinds ? kinds.split(",") : []} /></div>
      <${Loaded} resource=${resource}>${({ items, next, first_offset: first }) => html`
        ${items.length ? html`<${Events} items=${items} comparing=${Boolean(compare)} />` : html`<${Empty} title=${q || kinds ? "No event matches" : "No events yet"} icon="timeline">${next === null ? "The log keeps events until a snapshot replaces them." : "Older events may match."}<//>`}
        <nav class="pager" aria-label="Pages of events">
          <span class="muted">${before ? `Events before offset ${count(Number(before))}` : "The newest events"}${first ? `; the log begins at offset ${count(first)}` : ""}</span>
          <span class="row">${before && goTo("Newest", null)}${next !== null && goTo("Older", next)}</span>
        </nav>`}
      <//>
    </section>
  <//>`;
}
