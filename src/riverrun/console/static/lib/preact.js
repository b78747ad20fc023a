// The only door to Preact, its hooks, signals and htm: pages import everything from here.
//
//   import { html, useState, signal } from "../lib/preact.js";
//   export default function Page() { return html`<h1>Hello</h1>`; }

import htm from "../vendor/htm.js";
import { Fragment, h, render } from "../vendor/preact.js";

export { Fragment, h, render };
export {
  useCallback,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/hooks.js";
export { batch, computed, effect, signal, useComputed, useSignal } from "../vendor/signals.js";

export const html = htm.bind(h);
