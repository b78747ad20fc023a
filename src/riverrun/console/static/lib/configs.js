// The settings of a topic or node: search, changed settings first, edit and reset with a dry run.
//
//   <${Configs} path=${path`topics/${topic}/configs`} what="topic a" />
//
// A topic inherits values of its nodes, which it cannot reset: its changed settings are its own.
// A node's changed settings are all that differ from the defaults, also those of its file.

import { ActionDialog, openDialog } from "./dialog.js";
import { api } from "./api.js";
import { Badge, Empty, Loaded } from "./feedback.js";
import { CheckField, SearchField, SelectField, TextField } from "./forms.js";
import { plural } from "./format.js";
import { html, useState } from "./preact.js";
import { setQuery, useQuery } from "./router.js";
import { canWrite, useResource } from "./state.js";
import { Rows } from "./table.js";

const shown = (config) => (config.is_sensitive ? "hidden" : config.value === null || config.value === undefined ? "not set" : config.value === "" ? "empty" : config.value);

function ValueField({ config, value, onInput }) {
  const label = `New value of ${config.name}`;
  if (["true", "false"].includes(config.value)) return html`<${SelectField} label=${label} value=${value} onInput=${onInput} options=${["true", "false"]} wide />`;
  return html`<${TextField} label=${label} value=${value} onInput=${onInput} wide autofocus />`;
}

function EditDialog({ path, what, config, close }) {
  const [value, setValue] = useState(config.is_sensitive ? "" : config.value ?? "");
  return html`<${ActionDialog} title=${`Change ${config.name} of ${what}`} action="Change" dryRun inputs=${value} close=${close}
    send=${(dry) => api.patch(path, { set: { [config.name]: value }, reset: [], dry_run: dry })}
    ready=${config.is_sensitive ? value !== "" : value !== (config.value ?? "")} success=${`${config.name} changed`}>
    ${config.doc && html`<p class="muted">${config.doc}</p>`}
    <p>Now <code>${shown(config)}</code>${config.default !== null && config.default !== undefined && html`, by default <code>${config.default || "empty"}</code>`}</p>
    <${ValueField} config=${config} value=${value} onInput=${setValue} />
  <//>`;
}

function ResetDialog({ path, what, config, close }) {
  return html`<${ActionDialog} title=${`Reset ${config.name} of ${what}`} action="Reset" dryRun close=${close}
    send=${(dry) => api.patch(path, { set: {}, reset: [config.name], dry_run: dry })} success=${`${config.name} reset`}>
    <p>The value <code>${shown(config)}</code> is removed. The next value applies: one of the cluster or of the node's file, or the default${config.default && html` <code>${config.default}</code>`}.</p>
  <//>`;
}

function columnsFor(path, what) {
  return [
    { key: "name", title: "Setting", class: "wrap", render: (row) => html`<span class="mono">${row.name}</span>${row.doc && html`<p class="hint">${row.doc}</p>`}` },
    { key: "value", title: "Value", class: "wrap", render: (row) => html`<span class=${row.value === null || row.value === "" || row.is_sensitive ? "muted" : "mono"}>${shown(row)}</span>` },
    { key: "source", title: "Source", render: (row) => html`<${Badge} kind=${row.is_default ? "plain" : "accent"}>${row.source}<//>` },
    { key: "change", title: "Change", align: "end", render: (row) => canWrite.value && !row.is_read_only && html`<span class="row end-row">
      ${row.is_own && html`<button type="button" class="small ghost" aria-label=${`Reset ${row.name}`} onClick=${() => openDialog(ResetDialog, { path, what, config: row })}>Reset</button>`}
      <button type="button" class="small" aria-label=${`Edit ${row.name}`} onClick=${() => openDialog(EditDialog, { path, what, config: row })}>Edit</button></span>` },
  ];
}

const ownOnly = (config) => config.is_own;

export function Configs({ path, what, isChanged = ownOnly }) {
  const resource = useResource(path);
  const [text, setText] = useQuery("setting");
  const [only] = useQuery("changed");
  const wanted = text.toLowerCase();
  return html`<section class="panel list" aria-label="Settings">
    <div class="toolbar">
      <${SearchField} label="Search settings" value=${text} onInput=${setText} />
      <${CheckField} label="Only changed settings" checked=${only === "1"} onInput=${(on) => setQuery({ changed: on ? "1" : null })} />
      <span class="muted push" role="status">${resource.data && plural(resource.data.items.filter(isChanged).length, "changed setting")}</span>
    </div>
    <${Loaded} resource=${resource}>${({ items }) => {
      const found = items
        .filter((each) => (only !== "1" || isChanged(each)) && `${each.name} ${each.doc ?? ""}`.toLowerCase().includes(wanted))
        .sort((a, b) => b.is_own - a.is_own || a.is_default - b.is_default || a.name.localeCompare(b.name));
      if (!found.length) return html`<${Empty} title=${text ? `No setting matches “${text}”` : "No setting was changed"} />`;
      return html`<${Rows} label="Settings" columns=${columnsFor(path, what)} rows=${found} rowKey=${(row) => row.name} />`;
    }}<//>
  </section>`;
}
