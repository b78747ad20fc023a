// Dialogs and actions.
//
//   openDialog(Component, props)     shows a component; it receives props and `close`
//   <${Dialog} title="..." close=${close} footer=${...} wide>content<//>
//   <${ActionDialog} ... />          anything that changes the cluster: form, dry run, CLI command,
//       confirmation, and the error with its remedy. Its props:
//         title, action      the texts of the dialog and of its button
//         send(dryRun, shown)   sends the request and returns the response, which has `command`;
//                            `shown` is the response of the dry run
//         dryRun             true: preview the request when the form changes (`inputs` is its state)
//         call               instead of these three: ["post", path, body], with dry_run added
//         inputs             values of the form; the dry run is repeated when they change
//         ready              false while the form is incomplete
//         approved(response) false until the user has confirmed what the dry run shows
//         danger, typed      a red button; a text that must be typed before it is enabled
//         preview(response)  content shown for the response of the dry run
//         success            the text of the toast, or a function of the response
//         after(response)    called after success, after all open pages were told to reload
//   <${Menu} label="Actions" items=${[{ label, run, danger, disabled }]} />   a popover menu; or with
//       text and children: a button with a text that shows them

import { api } from "./api.js";
import { Command } from "./code.js";
import { prose, toast } from "./feedback.js";
import { TextField } from "./forms.js";
import { Icon } from "./icons.js";
import { html, signal, useEffect, useId, useLayoutEffect, useRef, useState } from "./preact.js";
import { changed } from "./state.js";

const DRY_RUN_DELAY_MS = 300;

const opened = signal([]);
let serial = 0;

export function openDialog(Component, props = {}) {
  const id = ++serial;
  const close = () => (opened.value = opened.value.filter((each) => each.id !== id));
  opened.value = [...opened.value, { id, Component, props, close }];
  return close;
}

export function Dialogs() {
  return opened.value.map(({ id, Component, props, close }) => html`<${Component} key=${id} ...${props} close=${close} />`);
}

export function Dialog({ title, close, footer, wide = false, children }) {
  const element = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.focus?.();
  }, []);
  const onBackdrop = (event) => event.target === element.current && close();
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onClose=${close} onMouseDown=${onBackdrop}>
    <div class="dialog">
      <header>
        <h2 id=${id}>${title}</h2>
        <button type="button" class="ghost icon-only" aria-label="Close" onClick=${close}><${Icon} name="close" /></button>
      </header>
      <div class="dialog-body">${children}</div>
      ${footer && html`<footer>${footer}</footer>`}
    </div>
  </dialog>`;
}

export function DialogError({ error }) {
  if (!error) return null;
  return html`<div class="failure small" role="alert">
    <${Icon} name="error" />
    <div><p class="failure-title">${error.message}</p>${error.remedy && html`<p class="muted">${prose(error.remedy)}</p>`}</div>
  </div>`;
}

function useDryRun(wanted, send, inputs) {
  const [state, setState] = useState({ response: null, error: null, loading: wanted });
  useEffect(() => {
    if (!wanted) {
      setState({ response: null, error: null, loading: false });
      return undefined;
    }
    let current = true;
    setState((old) => ({ ...old, loading: true }));
    const timer = setTimeout(async () => {
      try {
        const response = await send(true);
        if (current) setState({ response, error: null, loading: false });
      } catch (error) {
        if (current) setState({ response: null, error, loading: false });
      }
    }, DRY_RUN_DELAY_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [wanted, JSON.stringify(inputs)]);
  return state;
}

export function ActionDialog(props) {
  const { title, action, call, dryRun = Boolean(call), inputs = call, danger = false } = props;
  const ready = props.ready === undefined || Boolean(props.ready); // a number would be shown
  const { send = (dry) => api[call[0]](call[1], { ...call[2], dry_run: dry }) } = props;
  const { typed, approved = () => true, preview, success, after, close, wide, children } = props;
  const [confirmed, setConfirmed] = useState("");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const dry = useDryRun(dryRun && ready, send, inputs);
  const blocked = busy || !ready || (dryRun && (dry.loading || dry.error || !approved(dry.response))) || (typed && confirmed !== typed);

  const submit = async (event) => {
    event.preventDefault();
    if (blocked) return;
    setBusy(true);
    setFailure(null);
    try {
      const response = await send(false, dry.response);
      changed();
      toast(typeof success === "function" ? success(response) : success ?? `${action}: done`, { kind: "good" });
      close();
      after?.(response);
    } catch (error) {
      setFailure(error);
      setBusy(false);
    }
  };

  const footer = html`
    <button type="button" onClick=${close}>Cancel</button>
    <button type="submit" form="action" class=${danger ? "danger" : "primary"} disabled=${blocked} aria-busy=${busy ? "true" : undefined}>
      ${action}
    </button>
  `;
  return html`<${Dialog} title=${title} close=${close} footer=${footer} wide=${wide}>
    <form id="action" onSubmit=${submit}>
      ${children}
      ${dryRun && ready && dry.loading && !dry.response && html`<p class="muted" role="status">Checking…</p>`}
      ${dry.response && preview && html`<div class="preview" aria-live="polite">${preview(dry.response)}</div>`}
      ${typed && html`<${TextField} label=${`Type ${typed} to confirm`} value=${confirmed} onInput=${setConfirmed} wide />`}
      <${DialogError} error=${failure ?? (ready ? dry.error : null)} />
      <${Command} text=${dry.response?.command} />
    </form>
  <//>`;
}

export function Menu({ label, items = [], icon = "more", text, children }) {
  const id = useId();
  const popover = useRef(null);
  const button = useRef(null);
  const place = (event) => {
    if (event.newState !== "open") return;
    const box = button.current.getBoundingClientRect();
    popover.current.style.top = `${box.bottom + 4}px`;
    popover.current.style.right = `${document.documentElement.clientWidth - box.right}px`;
  };
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const entries = [...popover.current.querySelectorAll("button:not(:disabled)")];
    const next = entries.indexOf(document.activeElement) + step;
    entries[(next + entries.length) % entries.length]?.focus();
  };
  return html`<button type="button" ref=${button} popovertarget=${id} aria-haspopup=${text ? "dialog" : "menu"} aria-label=${label} title=${label} class=${text ? "" : "icon-only"}>${text ?? html`<${Icon} name=${icon} />`}</button>
    <div id=${id} ref=${popover} popover="auto" class="menu" role=${text ? "group" : "menu"} aria-label=${label} onToggle=${place} onKeyDown=${move}>
      ${items.map(
        (item) => html`<button
          key=${item.label}
          type="button"
          role="menuitem"
          class=${item.danger ? "danger-text" : ""}
          disabled=${item.disabled}
          title=${item.title}
          onClick=${() => {
            popover.current.hidePopover();
            item.run();
          }}
        >${item.label}</button>`,
      )}${children}
    </div>`;
}
