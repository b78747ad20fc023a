// The page of the REST API, from its OpenAPI description: endpoints by tag with parameters and
// schemas, and a form that tries reads. The search is ?q=, an open entry is the #hash.

import { Code } from "./lib/code.js";
import { Badge, Failure, Loading, Toasts } from "./lib/feedback.js";
import { SearchField, TextField } from "./lib/forms.js";
import { html, render, useEffect, useLayoutEffect, useState } from "./lib/preact.js";
import { ThemeButton } from "./lib/theme.js";

const METHODS = { get: "accent", post: "good", put: "care", patch: "care", delete: "bad" };
const SHOWN_CHARS_MAX = 100_000;

const refName = (ref) => ref.split("/").at(-1);
const slug = (method, path) => `${method}-${path.replace(/^\/api\/v1\/(clusters\/\{cluster\}\/)?/, "").replace(/[^\w]+/g, "-")}`;

// A schema in one line; names of other schemas are links.
function type(schema) {
  if (!schema || Object.keys(schema).length === 0) return "any";
  if (schema.$ref) return html`<a href=${`#schema-${refName(schema.$ref)}`}>${refName(schema.$ref)}</a>`;
  const several = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (several) return several.map((each, at) => html`${at > 0 && " | "}${type(each)}`);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return html`list of ${type(schema.items)}`;
  if (schema.type === "object") return schema.additionalProperties ? html`map of ${type(schema.additionalProperties)}` : "object";
  return `${schema.type ?? "any"}${schema.format ? ` (${schema.format})` : ""}`;
}

function FieldTable({ label, rows }) {
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label=${label}><table>
    <caption class="hidden">${label}</caption>
    <thead><tr>${["Name", "Type", "Meaning"].map((title) => html`<th scope="col" key=${title}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map(({ name, schema, required, place, description }) => html`<tr key=${name}>
      <td><code>${name}</code>${required && html` <span class="text-bad" title="required">*</span>`}</td><td class="wrap">${type(schema)}</td>
      <td class="wrap muted">${[place, description ?? schema?.description, schema && "default" in schema ? `Default: ${JSON.stringify(schema.default)}.` : null].filter(Boolean).join(" · ")}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

const fieldsOf = (schema) => Object.entries(schema.properties ?? {}).map(([name, each]) => ({ name, schema: each, required: schema.required?.includes(name) }));

function Schema({ title, schema, all }) {
  const found = schema?.$ref ? all[refName(schema.$ref)] : schema;
  if (!found) return null;
  const rows = fieldsOf(found);
  return html`<h3>${title}: ${type(schema)}</h3>${found.description && html`<p class="muted">${found.description}</p>`}${rows.length > 0 && html`<${FieldTable} label=${title} rows=${rows} />`}`;
}

function TryIt({ path, parameters, cluster }) {
  const [values, setValues] = useState({ cluster });
  const [result, setResult] = useState(null);
  const inPath = parameters.filter((each) => each.in === "path");
  const query = new URLSearchParams(parameters.filter((each) => each.in === "query" && values[each.name]).map((each) => [each.name, values[each.name]]));
  const url = `${path.replace(/\{(\w+)\}/g, (whole, name) => (values[name] ? encodeURIComponent(values[name]) : whole))}${query.size ? `?${query}` : ""}`;
  const ready = inPath.every((each) => values[each.name]);
  const send = async (event) => {
    event.preventDefault();
    const began = performance.now();
    try {
      const response = await fetch(url, { credentials: "same-origin" });
      const text = await response.text();
      setResult({ status: `${response.status} ${response.statusText}`, ms: Math.round(performance.now() - began), ok: response.ok, text: pretty(text).slice(0, SHOWN_CHARS_MAX) });
    } catch (error) {
      setResult({ status: "No response", ms: Math.round(performance.now() - began), ok: false, text: error.message });
    }
  };
  return html`<form class="stack" onSubmit=${send} aria-label="Try it">
    ${parameters.length > 0 && html`<div class="form-grid">${parameters.map((each) => html`<${TextField} key=${each.name} label=${each.name} value=${values[each.name] ?? ""} required=${each.in === "path"} onInput=${(value) => setValues({ ...values, [each.name]: value })} />`)}</div>`}
    <${Code} label="Command" wrap text=${`curl '${location.origin}${url}'`} />
    <div class="row"><button type="submit" disabled=${!ready}>Try it</button>
      <span role="status">${result && html`<${Badge} kind=${result.ok ? "good" : "bad"}>${result.status}<//> <span class="muted">${result.ms} ms</span>`}</span></div>
    ${result && html`<${Code} json label="Response" text=${result.text} />`}
  </form>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Endpoint({ endpoint: { id, method, path, operation }, all, cluster, open }) {
  const { parameters = [], requestBody, responses = {} } = operation;
  const content = (part) => Object.entries(part?.content ?? {})[0] ?? [];
  const [status, success] = Object.entries(responses).find(([code]) => code.startsWith("2")) ?? [];
  const [media, { schema } = {}] = content(success);
  const streams = media && !media.includes("json");
  return html`<details id=${id} class="endpoint" open=${open} onToggle=${(event) => event.currentTarget.open && history.replaceState(null, "", `#${id}`)}>
    <summary><${Badge} kind=${METHODS[method]}>${method.toUpperCase()}<//> <code>${path}</code> <span class="muted">${operation.summary}</span></summary>
    <div class="stack">
      ${operation.description && html`<p>${operation.description}</p>`}
      ${parameters.length > 0 && html`<h3>Parameters</h3><${FieldTable} label="Parameters" rows=${parameters.map((each) => ({ ...each, place: each.in }))} />`}
      <${Schema} title="Body" schema=${content(requestBody)[1]?.schema} all=${all} />
      <${Schema} title=${`Response ${status ?? ""}`} schema=${schema} all=${all} />
      ${streams && html`<p class="muted">A stream of ${media}.</p>`}
      ${method === "get" && !streams && html`<${TryIt} ...${{ path, parameters, cluster }} />`}
    </div>
  </details>`;
}

function endpointsOf(description) {
  const found = Object.entries(description.paths).flatMap(([path, item]) =>
    Object.entries(item).filter(([method]) => method in METHODS).map(([method, operation]) => ({ id: slug(method, path), method, path, operation, tag: operation.tags?.[0] ?? "other" })));
  return found;
}

function useHash() {
  const [hash, setHash] = useState(decodeURIComponent(location.hash.slice(1)));
  useEffect(() => {
    const changed = () => setHash(decodeURIComponent(location.hash.slice(1)));
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  useLayoutEffect(() => document.getElementById(hash)?.scrollIntoView(), [hash]);
  return hash;
}

function Body({ description, cluster }) {
  const [q, setQ] = useState(new URLSearchParams(location.search).get("q") ?? "");
  const hash = useHash();
  const all = description.components?.schemas ?? {};
  const wanted = q.toLowerCase();
  const found = endpointsOf(description).filter((each) => `${each.method} ${each.path} ${each.operation.summary} ${each.tag}`.toLowerCase().includes(wanted));
  const tags = [...Map.groupBy(found, (each) => each.tag)];
  const search = (text) => {
    setQ(text);
    history.replaceState(null, "", text ? `?q=${encodeURIComponent(text)}` : location.pathname);
  };
  return html`<nav class="toolbar" aria-label="Tags"><${SearchField} label="Search endpoints" value=${q} onInput=${search} />${tags.map(([tag]) => html`<a key=${tag} href=${`#tag-${tag}`}>${tag}</a>`)}<a href="#schemas">schemas</a></nav>
    ${tags.map(([tag, list]) => html`<section class="panel" key=${tag} aria-label=${tag}><h2 id=${`tag-${tag}`}>${tag}</h2>${list.map((each) => html`<${Endpoint} key=${each.id} endpoint=${each} all=${all} cluster=${cluster} open=${each.id === hash} />`)}</section>`)}
    ${!found.length && html`<p class="panel">No endpoint matches “${q}”.</p>`}
    <section class="panel" aria-label="Schemas"><h2 id="schemas">Schemas</h2>
      ${Object.entries(all).map(([name, schema]) => html`<details key=${name} id=${`schema-${name}`} class="endpoint" open=${hash === `schema-${name}`}><summary><code>${name}</code></summary><div class="stack"><p class="muted">${schema.description}</p><${FieldTable} label=${name} rows=${fieldsOf(schema)} /></div></details>`)}
    </section>`;
}

async function read(path) {
  const response = await fetch(path, { credentials: "same-origin" });
  if (!response.ok) throw new Error(`${path} responded ${response.status}.`);
  return response.json();
}

function Docs() {
  const [state, setState] = useState({});
  const load = () => Promise.all([read("/api/v1/openapi.json"), read("/api/v1/session").catch(() => null)]).then(
    ([description, session]) => setState({ description, cluster: session?.clusters?.[0] ?? "" }),
    (error) => setState({ error: { status: 1, message: "The description could not be read.", remedy: error.message } }));
  useEffect(() => void load(), []);
  return html`<main class="docs page">
    <header class="page-head"><div class="page-title"><h1>REST API</h1><span class="page-note">${state.description?.info?.version}</span></div>
      <div class="actions"><a href="/ui/">Console</a><a href="/api/v1/openapi.json">openapi.json</a><${ThemeButton} /></div></header>
    <p>All answers are JSON. Errors have <code>error.code</code>, <code>error.message</code> and <code>error.remedy</code>. Every write takes <code>dry_run</code> and answers with the command that does the same.</p>
    ${state.error && html`<${Failure} error=${state.error} retry=${load} />`}
    ${!state.error && !state.description && html`<${Loading} />`}
    ${state.description && html`<${Body} ...${state} />`}
  </main><${Toasts} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Docs} />`, root);
