// Form fields with labels, hints and errors. All are controlled: value and onInput(value).
//
//   <${Field} label="Name" hint="..." error=${...}>${(id) => html`<input id=${id} />`}<//>
//   <${TextField} label="Name" value=${name} onInput=${setName} hint="" error="" required />
//   <${SelectField} label="Format" value=${x} onInput=${setX} options=${["a", ["b", "B"], { value: "c", label: "C" }]} />
//   <${CheckField} label="Show internal topics" checked=${x} onInput=${setX} />
//   <${AreaField} label="Value" .../>   <${SearchField} label="Search topics" value onInput />
//   <${Segmented} label="Range" value options onInput />      a few choices side by side
// `compact` hides the label visually.
//   const { values, field, set } = useForm({ name: "", format: "text", lines: false });
//       field("name", "Name", { error }) is the field of a value: a check box for true and false, a
//       select with `options`, an area with `rows`, else a text field. set({ name: "a" }) changes values.

import { Icon } from "./icons.js";
import { html, useEffect, useId, useRef, useState } from "./preact.js";

const SEARCH_DELAY_MS = 200;

export function Field({ label, hint, error, compact = false, wide = false, children }) {
  const id = useId();
  const note = error || hint;
  return html`<div class="field ${wide ? "wide" : ""}">
    <label for=${id} class=${compact ? "hidden" : ""}>${label}</label>
    ${children(id, note ? `${id}-note` : undefined)}
    ${note && html`<p id=${`${id}-note`} class=${error ? "field-error" : "hint"}>${note}</p>`}
  </div>`;
}

export function TextField({ label, hint, error, compact, wide, value, onInput, type = "text", ...rest }) {
  return html`<${Field} ...${{ label, hint, error, compact, wide }}>
    ${(id, note) => html`<input
      id=${id}
      type=${type}
      value=${value}
      aria-describedby=${note}
      aria-invalid=${error ? "true" : undefined}
      autocomplete="off"
      spellcheck=${false}
      onInput=${(event) => onInput(event.currentTarget.value)}
      ...${rest}
    />`}
  <//>`;
}

export function AreaField({ label, hint, error, compact, wide = true, value, onInput, rows = 6, ...rest }) {
  return html`<${Field} ...${{ label, hint, error, compact, wide }}>
    ${(id, note) => html`<textarea
      id=${id}
      rows=${rows}
      value=${value}
      aria-describedby=${note}
      aria-invalid=${error ? "true" : undefined}
      spellcheck=${false}
      onInput=${(event) => onInput(event.currentTarget.value)}
      ...${rest}
    ></textarea>`}
  <//>`;
}

function asOption(option) {
  if (typeof option === "object" && !Array.isArray(option)) return option;
  const [value, label = String(value)] = [option].flat();
  return { value: String(value), label };
}

export function SelectField({ label, hint, error, compact, wide, value, onInput, options, ...rest }) {
  return html`<${Field} ...${{ label, hint, error, compact, wide }}>
    ${(id, note) => html`<select
      id=${id}
      value=${value}
      aria-describedby=${note}
      onChange=${(event) => onInput(event.currentTarget.value)}
      ...${rest}
    >
      ${options.map(asOption).map((each) => html`<option key=${each.value} value=${each.value} selected=${each.value === value}>${each.label}</option>`)}
    </select>`}
  <//>`;
}

export function CheckField({ label, checked, onInput, ...rest }) {
  return html`<label class="check">
    <input type="checkbox" checked=${checked} onChange=${(event) => onInput(event.currentTarget.checked)} ...${rest} />
    <span>${label}</span>
  </label>`;
}

// Reports the text after a short pause, so that each key does not cost a request. "/" focuses it.
export function SearchField({ label, value, onInput, placeholder = label }) {
  const [text, setText] = useState(value);
  const input = useRef(null);
  const timer = useRef(null);
  useEffect(() => {
    if (document.activeElement !== input.current) setText(value);
  }, [value]);
  useEffect(() => {
    const focus = (event) => {
      const typing = event.target.closest?.("input, textarea, select, [contenteditable], dialog");
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      input.current?.focus();
    };
    document.addEventListener("keydown", focus);
    return () => {
      document.removeEventListener("keydown", focus);
      clearTimeout(timer.current);
    };
  }, []);
  const change = (next) => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onInput(next), SEARCH_DELAY_MS);
  };
  return html`<div class="search">
    <${Icon} name="search" size=${14} />
    <input
      ref=${input}
      type="search"
      aria-label=${label}
      placeholder=${placeholder}
      value=${text}
      spellcheck=${false}
      autocomplete="off"
      onInput=${(event) => change(event.currentTarget.value)}
    />
    <kbd aria-hidden="true">/</kbd>
  </div>`;
}

export function Segmented({ label, value, options, onInput }) {
  return html`<div class="segmented" role="group" aria-label=${label}>
    ${options.map(asOption).map(
      (each) => html`<button key=${each.value} type="button" aria-pressed=${each.value === value ? "true" : "false"} onClick=${() => onInput(each.value)}>${each.label}</button>`,
    )}
  </div>`;
}

export function useForm(first) {
  const [values, setValues] = useState(first);
  const set = (changes) => setValues((old) => ({ ...old, ...changes }));
  const field = (name, label, props = {}) => {
    const value = values[name];
    const onInput = (next) => set({ [name]: next });
    if (typeof value === "boolean") return html`<${CheckField} ...${{ label, onInput, checked: value }} ...${props} />`;
    const Component = props.options ? SelectField : props.rows ? AreaField : TextField;
    return html`<${Component} ...${{ label, onInput, value }} ...${props} />`;
  };
  return { values, field, set };
}
