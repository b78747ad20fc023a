// One message: payloads as text, JSON or hex, its facts, and its page at a permanent address.

import { path } from "../lib/api.js";
import { Badge, Code, copyText, CopyButton, Empty, Facts, Failure, Icon, Loaded, Menu, openDialog, Page, prettyJson, Segmented, SelectField } from "../lib/components.js";
import { ago, bytes, time } from "../lib/format.js";
import { html } from "../lib/preact.js";
import { link, route, useQuery } from "../lib/router.js";
import { canWrite, useResource } from "../lib/state.js";
import { ProduceDialog, ResendDialog } from "./produce.js";

export const FORMATS = [["auto", "Detect"], ["text", "Text"], ["json", "JSON"], ["avro", "Avro"], ["hex", "Hex"], ["base64", "Base64"]];
const HEX_BYTES_MAX = 64 * 1024;
const HEX_WIDTH = 16;
const VIEWS = [["auto", "JSON"], ["text", "Text"], ["hex", "Hex"]];

function hexDump({ base64, text }) {
  const data = base64 ? Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)) : new TextEncoder().encode(text);
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_BYTES_MAX); at += HEX_WIDTH) {
    const row = [...data.subarray(at, at + HEX_WIDTH)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "."));
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(HEX_WIDTH * 3 - 1)}  ${letters.join("")}`);
  }
  if (data.length > HEX_BYTES_MAX) lines.push(`… ${data.length - HEX_BYTES_MAX} more bytes`);
  return lines.join("\n");
}

// Key, value or header as one line of a table.
export function Preview({ payload }) {
  if (!payload?.size) return html`<span class="muted">${payload ? "empty" : "null"}</span>`;
  return html`<span class="mono">${payload.text}</span>`;
}

function Payload({ title, payload, view }) {
  const { format, size, schema_id, truncated } = payload ?? {};
  const pretty = size && view === "auto" ? prettyJson(payload.text) : null;
  const about = payload && `${format}, ${bytes(size)}${schema_id ? `, schema ${schema_id}` : ""}${truncated ? ", only the first part is shown" : ""}`;
  return html`<section class="payload"><h2>${title} <span class="muted">${about}</span></h2>
    ${size ? html`<${Code} text=${view === "hex" ? hexDump(payload) : pretty ?? payload.text} json=${pretty !== null} label=${title} wrap=${view !== "hex"} />` : html`<${Preview} payload=${payload} />`}
  </section>`;
}

function Headers({ headers, view }) {
  return html`<section class="payload"><h2>Headers <span class="muted">${headers.length}</span></h2>
    <dl class="headers">${headers.map(({ name, value }, index) => html`<div key=${index}>
      <dt class="mono">${name}</dt>
      <dd class="mono">${value?.size ? html`<span>${view === "hex" ? hexDump(value) : value.text}</span><${CopyButton} text=${value.text} label=${`Copy header ${name}`} />` : html`<${Preview} payload=${value} />`}</dd>
    </div>`)}</dl>
  </section>`;
}

// One whole message. Long payloads of a list are cut, so the message is read again then.
export function MessageDetail({ topic, message: listed, format, done, isPage = false }) {
  const [view, setView] = useQuery("view", "auto");
  const { partition, offset, headers } = listed;
  const cut = [listed.key, listed.value, ...headers.map((each) => each.value)].some((each) => each?.truncated);
  const whole = useResource(path`topics/${topic}/messages/${partition}/${offset}`, { format }, { every: 0, enabled: cut && !isPage });
  const message = whole.data ?? listed;
  const isWhole = !cut || isPage || whole.data; // a copy of the cut message would lose the rest
  const { key, value, timestamp_ms, producer_id, transactional } = message;
  const address = link("message", { topic, partition, offset });
  const open = (label, Dialog) => ({ label, run: () => openDialog(Dialog, { topic, message, done }) });
  const copy = (label, text) => html`<button type="button" class="small" onClick=${() => copyText(text())}><${Icon} name="copy" size=${14} />${label}</button>`;
  return html`<div class="stack">
    <div class="row">
      <${Segmented} label="Show payloads as" value=${view} options=${VIEWS} onInput=${setView} />
      ${!isPage && html`<a class="button small" href=${address}><${Icon} name="link" size=${14} />Permalink</a>`}
      ${copy("Copy link", () => window.location.origin + address)}${isWhole && copy("Copy as JSON", () => JSON.stringify(message, null, 2))}
      ${isWhole && canWrite.value && html`<${Menu} label="Actions of this message" items=${[open("Produce a copy…", ProduceDialog), open("Send to a topic…", ResendDialog)]} />`}
    </div>
    <${Facts} items=${[
      ["Partition", partition],
      ["Offset", offset],
      ["Time", html`${time(timestamp_ms)} <span class="muted">${ago(timestamp_ms)}, ${message.timestamp_type}</span>`],
      ["Size", bytes(message.size)],
      ["Compression", message.codec ?? "none"],
      producer_id !== null && producer_id >= 0 && ["Producer", html`${producer_id} ${transactional && html`<${Badge}>transactional<//>`}`],
    ]} />
    ${whole.error && html`<${Failure} error=${whole.error} retry=${whole.refresh} />`}
    <${Payload} title="Key" payload=${key} view=${view} />
    <${Payload} title="Value" payload=${value} view=${view} />
    ${headers.length > 0 && html`<${Headers} headers=${message.headers} view=${view} />`}
  </div>`;
}

export default function Message({ params: { topic, partition, offset } }) {
  const [format, setFormat] = useQuery("format", "auto");
  const resource = useResource(path`topics/${topic}/messages/${partition}/${offset}`, { format }, { every: 0 });
  const beside = (step) => link("message", { topic, partition, offset: Number(offset) + step }, route.value.query);
  const browse = link("messages", { topic }, { partition, from: "offset", offset });
  const actions = html`
    <${SelectField} label="Format" compact value=${format} onInput=${setFormat} options=${FORMATS} />
    ${offset > 0 && html`<a class="button back" href=${beside(-1)}><${Icon} name="chevron" size=${12} />Previous</a>`}
    <a class="button" href=${beside(1)}>Next<${Icon} name="chevron" size=${12} /></a>
    <a class="button" href=${browse}>Browse from here</a>`;
  const missing = html`<${Empty} title="There is no message at this offset" icon="topics">It was deleted or compacted, or it is not written yet.<//>`;
  return html`<${Page} title=${`${topic} ${partition}:${offset}`} actions=${actions}><section class="panel">
    ${resource.error?.status === 404 ? missing : html`<${Loaded} resource=${resource}>${(message) => html`<${MessageDetail} isPage topic=${topic} message=${message} />`}<//>`}
  </section><//>`;
}
