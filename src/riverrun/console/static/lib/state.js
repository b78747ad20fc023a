// State shared by all pages, and live data.
//
//   session.value          the answer of GET /session for the cluster of the page, or null before the
//                          first; `asked` is that cluster. Each cluster has its own login.
//   canWrite.value         false when the console was started read-only: hide actions
//   live.value             false while the user has paused the refresh
//   useResource("topics", { limit: 50 }, { every: 5000 })
//       { data, error, loading, refresh }: reads again every so many ms while the tab is visible,
//       after actions (call `changed()`), and when a lost connection is back. While new data loads,
//       the old data stays; an error after a success keeps the old data too.

import { api, loginRequired, recoveries, request } from "./api.js";
import { computed, effect, signal, useCallback, useEffect, useRef, useState } from "./preact.js";
import { route } from "./router.js";

export const REFRESH_MS = 10_000;

export const session = signal(null);
export const canWrite = computed(() => !session.value?.read_only);
export const live = signal(true);
const visible = signal(document.visibilityState !== "hidden");
const changes = signal(0);

document.addEventListener("visibilitychange", () => {
  visible.value = document.visibilityState !== "hidden";
});

// Read all open resources again, after an action has changed the cluster.
export function changed() {
  changes.value++;
}

export async function loadSession() {
  const asked = route.peek().cluster;
  session.value = { ...(await api.get("/session", { cluster: asked })), asked };
  return session.value;
}

export async function login(user, password, mechanism) {
  await api.post("/session", { user, password, cluster: session.peek().cluster, ...(mechanism && { mechanism }) });
  await loadSession();
}

export async function logout() {
  await api.delete("/session");
  await loadSession();
}

let logins = loginRequired.peek();
effect(() => {
  if (loginRequired.value === logins) return;
  logins = loginRequired.value;
  if (session.peek()) session.value = { ...session.peek(), login_required: true, user: null };
});

export function useResource(path, query = {}, { every = REFRESH_MS, enabled = true } = {}) {
  const key = JSON.stringify([route.value.cluster, path, query]);
  const [state, setState] = useState({ key: null, path: null, data: null, error: null, loading: enabled });
  const abort = useRef(null);

  const refresh = useCallback(async () => {
    abort.current?.abort();
    const own = new AbortController();
    abort.current = own;
    setState((old) => ({ ...old, loading: true }));
    try {
      const data = await request("GET", path, { query, signal: own.signal });
      if (!own.signal.aborted) setState({ key, path, data, error: null, loading: false });
    } catch (error) {
      if (own.signal.aborted) return;
      setState((old) => ({ key, path, data: old.path === path ? old.data : null, error, loading: false }));
    }
  }, [key]);

  const signals = [visible.value, live.value, changes.value, recoveries.value];
  useEffect(() => {
    if (!enabled) return undefined;
    if (visible.peek()) refresh();
    if (!every || !live.peek() || !visible.peek()) return undefined;
    const timer = setInterval(refresh, every);
    return () => clearInterval(timer);
  }, [key, enabled, every, ...signals]);
  useEffect(() => () => abort.current?.abort(), []);

  // Data of another path is never shown; data of another query stays until the new data arrives.
  const own = state.path === null || state.path === path;
  return {
    data: own ? state.data : null,
    error: own ? state.error : null,
    loading: state.loading || state.key !== key,
    refresh,
  };
}
