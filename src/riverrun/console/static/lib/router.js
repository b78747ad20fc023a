// Routes and page state in the URL: /ui/{cluster}/{path}?{query}.
//
//   route.value                      { cluster, page, params, query, path }
//   link("topic", { topic: "a" })    the address of a page; a third argument gives query values
//   navigate(address)                go there; { replace: true } keeps the history short
//   useQuery("tab", "partitions")    [value, set]: one value of page state kept in the query
//   setQuery({ page: 2, q: null })   change several; null removes a value
//
// Plain <a href=${link(...)}> elements work: clicks are caught here.

import { pages } from "../pages/index.js";
import { computed, signal } from "./preact.js";

const ROOT = "/ui/";
const location_ = signal(window.location.pathname + window.location.search);

const patterns = pages.map((page) => ({ page, parts: page.path.split("/") }));

// A malformed escape stays as it is.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function match(path) {
  const parts = path.split("/").filter(Boolean);
  for (const { page, parts: wanted } of patterns) {
    if (wanted.length !== parts.length) continue;
    const params = {};
    const fits = wanted.every((part, index) => {
      if (!part.startsWith(":")) return part === parts[index];
      params[part.slice(1)] = decoded(parts[index]);
      return true;
    });
    if (fits) return { page, params };
  }
  return { page: null, params: {} };
}

export const route = computed(() => {
  const url = new URL(location_.value, window.location.origin);
  const query = Object.fromEntries(url.searchParams);
  if (!url.pathname.startsWith(ROOT)) return { cluster: null, page: null, params: {}, query, path: "" };
  const [cluster, ...rest] = url.pathname.slice(ROOT.length).split("/");
  const path = rest.filter(Boolean).join("/") || "overview";
  return { cluster: decoded(cluster) || null, ...match(path), query, path };
});

export function link(id, params = {}, query = {}, cluster = route.value.cluster) {
  const page = pages.find((each) => each.id === id);
  const path = page.path.replace(/:(\w+)/g, (_, name) => encodeURIComponent(params[name]));
  return `${ROOT}${encodeURIComponent(cluster)}/${path}${search(query)}`;
}

function search(query) {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

export function navigate(address, { replace = false } = {}) {
  if (address === window.location.pathname + window.location.search) return;
  const pathBefore = window.location.pathname;
  window.history[replace ? "replaceState" : "pushState"](null, "", address);
  location_.value = window.location.pathname + window.location.search;
  if (window.location.pathname !== pathBefore) window.scrollTo(0, 0);
}

export function setQuery(changes, { replace = true } = {}) {
  navigate(window.location.pathname + search({ ...route.value.query, ...changes }), { replace });
}

export function useQuery(name, otherwise = "") {
  const value = route.value.query[name] ?? otherwise;
  const set = (next, options) => setQuery({ [name]: next === otherwise ? null : next }, options);
  return [value, set];
}

window.addEventListener("popstate", () => {
  location_.value = window.location.pathname + window.location.search;
});

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!anchor || !plain || event.defaultPrevented || anchor.target || anchor.hasAttribute("download")) return;
  const url = new URL(anchor.href);
  if (url.origin !== window.location.origin || !url.pathname.startsWith(ROOT)) return;
  event.preventDefault();
  navigate(url.pathname + url.search);
});
