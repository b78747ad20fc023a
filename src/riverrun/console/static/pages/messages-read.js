// Reads messages for the browser: pages in both directions, the live tail, and the JavaScript
// filter, which runs in a Web Worker (workers/filter.js).
//
//   useScan(topic, selection, code, active)    one page; with a filter it searches on until it is full
//   useTail(topic, selection, code, active)    the newest messages as they are written

import { address, api, path } from "../lib/api.js";
import { useEffect, useRef, useState } from "../lib/preact.js";

const FILTER_MS = 2_000;
const FILTERED_PAGE = 500;
const PAGES_MAX = 20; // of one search; "Search on" starts the next
const TAIL_FLUSH_MS = 400;
export const ROWS_MAX = 1_000;

const textOf = (payload) => payload?.text ?? null;
const slim = ({ partition, offset, timestamp_ms: timestamp, size, key, value, headers }) => ({
  isCut: [key, value, ...headers.map((each) => each.value)].some((payload) => payload?.truncated),
  message: { partition, offset, timestamp, size, key: textOf(key), value: textOf(value), headers: Object.fromEntries(headers.map((each) => [each.name, textOf(each.value)])) },
});
const failed = (message, remedy) => ({ status: 1, message, remedy });

// One worker. A call that takes too long ends it; the next call starts another.
class FilterRunner {
  worker = null;

  run(code, messages) {
    if (!code) return { messages, failures: 0, cut: 0 };
    const worker = (this.worker ??= new Worker(new URL("../workers/filter.js", import.meta.url)));
    const { port1, port2 } = new MessageChannel();
    return new Promise((resolve, reject) => {
      const end = (...reason) => {
        if (this.worker === worker) this.stop();
        reject(failed(...reason));
      };
      const timer = setTimeout(end, FILTER_MS, `The filter took longer than ${FILTER_MS / 1000} seconds for one page and was stopped.`, "Make it simpler.");
      worker.onerror = () => end("The browser could not run the filter.", "Reload the page.");
      port1.onmessage = ({ data: { error, kept, ...counts } }) => {
        clearTimeout(timer);
        if (error) reject(failed(`The filter is not valid JavaScript: ${error}`, 'Example: value.amount > 100 && key.startsWith("a")'));
        else resolve({ ...counts, messages: kept.map((index) => messages[index]) });
      };
      worker.postMessage({ code, messages: messages.map(slim) }, [port2]);
    });
  }

  stop() {
    this.worker?.terminate();
    this.worker = null;
  }
}

function useRunner() {
  const runner = useRef(null);
  runner.current ??= new FilterRunner();
  useEffect(() => () => runner.current.stop(), []);
  return runner.current;
}

const NOTHING = { rows: [], error: null, loading: true, older: null, newer: null, scanned: 0, failures: 0, failure: null, cut: 0, more: null };

export function useScan(topic, selection, code, active) {
  const runner = useRunner();
  const [state, setState] = useState(NOTHING);
  const [serial, setSerial] = useState(0);
  const abort = useRef(null);
  const limit = Number(selection.limit);
  const [ahead, behind] = selection.direction === "older" ? ["older", "newer"] : ["newer", "older"];

  const search = async (start) => {
    abort.current?.abort();
    const { signal } = (abort.current = new AbortController());
    let now = { ...start, loading: true, error: null };
    setState(now);
    try {
      for (let pages = 0; pages < PAGES_MAX && now.loading; pages++) {
        const page = await api.get(path`topics/${topic}/messages`, { ...selection, ...(code ? { limit: FILTERED_PAGE, whole: true } : { limit }), cursor: now.more ?? selection.cursor }, signal);
        const found = await runner.run(code, page.items);
        if (signal.aborted) return;
        const rows = [...now.rows, ...found.messages];
        const isLast = rows.length >= limit || !page[ahead] || (!code && page.complete);
        now = {
          ...now,
          rows,
          [ahead]: page[ahead],
          [behind]: now.more ? now[behind] : page[behind],
          scanned: now.scanned + page.scanned,
          failures: now.failures + found.failures,
          failure: now.failure ?? found.failure,
          cut: now.cut + found.cut,
          more: isLast ? null : page[ahead],
          loading: !isLast,
        };
        setState(now);
      }
      setState({ ...now, loading: false });
    } catch (error) {
      if (!signal.aborted) setState({ ...now, error, loading: false });
    }
  };

  useEffect(() => {
    if (active) search(NOTHING);
    return () => abort.current?.abort();
  }, [JSON.stringify([topic, selection, code, active, serial])]);

  return {
    ...state,
    refresh: () => setSerial((old) => old + 1),
    searchOn: () => search({ ...state, rows: state.rows.slice(-ROWS_MAX) }),
    stop: () => {
      abort.current?.abort();
      setState((old) => ({ ...old, loading: false }));
    },
  };
}

// Why the server refuses a live view. The browser does not tell, so the request is sent again.
async function refusal(url) {
  const abort = new AbortController();
  try {
    const response = await fetch(url, { signal: abort.signal });
    if (!response.ok) return { status: response.status, ...(await response.json()).error };
  } catch {
    // The node does not respond.
  } finally {
    abort.abort();
  }
  return failed("The live view ended.", "The node may have stopped. Pause and resume to try again.");
}

export function useTail(topic, { partition, filter, format }, code, active) {
  const runner = useRunner();
  const [state, setState] = useState({ rows: [], status: "connecting", sample: null, error: null, failures: 0, cut: 0 });
  const query = { partition, filter, format };
  useEffect(() => {
    if (!active) return undefined;
    let waiting = [];
    let isFiltering = false;
    const set = (changes) => setState((old) => ({ ...old, ...changes }));
    set({ status: "connecting", error: null, failures: 0, cut: 0 });
    const url = address(path`topics/${topic}/tail`, query);
    const source = new EventSource(url);
    const on = (name, run) => source.addEventListener(name, ({ data }) => run(data && JSON.parse(data)));
    const close = (error = null) => {
      source.close();
      set({ status: "ended", error });
    };
    source.onopen = () => set({ status: "live" });
    source.onerror = () => (source.readyState === EventSource.CLOSED ? refusal(url).then(close) : set({ status: "connecting" }));
    on("message", (message) => (waiting = [...waiting.slice(1 - ROWS_MAX), message]));
    on("sample", (sample) => set({ sample }));
    on("end", ({ reason }) => close(failed(reason, "Pause and resume to go on.")));
    const flush = setInterval(async () => {
      if (!waiting.length || isFiltering) return;
      const taken = waiting;
      waiting = [];
      isFiltering = true;
      try {
        const { messages, failures, cut } = await runner.run(code, taken);
        setState((old) => ({ ...old, rows: [...messages.reverse(), ...old.rows].slice(0, ROWS_MAX), failures: old.failures + failures, cut: old.cut + cut }));
      } catch (error) {
        close(error);
      }
      isFiltering = false;
    }, TAIL_FLUSH_MS);
    return () => {
      source.close();
      clearInterval(flush);
    };
  }, [JSON.stringify([topic, query, code, active])]);
  return { ...state, clear: () => setState((old) => ({ ...old, rows: [] })) };
}
