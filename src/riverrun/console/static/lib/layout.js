// The frame of a page.
//
//   <${Page} title="Topics" actions=${...} note="..." tabs=${...}>content<//>
//   <${Tabs} label="Topic" tabs=${[{ id, label, count, href }]} />    links; the selected one is in the URL
//   <${QueryTabs} label="Node" tabs=${[["summary", "Summary"], ...]} />   the same, kept as `tab` in the URL
//   <${Verdict} kind="good|care|bad" label="Health" text="..." actions=${...}>content<//>
//   <${Panel} title="Partitions" actions=${...}>content<//>
//   <${Facts} items=${[["Leader", "1"], ...]} />        a definition list in columns; a third "wide" takes two
//   <${Tile} label="Topics" value="12" detail="3 internal" href=${...} kind="care" />
//       short: tile("Topics", "12", "3 internal", href, "care")
//   <${Meter} value=${0.7} label="Disk" />              a small bar; above 85 % it warns, unless `plain`

import { Icon } from "./icons.js";
import { html, useLayoutEffect } from "./preact.js";
import { link, route } from "./router.js";

export function Page({ title, note, actions, tabs, children }) {
  useLayoutEffect(() => {
    document.title = `${title} · riverrun`;
  }, [title]);
  return html`<div class="page">
    <header class="page-head">
      <div class="page-title"><h1>${title}</h1>${note && html`<span class="page-note">${note}</span>`}</div>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${tabs}
    ${children}
  </div>`;
}

export function Tabs({ label, tabs, current }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(
      (tab) => html`<a key=${tab.id} href=${tab.href} aria-current=${tab.id === current ? "page" : undefined}>
        ${tab.label}${tab.count !== undefined && tab.count !== null && html`<span class="tab-count">${tab.count}</span>`}
      </a>`,
    )}
  </nav>`;
}

export function QueryTabs({ label, tabs }) {
  const { page, params, query } = route.value;
  const first = tabs[0][0];
  const links = tabs.map(([id, text]) => ({ id, label: text, href: link(page.id, params, { tab: id === first ? null : id }) }));
  return html`<${Tabs} label=${label} tabs=${links} current=${query.tab ?? first} />`;
}

const VERDICT_ICONS = { good: "check", care: "warning", bad: "error" };

export function Verdict({ kind, label, text, actions, children }) {
  return html`<section class="panel verdict ${kind}" aria-label=${label} aria-live="polite">
    <div class="verdict-head"><${Icon} name=${VERDICT_ICONS[kind] ?? "check"} size=${22} /><p>${text}</p>${actions}</div>
    ${children}
  </section>`;
}

export function Panel({ title, actions, note, flush = false, children }) {
  return html`<section class="panel ${flush ? "flush" : ""}">
    ${(title || actions) &&
    html`<header class="panel-head">
      <h2>${title}</h2>
      ${note && html`<span class="muted">${note}</span>`}
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>`}
    ${children}
  </section>`;
}

export function Facts({ items }) {
  return html`<dl class="facts">
    ${items.filter(Boolean).map(([name, value, width]) => html`<div key=${name} class=${width}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

export function Tile({ label, value, detail, href, kind = "" }) {
  const content = html`<span class="tile-label">${label}</span><span class="tile-value">${value}</span><span class="tile-detail">${detail ?? "\u00a0"}</span>`;
  return href ? html`<a class="tile ${kind}" href=${href}>${content}</a>` : html`<div class="tile ${kind}">${content}</div>`;
}

export const tile = (label, value, detail, href, kind) => html`<${Tile} ...${{ label, value, detail, href, kind }} />`;

const METER_CARE = 0.85;

export function Meter({ value, label, plain = false }) {
  const whole = Math.max(0, Math.min(1, value ?? 0));
  return html`<span class="meter ${whole > METER_CARE && !plain ? "care" : ""}" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(whole * 100)}>
    <span style=${{ width: `${whole * 100}%` }}></span>
  </span>`;
}
