// What a page shows when there is little to show, and short notes.
//
//   <${Badge} kind="good|care|bad|accent|plain">Stable<//>
//   <${Loading} />   <${Empty} title="No topics" action=${...}>text<//>
//   <${Failure} error=${error} retry=${refresh} />        message, remedy, and a button
//   <${Loaded} resource=${useResource(...)}>${(data) => html`...`}<//>   loading, error or content
//   prose("Run `riverrun up`.")      a remedy of the server, with its commands as code
//   toast("Topic created", { kind: "good" })

import { Icon } from "./icons.js";
import { html, signal } from "./preact.js";

const TOAST_MS = 6_000;
const TOASTS_MAX = 4;

export function Badge({ kind = "plain", title, children }) {
  return html`<span class="badge ${kind}" title=${title}>${children}</span>`;
}

// A dot with a word; colour alone never carries the meaning.
export function Status({ kind = "plain", children }) {
  return html`<span class="status ${kind}"><span class="dot" aria-hidden="true"></span>${children}</span>`;
}

export function Loading({ lines = 6 }) {
  return html`<div class="loading" role="status" aria-label="Loading">
    ${Array.from({ length: lines }, (_, index) => html`<span class="bone" key=${index}></span>`)}
  </div>`;
}

export function Empty({ title, icon = "search", action, children }) {
  return html`<div class="empty">
    <${Icon} name=${icon} size=${28} />
    <p class="empty-title">${title}</p>
    ${children && html`<p class="muted">${children}</p>`}
    ${action}
  </div>`;
}

export const prose = (text) => (text ?? "").split(/`([^`]+)`/).map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));

export function Failure({ error, retry }) {
  if (error.status === 501) {
    return html`<${Empty} title="Not available on this cluster" icon="nodes">${error.message} ${prose(error.remedy)}<//>`;
  }
  const title = error.status === 403 ? "You lack the right for this" : error.message;
  return html`<div class="failure" role="alert">
    <${Icon} name="error" size=${20} />
    <div>
      <p class="failure-title">${title}</p>
      ${error.status === 403 && html`<p>${error.message}</p>`}
      ${error.remedy && html`<p class="muted">${prose(error.remedy)}</p>`}
      ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
    </div>
  </div>`;
}

export function Loaded({ resource, lines, children }) {
  if (resource.data === null || resource.data === undefined) {
    if (resource.error) return html`<${Failure} error=${resource.error} retry=${resource.refresh} />`;
    return html`<${Loading} lines=${lines} />`;
  }
  return html`${resource.error && html`<${StaleNote} error=${resource.error} />`}${children(resource.data)}`;
}

// Shown above data that could not be refreshed. A lost connection has its own banner.
export function StaleNote({ error }) {
  if (error.status === 0) return null;
  return html`<p class="stale" role="status"><${Icon} name="warning" /> <span>Shown data is old: ${error.message} ${prose(error.remedy)}</span></p>`;
}

const toasts = signal([]);
let serial = 0;

export function toast(text, { kind = "plain" } = {}) {
  const id = ++serial;
  toasts.value = [...toasts.value.slice(1 - TOASTS_MAX), { id, text, kind }];
  setTimeout(() => dismiss(id), TOAST_MS);
}

function dismiss(id) {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

const TOAST_ICONS = { good: "check", bad: "error", care: "warning" };

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map(
      ({ id, text, kind }) => html`<div class="toast ${kind}" key=${id}>
        <${Icon} name=${TOAST_ICONS[kind] ?? "check"} />
        <span>${text}</span>
        <button type="button" class="ghost icon-only" aria-label="Dismiss" onClick=${() => dismiss(id)}><${Icon} name="close" size=${12} /></button>
      </div>`,
    )}
  </div>`;
}
