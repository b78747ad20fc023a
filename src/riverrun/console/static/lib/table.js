// Tables.
//
//   <${ListTable} path="topics" columns=${columns} rowKey=${(row) => row.name} sort="name"
//       label="Topics" search="Search topics" params=${{ internal: true }} toolbar=${...} empty=${...} />
//     A list of the server: search, sort and page are in the URL (q, sort, order, page), and the
//     server does the work, so ten thousand rows cost no more than fifty.
//   <${Table} columns rows rowKey label />       rows the page already has; sorts them in the browser;
//       with inUrl=${true} the order is in the URL
//
// A column: { key, title, sort, align, width, class, render(row), hint }. `sort` is true, or the server's
// name of the order. Without `render` the cell shows row[key]. align "end" is for numbers. In a
// Table, value(row) gives the value to sort by when it differs from row[key]. detail(row) returns
// content to show in a row of its own below the row, or null; onRow(row, event) is a click on it.

import { Empty, Failure, StaleNote } from "./feedback.js";
import { SearchField } from "./forms.js";
import { count, plural } from "./format.js";
import { Icon } from "./icons.js";
import { Fragment, html, useEffect, useState } from "./preact.js";
import { route, setQuery } from "./router.js";
import { useResource } from "./state.js";

export const PAGE_SIZE = 50;

const orderName = (column) => (column.sort === true ? column.key : column.sort);

function HeadCell({ column, sort, order, onSort }) {
  const style = column.width ? { width: column.width } : undefined;
  const align = column.align === "end" ? "end" : "";
  if (!column.sort || !onSort) return html`<th scope="col" class=${align} style=${style} title=${column.hint}>${column.title}</th>`;
  const name = orderName(column);
  const active = name === sort;
  const next = active && order === "asc" ? "desc" : active ? "asc" : column.align === "end" ? "desc" : "asc";
  const state = active ? (order === "asc" ? "ascending" : "descending") : "none";
  return html`<th scope="col" class=${align} style=${style} aria-sort=${state}>
    <button type="button" class="sort ${active ? "active" : ""}" title=${column.hint} onClick=${() => onSort(name, next)}>
      ${column.title}<span class="arrow ${active ? order : ""}" aria-hidden="true"><${Icon} name="down" size=${10} /></span>
    </button>
  </th>`;
}

const cell = (column, row) => (column.render ? column.render(row) : row[column.key]);

export function Rows({ columns, rows, rowKey, label, sort, order, onSort, busy = false, bones = 0, rowClass, detail, onRow }) {
  const below = (row) => {
    const content = detail?.(row);
    return content && html`<tr class="detail"><td colspan=${columns.length}>${content}</td></tr>`;
  };
  return html`<div class="table-scroll" tabindex="0" role="group" aria-label=${label}>
    <table aria-busy=${busy ? "true" : "false"}>
      <caption class="hidden">${label}</caption>
      <thead><tr>
        ${columns.map((column) => html`<${HeadCell} key=${column.key} ...${{ column, sort, order, onSort }} />`)}
      </tr></thead>
      <tbody>
        ${rows.map(
          (row) => html`<${Fragment} key=${rowKey(row)}><tr class=${rowClass?.(row)} onClick=${onRow && ((event) => onRow(row, event))}>
            ${columns.map((column) => html`<td key=${column.key} class=${column.align === "end" ? "end" : column.class}>${cell(column, row)}</td>`)}
          </tr>${below(row)}<//>`,
        )}
        ${Array.from({ length: bones }, (_, index) => html`<tr key=${`bone-${index}`} class="bones" aria-hidden="true">
          ${columns.map((column) => html`<td key=${column.key}><span class="bone"></span></td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

export function Table({ columns, rows, rowKey, label, sort: first = null, order: firstOrder = "asc", empty, rowClass, detail, inUrl = false }) {
  const [own, setOwn] = useState({ sort: first, order: firstOrder });
  const { sort = first, order = firstOrder } = route.value.query;
  const [by, setBy] = inUrl ? [{ sort, order }, setQuery] : [own, setOwn];
  if (!rows.length) return empty ?? html`<${Empty} title="Nothing here" />`;
  const column = columns.find((each) => each.sort && orderName(each) === by.sort);
  const sorted = column ? [...rows].sort(comparison(column, by.order)) : rows;
  return html`<${Rows} ...${{ columns, rows: sorted, rowKey, label, rowClass, detail }} sort=${by.sort} order=${by.order} onSort=${(sort, order) => setBy({ sort, order })} />`;
}

function comparison(column, order) {
  const value = column.value ?? ((row) => row[column.key]);
  const sign = order === "asc" ? 1 : -1;
  return (left, right) => {
    const [a, b] = [value(left), value(right)];
    if (a === b) return 0;
    if (a === null || a === undefined) return 1; // absent values last in both orders
    if (b === null || b === undefined) return -1;
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  };
}

export function Pager({ offset, limit, total, shown, noun, onPage }) {
  const last = Math.max(0, Math.ceil(total / limit) - 1);
  const page = Math.floor(offset / limit);
  const whole = total === 0 ? `No ${noun}` : plural(total, noun.replace(/s$/, ""));
  const text = shown < total ? `${count(offset + 1)}–${count(offset + shown)} of ${count(total)} ${noun}` : whole;
  return html`<nav class="pager" aria-label=${`Pages of ${noun}`}>
    <span class="muted" role="status">${text}</span>
    ${last > 0 &&
    html`<span class="pager-buttons">
      <button type="button" class="icon-only back" aria-label="Previous page" disabled=${page === 0} onClick=${() => onPage(page - 1)}><${Icon} name="chevron" size=${12} /></button>
      <span class="muted">Page ${count(page + 1)} of ${count(last + 1)}</span>
      <button type="button" class="icon-only" aria-label="Next page" disabled=${page >= last} onClick=${() => onPage(page + 1)}><${Icon} name="chevron" size=${12} /></button>
    </span>`}
  </nav>`;
}

export function ListTable(props) {
  const { path, columns, rowKey, label, noun = label.toLowerCase(), sort: first, order: firstOrder = "asc" } = props;
  const { params = {}, search, toolbar, empty, every, limit = PAGE_SIZE, rowClass } = props;
  const { q = "", sort = first, order = first && firstOrder, page = "1" } = route.value.query;
  const offset = (Math.max(1, Math.floor(Number(page)) || 1) - 1) * limit;
  const resource = useResource(path, { ...params, q: search && q, sort, order, page: offset / limit + 1, limit }, { every });
  const { data, error, loading } = resource;
  const rows = data?.items ?? [];

  // A page behind the end appears when rows were deleted or the search changed.
  useEffect(() => {
    if (data && !loading && !rows.length && page > 1) setQuery({ page: null });
  }, [data, loading]);

  const none = data && !rows.length && !loading;
  return html`<section class="panel list" aria-label=${label}>
    <div class="toolbar">
      ${search && html`<${SearchField} label=${search} value=${q} onInput=${(text) => setQuery({ q: text, page: null })} />`}
      ${toolbar}
    </div>
    ${error && !data && html`<${Failure} error=${error} retry=${resource.refresh} />`}
    ${error && data && html`<${StaleNote} error=${error} />`}
    ${none && (search && q ? html`<${Empty} title=${`No ${noun} match “${q}”`}>The search finds any part of the name.<//>` : empty ?? html`<${Empty} title=${`No ${noun}`} />`)}
    ${!none && !(error && !data) &&
    html`<${Rows} ...${{ columns, rows, rowKey, label, sort, order, rowClass }} busy=${loading} bones=${data ? 0 : 10}
      onSort=${(name, direction) => setQuery({ sort: name === first && direction === firstOrder ? null : name, order: direction === firstOrder ? null : direction, page: null })} />`}
    ${data && !none && html`<${Pager} ...${{ offset, limit, noun }} total=${data.total} shown=${rows.length} onPage=${(next) => setQuery({ page: next ? next + 1 : null }, { replace: false })} />`}
  </section>`;
}
