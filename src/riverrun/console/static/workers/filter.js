// Runs a JavaScript filter over messages, in a Web Worker of the browser.
//
// The page's Content-Security-Policy forbids eval. A worker has the policy of its own response, so
// the server must send this file (and only files in workers/) with
//     Content-Security-Policy: default-src 'none'; script-src 'self' 'unsafe-eval'
// The filter then has no document, no network and no storage of the page. The page ends the worker
// when it takes too long.
//
// In:  { code, messages: [{ isCut, message: { partition, offset, timestamp, key, value, headers, size } }] }
//      key, value and header values are texts or null; of a message that is cut, one of them is only
//      the start. `code` is an expression, or the body of a function with `return`.
// Out: { kept: [index, ...], failures, failure, cut }, or { error } when the code does not parse; by
//      the port that came with the message. A message that is cut may be missing in `kept`, and its
//      failure means nothing, so such messages are counted by themselves.

"use strict";

const NAMES = ["key", "value", "headers", "offset", "partition", "timestamp", "size", "message"];

function compile(code) {
  const names = NAMES.join(", ");
  try {
    return new Function(`"use strict"; return (${names}) => (${code}\n);`)();
  } catch (expressionError) {
    if (!/\breturn\b/.test(code)) throw expressionError;
    return new Function(`"use strict"; return (${names}) => {${code}\n};`)();
  }
}

// JSON objects and arrays become values, all other texts stay texts.
function parsed(text) {
  if (text === null || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function run(code, messages) {
  const matches = compile(code);
  const kept = [];
  let failures = 0;
  let failure = null;
  let cut = 0;
  messages.forEach(({ isCut, message }, index) => {
    if (isCut) cut++;
    const key = parsed(message.key);
    const value = parsed(message.value);
    try {
      if (matches(key, value, message.headers, message.offset, message.partition, message.timestamp, message.size, message)) kept.push(index);
    } catch (error) {
      if (isCut) return;
      failures++;
      failure ??= `${message.partition}:${message.offset}: ${error.message ?? error}`;
    }
  });
  return { kept, failures, failure, cut };
}

self.onmessage = ({ data: { code, messages }, ports: [port] }) => {
  let answer;
  try {
    answer = run(code, messages);
  } catch (error) {
    answer = { error: String(error.message ?? error) };
  }
  port.postMessage(answer);
};
