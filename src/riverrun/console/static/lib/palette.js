// The command palette (Ctrl-K or Cmd-K): pages, topics, groups, nodes and actions by name.
//
//   openPalette()
//   registerCommand({ title, words, run })     returns a function that removes it; pages call it in
//                                              useEffect for actions that make sense where they are

import { pages } from "../pages/index.js";
import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { Icon } from "./icons.js";
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "./preact.js";
import { link, navigate, route } from "./router.js";
import { nextTheme } from "./theme.js";

const FOUND_MAX = 6;
const SEARCH_DELAY_MS = 120;

const commands = [];

export function registerCommand(command) {
  commands.push(command);
  return () => commands.splice(commands.indexOf(command), 1);
}

registerCommand({ title: "Switch theme", words: "dark light system", run: nextTheme });

function matches(text, entry) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const whole = `${entry.title} ${entry.words ?? ""}`.toLowerCase();
  return words.every((word) => whole.includes(word));
}

function fixedEntries(text) {
  const listed = pages
    .filter((page) => page.section)
    .map((page) => ({ kind: "Page", icon: page.icon, title: page.title, words: page.words, run: () => navigate(link(page.id)) }));
  const actions = commands.map((command) => ({ kind: "Action", icon: "play", ...command }));
  const isNamed = (entry) => entry.title.toLowerCase().includes(text.trim().toLowerCase());
  return [...listed, ...actions].filter((entry) => matches(text, entry)).sort((a, b) => isNamed(b) - isNamed(a));
}

async function foundEntries(text, signal) {
  const query = { q: text, limit: FOUND_MAX };
  const [topics, groups] = await Promise.allSettled([api.get("topics", query, signal), api.get("groups", query, signal)]);
  const items = (result) => (result.status === "fulfilled" ? result.value.items : []);
  return [
    ...items(topics).map((row) => ({ kind: "Topic", icon: "topics", title: row.name, run: () => navigate(link("topic", { topic: row.name })) })),
    ...items(groups).map((row) => ({ kind: "Group", icon: "groups", title: row.group, run: () => navigate(link("group", { group: row.group })) })),
  ];
}

function useEntries(text) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    if (!text.trim() || !route.peek().cluster) {
      setFound([]);
      return undefined;
    }
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      const entries = await foundEntries(text.trim(), abort.signal);
      if (!abort.signal.aborted) setFound(entries);
    }, SEARCH_DELAY_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);
  return [...fixedEntries(text), ...found];
}

function Palette({ close }) {
  const dialog = useRef(null);
  const list = useRef(null);
  const id = useId();
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const entries = useEntries(text);
  const selected = Math.min(at, entries.length - 1);

  useLayoutEffect(() => dialog.current.showModal(), []);
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [selected]);

  const run = (entry) => {
    close();
    entry?.run();
  };
  const onKey = (event) => {
    const next = { ArrowDown: selected + 1, ArrowUp: selected - 1 }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      setAt((next + entries.length) % Math.max(1, entries.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(entries[selected]);
    }
  };
  return html`<dialog ref=${dialog} class="palette" aria-label="Command palette" onClose=${close} onMouseDown=${(event) => event.target === dialog.current && close()}>
    <div class="palette-input">
      <${Icon} name="search" />
      <input type="text" role="combobox" aria-expanded="true" aria-controls=${id} aria-autocomplete="list"
        aria-label="Search pages, topics, groups and actions" aria-activedescendant=${entries.length ? `${id}-${selected}` : undefined}
        placeholder="Search pages, topics, groups and actions" spellcheck=${false} autocomplete="off" value=${text} onKeyDown=${onKey}
        onInput=${(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }} />
      <kbd>Esc</kbd>
    </div>
    <div id=${id} ref=${list} role="listbox" aria-label="Results" class="palette-list">
      ${entries.map((entry, index) => html`<div key=${`${entry.kind} ${entry.title}`} id=${`${id}-${index}`} role="option" aria-selected=${index === selected ? "true" : "false"}
        onMouseMove=${() => setAt(index)} onClick=${() => run(entry)}>
        <${Icon} name=${entry.icon ?? "play"} /><span class="palette-title">${entry.title}</span><span class="muted">${entry.kind}</span>
      </div>`)}
    </div>
    ${!entries.length && html`<p class="palette-none muted">Nothing found for “${text}”.</p>`}
  </dialog>`;
}

export function openPalette() {
  if (!document.querySelector("dialog[open]")) openDialog(Palette);
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey) return;
  event.preventDefault();
  openPalette();
});
