// Text for machines.
//
//   <${Code} text=${...} label="Command" />      a block with a copy button; json=${true} colours JSON
//   <${CopyButton} text=${...} label="Copy key" />
//   <${Command} text="riverrun topics create a" />   the CLI command of an action
//   prettyJson(text)                             indented text, or null when it is not JSON

import { toast } from "./feedback.js";
import { Icon } from "./icons.js";
import { html } from "./preact.js";

// Colouring more than this makes thousands of elements.
const COLOURED_CHARS_MAX = 100_000;

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied", { kind: "good" });
  } catch {
    // The clipboard API needs HTTPS or localhost.
    const area = document.createElement("textarea");
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    toast(done ? "Copied" : "The browser does not allow copying here. Select the text and press Ctrl-C.", { kind: done ? "good" : "bad" });
  }
}

export function CopyButton({ text, label = "Copy" }) {
  return html`<button type="button" class="ghost icon-only" aria-label=${label} title=${label} onClick=${() => copyText(text)}>
    <${Icon} name="copy" size=${14} />
  </button>`;
}

export function prettyJson(text) {
  try {
    return indented(text);
  } catch {
    return null;
  }
}

// JSON.stringify(JSON.parse(text)) would change numbers above 2^53, so the text itself is indented.
function indented(text) {
  JSON.parse(text);
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|\s+/g, (token) => {
    if (token[0] === '"') return token;
    if (/^\s/.test(token)) return "";
    if (/^[{[]\s*[}\]]$/.test(token)) return token[0] + token.at(-1);
    if (token === "{" || token === "[") return depth++, token + line();
    if (token === "}" || token === "]") return depth--, line() + token;
    return token === "," ? token + line() : ": ";
  });
}

const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|\b(true|false|null)\b/g;

function coloured(text) {
  if (text.length > COLOURED_CHARS_MAX) return text;
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    parts.push(text.slice(end, match.index));
    const kind = match[1] ? (match[2] ? "name" : "string") : match[3] ? "number" : "word";
    parts.push(html`<span class="json-${kind}">${match[1] ?? match[0]}</span>`, match[2] ?? "");
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

export function Code({ text, json = false, label = "Text", wrap = false }) {
  return html`<div class="code">
    <pre tabindex="0" role="region" aria-label=${label} class=${wrap ? "wrap" : ""}><code>${json ? coloured(text) : text}</code></pre>
    <${CopyButton} text=${text} label=${`Copy ${label.toLowerCase()}`} />
  </div>`;
}

export function Command({ text }) {
  if (!text) return null;
  return html`<div class="command">
    <span class="command-label">The same on the command line</span>
    <${Code} text=${text} label="Command" wrap=${true} />
  </div>`;
}
