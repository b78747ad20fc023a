// Short forms for columns and cells.
//
//   column("name", "Name", (row) => ..., { class: "wrap" })   sortable; without a function row[key]
//   fixed("cause", "Cause", ...)                              the same, not sortable
//   number("lag", "Lag", count)                               aligned right; formats row[key]
//   named("topic", "a")   a link to a page of this id      nodeLink(1)   topicLink("a", 3)   groupLinks(["g"])   moment(ms)
//   opener("Abort…", AbortDialog, { id }, "small", "Abort x")   a button that opens a dialog; none when
//                                                             the console is read-only
//   <${WholeList} path label columns rowKey sort keep=${(row) => true} note=${(data) => ...} ... />
//     A list that the server sends whole: search (in rowKey), order and states, all in the URL.

import { openDialog } from "./dialog.js";
import { Empty, Loaded } from "./feedback.js";
import { SearchField } from "./forms.js";
import { ago, count, time } from "./format.js";
import { html } from "./preact.js";
import { link, useQuery } from "./router.js";
import { canWrite, useResource } from "./state.js";
import { Table } from "./table.js";

export const column = (key, title, render, more) => ({ key, title, sort: true, render, ...more });
export const fixed = (key, title, render, more) => ({ key, title, render, ...more });
export const number = (key, title, format = count, more) => ({ key, title, sort: true, align: "end", render: (row) => format(row[key]), ...more });

export const named = (page, name) => html`<a class="name-cell" href=${link(page, { [page]: name })} title=${name}>${name}</a>`;
export const nodeLink = (node) => html`<a href=${link("node", { node })}>Node ${node}</a>`;
export const topicLink = (topic, partition) => html`<a href=${link("topic", { topic })}>${topic}</a> <span class="muted">partition ${partition}</span>`;
export const groupLinks = (groups) => (groups?.length ? groups.map((group) => html`<a key=${group} href=${link("group", { group })}>${group}</a> `) : "–");
export const moment = (ms) => html`<span title=${time(ms)}>${ago(ms)}</span>`;

export const opener = (text, dialog, props, kind, label) => canWrite.value && html`<button type="button" class=${kind} aria-label=${label} onClick=${() => openDialog(dialog, props)}>${text}</button>`;

export function WholeList({ path, label, rowKey, every, keep = () => true, note, empty, toolbar, ...rest }) {
  const [q, setSearch] = useQuery("q");
  const noun = label.toLowerCase();
  const resource = useResource(path, {}, { every });
  const wanted = (row) => keep(row) && rowKey(row).toLowerCase().includes(q.toLowerCase());
  return html`<section class="panel list" aria-label=${label}>
    <div class="toolbar"><${SearchField} label=${`Search ${noun}`} value=${q} onInput=${setSearch} />${toolbar}</div>
    <${Loaded} resource=${resource}>${(data) => html`${note?.(data)}<${Table} inUrl label=${label} rows=${data.items.filter(wanted)} rowKey=${rowKey} empty=${q ? html`<${Empty} title=${`No ${noun} match “${q}”`} />` : empty} ...${rest} />`}<//>
  </section>`;
}
