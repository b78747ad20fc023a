// The page of the REST API, from its OpenAPI description: endpoints by tag with parameters and
// schemas, and a form that tries reads. The search is ?q=, an open entry is the #hash.

import { Code, prettyJson } from "./lib/code.js";
import { Badge, Failure, Loading, Toasts } from "./lib/feedback.js";
import { SearchField, TextField } from "./lib/forms.js";
import { html, render, useEffect, useLayoutEffect, useState } from "./lib/preact.js";
import { ThemeButton } from "./lib/theme.js";

const METHODS = { get: "accent", post: "good", put: "care", patch: "care", delete: "bad" };
const SHOWN_CHARS_MAX = 100_000;

const refName = (schema) => schema.$ref.split("/").at(-1);
const resolved = (schema, all) => (schema?.$ref ? all[refName(schema)] : schema);
const plain = (text) => text?.replaceAll("`", "");
const contentOf = (part) => Object.entries(part?.content ?? {})[0] ?? [];

// A schema in one line; names of other schemas are links.
function type(schema = {}) {
  if (schema.$ref) return html`<a href=${`#${refName(schema)}`}>${refName(schema)}</a>`;
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map((each, at) => html`${at > 0 && " | "}${type(each)}`);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return html`list of ${type(schema.items)}`;
  if (schema.additionalProperties) return html`map of ${type(schema.additionalProperties)}`;
  return schema.type ?? "any";
}

const meaning = ({ in: place, description, schema }) => [place, plain(description ?? schema.description), schema.default !== undefined && schema.default !== null && `default ${JSON.stringify(schema.default)}`].filter(Boolean).join("; ");

function FieldTable({ label, rows }) {
  if (!rows.length) return null;
  return html`<div class="table-scroll" tabindex="0" role="group" aria-label=${label}><table>
    <thead><tr>${["Name", "Type", "Meaning"].map((title) => html`<th scope="col" key=${title}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.name}><td><code>${row.name}</code>${row.required && html` <span class="text-bad" title="required">*</span>`}</td><td class="wrap">${type(row.schema)}</td><td class="wrap muted">${meaning(row)}</td></tr>`)}</tbody>
  </table></div>`;
}

function Schema({ schema, label }) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, each]) => ({ name, schema: each, required: schema.required?.includes(name) }));
  return html`${schema.description && html`<p class="muted">${plain(schema.description)}</p>`}<${FieldTable} label=${label} rows=${rows} />`;
}

function TryIt({ path, parameters, cluster }) {
  const [values, setValues] = useState({ cluster });
  const [result, setResult] = useState(null);
  const query = new URLSearchParams(parameters.filter((each) => each.in === "query" && values[each.name]).map((each) => [each.name, values[each.name]]));
  const url = path.replace(/\{(\w+)\}/g, (whole, name) => (values[name] ? encodeURIComponent(values[name]) : whole)) + (query.size ? `?${query}` : "");
  const send = async (event) => {
    event.preventDefault();
    const response = await fetch(url).catch((error) => ({ statusText: error.message }));
    const text = (await response.text?.()) ?? "";
    setResult({ status: `${response.status ?? "No response:"} ${response.statusText}`, isGood: response.ok, text: (prettyJson(text) ?? text).slice(0, SHOWN_CHARS_MAX) });
  };
  return html`<form class="stack" onSubmit=${send}>
    ${parameters.length > 0 && html`<div class="form-grid">${parameters.map(({ name, required }) => html`<${TextField} key=${name} label=${name} value=${values[name] ?? ""} required=${required} onInput=${(value) => setValues({ ...values, [name]: value })} />`)}</div>`}
    <${Code} label="Command" wrap text=${`curl '${location.origin}${url}'`} />
    <div class="row"><button type="submit">Try it</button><span role="status">${result && html`<${Badge} kind=${result.isGood ? "good" : "bad"}>${result.status}<//>`}</span></div>
    ${result && html`<${Code} json label="Response" text=${result.text} />`}
  </form>`;
}

function Entry({ id, title, isOpen, children }) {
  const [open, setOpen] = useState(isOpen);
  useLayoutEffect(() => {
    if (!isOpen) return;
    setOpen(true);
    document.getElementById(id).scrollIntoView();
  }, [isOpen]);
  const toggle = (event) => {
    setOpen(event.currentTarget.open);
    if (event.currentTarget.open) history.replaceState(null, "", `#${id}`);
  };
  return html`<details id=${id} class="endpoint" open=${open} onToggle=${toggle}><summary>${title}</summary>${open && html`<div class="stack">${children}</div>`}</details>`;
}

function Endpoint({ method, path, operation, all, ...rest }) {
  const { parameters = [], requestBody, responses } = operation;
  const [media, { schema } = {}] = contentOf(Object.entries(responses).find(([code]) => code.startsWith("2"))?.[1]);
  const part = (title, each) => each && html`<h3>${title}: ${type(each)}</h3><${Schema} label=${title} schema=${resolved(each, all)} />`;
  const isStream = media && !media.includes("json");
  return html`${operation.description && html`<p>${plain(operation.description)}</p>`}
    <${FieldTable} label="Parameters" rows=${parameters} />
    ${part("Body", contentOf(requestBody)[1]?.schema)}${isStream ? html`<p class="muted">Response: a stream of ${media}</p>` : part("Response", schema)}
    ${method === "get" && !isStream && html`<${TryIt} ...${{ path, parameters, ...rest }} />`}`;
}

function useHash() {
  const read = () => decodeURIComponent(location.hash.slice(1));
  const [hash, setHash] = useState(read());
  useEffect(() => window.addEventListener("hashchange", () => setHash(read())), []);
  return hash;
}

function Body({ description, cluster }) {
  const [q, setQ] = useState(new URLSearchParams(location.search).get("q") ?? "");
  const hash = useHash();
  const all = description.components.schemas;
  const endpoints = Object.entries(description.paths).flatMap(([path, item]) => Object.entries(item).map(([method, operation]) => ({ method, path, operation })));
  const found = endpoints.filter(({ method, path, operation }) => `${method} ${path} ${operation.summary} ${operation.tags}`.toLowerCase().includes(q.toLowerCase()));
  const tags = [...Map.groupBy(found, ({ operation }) => operation.tags[0])];
  const search = (text) => {
    setQ(text);
    history.replaceState(null, "", text ? `?q=${encodeURIComponent(text)}` : location.pathname);
  };
  const section = (title, entries) => html`<section class="panel" key=${title} aria-labelledby=${`tag-${title}`}><h2 id=${`tag-${title}`}>${title}</h2>${entries}</section>`;
  return html`<nav class="row" aria-label="Sections"><${SearchField} label="Search endpoints" value=${q} onInput=${search} />${[...tags.map(([tag]) => tag), "schemas"].map((tag) => html`<a key=${tag} href=${`#tag-${tag}`}>${tag}</a>`)}</nav>
    ${tags.map(([tag, list]) => section(tag, list.map((each) => {
      const id = each.operation.operationId;
      const title = html`<${Badge} kind=${METHODS[each.method]}>${each.method.toUpperCase()}<//> <code>${each.path}</code> <span class="muted">${each.operation.summary}</span>`;
      return html`<${Entry} key=${id} id=${id} title=${title} isOpen=${hash === id}><${Endpoint} ...${each} all=${all} cluster=${cluster} /><//>`;
    })))}
    ${!found.length && html`<p>No endpoint matches “${q}”.</p>`}
    ${section("schemas", Object.entries(all).map(([name, schema]) => html`<${Entry} key=${name} id=${name} title=${html`<code>${name}</code>`} isOpen=${hash === name}><${Schema} label=${name} schema=${schema} /><//>`))}`;
}

function Docs() {
  const [state, setState] = useState({});
  const load = async () => {
    try {
      const [description, session] = await Promise.all(["openapi.json", "session"].map(async (name) => (await fetch(`/api/v1/${name}`)).json()));
      if (!description.paths) throw new Error(description.error?.message);
      setState({ description, cluster: session.clusters[0] });
    } catch (error) {
      setState({ error: { status: 1, message: "The description could not be read.", remedy: error.message } });
    }
  };
  useEffect(() => void load(), []);
  return html`<main class="docs page">
    <header class="page-head"><div class="page-title"><h1>REST API</h1><span class="page-note">riverrun ${state.description?.info?.version}</span></div>
      <div class="actions"><a href="/ui/">Console</a><a href="/api/v1/openapi.json">openapi.json</a><${ThemeButton} /></div></header>
    <p>Errors have <code>error.code</code>, <code>error.message</code> and <code>error.remedy</code>. Every write takes <code>dry_run</code> and responds with the command that does the same. A secure cluster needs a login: <code>curl -u USER</code>.</p>
    ${state.error ? html`<${Failure} error=${state.error} retry=${load} />` : state.description ? html`<${Body} ...${state} />` : html`<${Loading} />`}
  </main><${Toasts} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Docs} />`, root);
