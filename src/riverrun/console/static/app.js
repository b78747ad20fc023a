// The entry of the console: reads the session, then shows the login page or the frame with pages.

import { loadSession, session } from "./lib/state.js";
import { Failure, Loading } from "./lib/feedback.js";
import { html, render, useEffect, useState } from "./lib/preact.js";
import { link, navigate, route } from "./lib/router.js";
import { recoveries } from "./lib/api.js";
import { Shell } from "./lib/shell.js";
import "./lib/theme.js";
import Login from "./pages/login.js";

function App() {
  const [failure, setFailure] = useState(null);
  const load = () => loadSession().then(() => setFailure(null), setFailure);
  const retries = recoveries.value;
  const { cluster } = route.value;
  const { clusters = [], asked } = session.value ?? {};
  const isKnown = session.value && (clusters.length === 1 || asked === cluster);
  useEffect(() => {
    if (!isKnown) load();
  }, [retries, cluster, isKnown]);

  const first = clusters[0] ?? null;
  useEffect(() => {
    if (first && !cluster) navigate(link("overview", {}, {}, first), { replace: true });
  }, [first, cluster]);

  if (!isKnown) {
    return html`<main class="start">${failure ? html`<h1 class="hidden">riverrun</h1><${Failure} error=${failure} retry=${load} />` : html`<${Loading} />`}</main>`;
  }
  if (session.value.login_required && !session.value.user) return html`<${Login} key=${session.value.cluster} />`;
  return cluster && html`<${Shell} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
