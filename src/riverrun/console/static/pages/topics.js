// All topics. The server searches, sorts and pages, so that ten thousand topics open at once.

import { Badge, CheckField, column, Empty, fixed, Icon, ListTable, Menu, named, number, openDialog, opener, Page } from "../lib/components.js";
import { bytes, count, rate, short } from "../lib/format.js";
import { registerCommand } from "../lib/palette.js";
import { html, useEffect } from "../lib/preact.js";
import { link, navigate, setQuery, useQuery } from "../lib/router.js";
import { canWrite } from "../lib/state.js";
import { CreateTopic, DeleteTopic } from "./topic-dialogs.js";

export const noTitle = html`<span class="hidden">Actions</span>`;

const menu = ({ name: topic }) => [
  { label: "Browse messages", run: () => navigate(link("messages", { topic })) },
  { label: "Settings", run: () => navigate(link("topic", { topic }, { tab: "settings" })) },
  ...(canWrite.value ? [{ label: "Delete…", danger: true, run: () => openDialog(DeleteTopic, { topic }) }] : []),
];

function state({ offline, under_replicated, moving }) {
  const badge = offline ? html`<${Badge} kind="bad">${count(offline)} offline<//>`
    : under_replicated ? html`<${Badge} kind="care">${count(under_replicated)} under-replicated<//>` : html`<${Badge} kind="good">in sync<//>`;
  return html`${badge}${moving > 0 && html` <${Badge}>${count(moving)} moving<//>`}`;
}

const columns = [
  column("name", "Topic", (row) => html`${named("topic", row.name)}${row.internal && html` <${Badge}>internal<//>`}`),
  number("partitions", "Partitions"),
  number("replication_factor", "Replicas", count, { sort: false }),
  number("records", "Records", short, { hint: "Difference of the end and start offsets" }),
  number("size", "Size", bytes, { hint: "Bytes of all leaders" }),
  number("messages_in", "Records/s", short),
  number("bytes_in", "In", rate, { sort: false }),
  column("under_replicated", "State", state, { hint: "Partitions without a leader, or with replicas that are not in sync" }),
  fixed("cleanup_policy", "Clean-up"),
  fixed("menu", noTitle, (row) => html`<${Menu} label=${`Actions of ${row.name}`} items=${menu(row)} />`, { align: "end" }),
];

export default function Topics() {
  const [internal] = useQuery("internal");
  useEffect(() => registerCommand({ title: "Create topic", words: "new add", run: () => openDialog(CreateTopic) }), []);
  const button = opener(html`<${Icon} name="plus" />Create topic`, CreateTopic, {}, "primary");
  return html`<${Page} title="Topics" actions=${button}>
    <${ListTable} path="topics" label="Topics" search="Search topics" sort="name" columns=${columns} rowKey=${(row) => row.name} params=${{ internal: internal && "true" }}
      toolbar=${html`<${CheckField} label="Internal topics" checked=${internal === "1"} onInput=${(on) => setQuery({ internal: on ? "1" : null, page: null })} />`}
      empty=${html`<${Empty} title="No topics yet" icon="topics" action=${button}>Create one here, or let a producer write to it.<//>`} />
  <//>`;
}
