// The frame around all pages: navigation, header, banner of a lost connection, and page loading.

import { pages, sections, titleOf } from "../pages/index.js";
import { connection } from "./api.js";
import { Dialogs } from "./dialog.js";
import { Empty, Failure, Loading, Toasts } from "./feedback.js";
import { Icon } from "./icons.js";
import { Page } from "./layout.js";
import { openPalette } from "./palette.js";
import { html, useEffect, useErrorBoundary, useState } from "./preact.js";
import { link, navigate, route } from "./router.js";
import { live, logout, session, useResource } from "./state.js";
import { ThemeButton } from "./theme.js";

const HEALTH_MS = 5_000;

function Brand() {
  return html`<a class="brand" href=${link("overview")}>
    <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">
      <path class="brand-1" d="M2 8c4-5 7 4 11 0s6-3 9-1" /><path class="brand-2" d="M2 13c4-5 7 4 11 0s6-3 9-1" /><path class="brand-3" d="M2 18c4-5 7 4 11 0s6-3 9-1" />
    </svg>
    riverrun
  </a>`;
}

export function ClusterPicker() {
  const { cluster } = route.value;
  const names = session.value?.clusters ?? [];
  if (names.length < 2) return null;
  return html`<label class="cluster-picker"><span class="hidden">Cluster</span>
    <select value=${cluster} onChange=${(event) => navigate(link("overview", {}, {}, event.currentTarget.value))}>
      ${names.map((name) => html`<option key=${name} value=${name} selected=${name === cluster}>${name}</option>`)}
    </select>
  </label>`;
}

function Navigation() {
  const { page } = route.value;
  const top = page && (page.section ? page : pages.find((each) => each.section && page.path.startsWith(`${each.path}/`)));
  return html`<nav class="side" id="navigation" aria-label="Main">
    <${Brand} />
    <${ClusterPicker} />
    ${sections.map((section) => html`<div class="side-section" key=${section}>
      <span class="side-title" id=${`section-${section}`}>${section}</span>
      <ul aria-labelledby=${`section-${section}`}>
        ${pages.filter((each) => each.section === section).map((each) => html`<li key=${each.id}>
          <a href=${link(each.id)} aria-current=${each === top ? (each === page ? "page" : "true") : undefined}><${Icon} name=${each.icon} />${each.title}</a>
        </li>`)}
      </ul>
    </div>`)}
    <div class="side-foot">
      <a href="/api/v1/docs" target="_blank" rel="noopener">REST API</a>
      <span class="muted">${session.value?.version ? `v${session.value.version}` : ""}</span>
    </div>
  </nav>`;
}

function Breadcrumbs() {
  const { page, params } = route.value;
  const chain = [];
  for (let each = page; each; each = pages.find((other) => other.id === each.parent)) chain.unshift(each);
  return html`<nav class="crumbs" aria-label="Breadcrumbs"><ol>
    ${chain.map((each, index) => html`<li key=${each.id}>
      ${index < chain.length - 1 ? html`<a href=${link(each.id, params)}>${titleOf(each, params)}</a>` : html`<span aria-current="page">${titleOf(each, params)}</span>`}
    </li>`)}
  </ol></nav>`;
}

const HEALTH_WORDS = { good: "Healthy", care: "Needs care", bad: "Failing" };

function Health() {
  const { data } = useResource("overview", {}, { every: HEALTH_MS });
  const lost = connection.value.state !== "good";
  const level = lost ? "bad" : data?.health?.level;
  const word = lost ? "Connection lost" : level ? HEALTH_WORDS[level] : "…";
  return html`<a class="health ${level ?? ""}" href=${link("overview")} title=${lost ? word : data?.health?.sentence}>
    <span class="dot" aria-hidden="true"></span><span>${word}</span>
  </a>`;
}

function LiveButton() {
  const label = live.value ? "Pause live refresh" : "Resume live refresh";
  return html`<button type="button" class="ghost" aria-pressed=${live.value ? "true" : "false"} aria-label=${label} title=${label} onClick=${() => (live.value = !live.value)}>
    <${Icon} name=${live.value ? "pause" : "play"} size=${14} /><span class="wide-only">${live.value ? "Live" : "Paused"}</span>
  </button>`;
}

function UserButton() {
  const user = session.value?.user;
  if (!user) return null;
  return html`<span class="user"><${Icon} name="users" size=${14} /><span class="wide-only">${user}</span>
    <button type="button" class="ghost" onClick=${logout}>Log out</button></span>`;
}

function Header() {
  return html`<header class="top">
    <button type="button" class="ghost icon-only narrow-only" aria-label="Open navigation" popovertarget="narrow-navigation"><${Icon} name="menu" /></button>
    <${Breadcrumbs} />
    <button type="button" class="open-palette" onClick=${openPalette} aria-label="Search everything (Ctrl-K)"><${Icon} name="search" size=${14} /><span>Search everything</span><kbd>Ctrl K</kbd></button>
    <${Health} /><${LiveButton} /><${ThemeButton} /><${UserButton} />
  </header>`;
}

function Banner() {
  const { state } = connection.value;
  if (state === "good") return null;
  const text =
    state === "lost"
      ? "Connection lost, retrying. The node that serves this page does not respond; the data below is the last it sent."
      : "The cluster does not respond, retrying. The node that serves this page runs, but reaches no leader.";
  return html`<div class="banner" role="alert"><span class="spinner" aria-hidden="true"></span>${text}</div>`;
}

function Missing() {
  return html`<${Page} title="Page not found"><section class="panel">
    <${Empty} title="There is no page at this address" action=${html`<a class="button" href=${link("overview")}>Open the overview</a>`}>
      Check the address, or press Ctrl-K and type a name.
    <//></section><//>`;
}

const loaded = new Map();

function CurrentPage() {
  const { page, params, query } = route.value;
  const [, show] = useState(0);
  const [failure, setFailure] = useState(null);
  const [crash, resetCrash] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    if (!page || loaded.has(page.id)) return undefined;
    let current = true;
    setFailure(null);
    page.load().then(
      (module) => {
        loaded.set(page.id, module.default);
        if (current) show((serial) => serial + 1);
      },
      () => current && setFailure({ status: 1, message: "This page could not be loaded.", remedy: "The node may have been replaced by another version. Reload the browser tab." }),
    );
    return () => (current = false);
  }, [page?.id]);
  useEffect(() => crash && resetCrash(), [page?.id]);
  if (!page) return html`<${Missing} />`;
  if (crash) return html`<${Page} title=${titleOf(page, params)}><${Failure} error=${{ status: 1, message: "This page failed.", remedy: `${crash.message}. Reload the browser tab; report it if it happens again.` }} retry=${resetCrash} /><//>`;
  if (failure) return html`<${Page} title=${titleOf(page, params)}><${Failure} error=${failure} retry=${() => window.location.reload()} /><//>`;
  const Component = loaded.get(page.id);
  if (!Component) return html`<${Page} title=${titleOf(page, params)}><section class="panel"><${Loading} /></section><//>`;
  return html`<${Component} key=${`${route.value.cluster} ${page.id} ${JSON.stringify(params)}`} params=${params} query=${query} />`;
}

export function Shell() {
  return html`<a class="skip" href="#main">Skip to content</a>
    <div class="frame">
      <${Navigation} />
      <div class="body">
        <${Header} />
        <${Banner} />
        <main id="main" tabindex="-1"><${CurrentPage} /></main>
      </div>
    </div>
    <div id="narrow-navigation" popover="auto" class="narrow-navigation"><${NarrowNavigation} /></div>
    <${Dialogs} /><${Toasts} />`;
}

function NarrowNavigation() {
  const { page } = route.value;
  const close = () => document.getElementById("narrow-navigation").hidePopover();
  return html`<nav aria-label="Main, narrow"><ul>
    ${pages.filter((each) => each.section).map((each) => html`<li key=${each.id}>
      <a href=${link(each.id)} onClick=${close} aria-current=${each === page ? "page" : undefined}><${Icon} name=${each.icon} />${each.title}</a>
    </li>`)}
  </ul></nav>`;
}
