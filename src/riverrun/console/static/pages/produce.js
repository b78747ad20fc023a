// Dialogs that write messages: produce, send one message again, and redrive a dead-letter topic.

import { path } from "../lib/api.js";
import { ActionDialog, AreaField, CheckField, Code, prettyJson, SelectField, TextField } from "../lib/components.js";
import { count, plural } from "../lib/format.js";
import { html, useState } from "../lib/preact.js";
import { link, navigate } from "../lib/router.js";

const RECORDS_MAX = 1_000;
const FORMATS = [{ value: "text", label: "Text" }, { value: "json", label: "JSON" }, { value: "base64", label: "Base64 (bytes)" }, { value: "null", label: "null" }];

// A payload as the form shows it. Bytes that are not text are edited as base64.
function prefill(payload) {
  if (!payload) return { format: "null", text: "" };
  const { format, base64, text } = payload;
  return base64 && !["text", "json"].includes(format) ? { format: "base64", text: base64 } : { format: format === "json" ? "json" : "text", text };
}

function wrong({ format, text }) {
  if (format === "json" && prettyJson(text) === null) return "This is not JSON";
  return format === "base64" && !/^[A-Za-z0-9+/]*={0,2}$/.test(text.trim()) ? "This is not base64" : "";
}

const sent = ({ format, text }) => (format === "null" ? [null, null] : [text, format]);

// Lines of "name: value".
function parseHeaders(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  const bad = lines.find((line) => line.indexOf(":") < 1);
  return { bad, headers: lines.map((line) => ({ name: line.slice(0, line.indexOf(":")).trim(), value: line.slice(line.indexOf(":") + 1).trim() })) };
}

function Part({ title, part, setPart, rows, error }) {
  return html`<div class="part">
    <${SelectField} label=${`${title} format`} value=${part.format} onInput=${(format) => setPart({ ...part, format })} options=${FORMATS} />
    ${part.format !== "null" && html`<${AreaField} label=${title} value=${part.text} onInput=${(text) => setPart({ ...part, text })} rows=${rows} error=${error} />`}
  </div>`;
}

export function ProduceDialog({ topic, partitions = Infinity, message, done, close }) {
  const [key, setKey] = useState(prefill(message?.key));
  const [value, setValue] = useState(message ? prefill(message.value) : { format: "text", text: "" });
  const [headerText, setHeaderText] = useState((message?.headers ?? []).map((each) => `${each.name}: ${each.value?.text ?? ""}`).join("\n"));
  const [place, setPlace] = useState("");
  const [lines, setLines] = useState(false);
  const { headers, bad } = parseHeaders(headerText);
  const values = (lines ? value.text.split("\n").filter((line) => line.trim()) : [value.text]).map((text) => ({ ...value, text }));
  const valueError = values.length > RECORDS_MAX ? `At most ${count(RECORDS_MAX)} records at once` : values.map(wrong).find(Boolean);
  const misplaced = place !== "" && !(/^\d+$/.test(place) && place < partitions);
  const records = values.map((each) => {
    const [[keyText, key_format], [valueText, value_format]] = [sent(key), sent(each)];
    return { partition: place === "" ? null : Number(place), key: keyText, key_format, value: valueText, value_format, headers };
  });
  const success = ({ offsets: [first, ...others] }) => (others.length ? `${plural(others.length + 1, "record")} written` : `Written to partition ${first.partition} at offset ${first.offset}`);
  return html`<${ActionDialog} title=${`Produce to ${topic}`} action=${records.length > 1 ? `Produce ${count(records.length)} records` : "Produce"} wide call=${["post", path`topics/${topic}/messages`, { records }]} close=${close}
    ready=${!bad && !valueError && !wrong(key) && !misplaced && records.length} success=${success} after=${done}>
    <${Part} title="Key" part=${key} setPart=${setKey} rows=${1} error=${wrong(key)} />
    <${Part} title="Value" part=${value} setPart=${setValue} rows=${7} error=${valueError} />
    <${CheckField} label="Each line of the value is a record of its own" checked=${lines} onInput=${setLines} />
    <div class="form-grid">
      <${AreaField} label="Headers, one “name: value” per line" value=${headerText} onInput=${setHeaderText} rows=${2} error=${bad && `“${bad}” is not name: value`} />
      <${TextField} label="Partition" placeholder="chosen by the key" value=${place} onInput=${setPlace} error=${misplaced ? `A partition from 0${partitions < Infinity ? ` to ${partitions - 1}` : ""}` : ""} />
    </div>
  <//>`;
}

export function ResendDialog({ topic, message: { partition, offset }, done, close }) {
  const [to, setTo] = useState(topic);
  return html`<${ActionDialog} title=${`Send ${partition}:${offset} of ${topic} again`} action="Send" call=${["post", path`topics/${topic}/resend`, { partition, offset, to }]} close=${close} ready=${to !== ""} success=${`Sent to ${to}`} after=${done}>
    <p>Key, value and headers are copied byte by byte. The original stays.</p>
    <${TextField} label="To topic" value=${to} onInput=${setTo} wide />
  <//>`;
}

function redriven({ records, to, skipped, sample }) {
  return html`<p>${plural(records, "record")} would be written to <b>${to ?? "the topics they name"}</b>${skipped > 0 && `, ${plural(skipped, "record")} skipped`}.</p>
    ${sample?.length > 0 && html`<details><summary>First ${sample.length}</summary><${Code} label="Sample" json text=${JSON.stringify(sample, null, 2)} /></details>`}`;
}

export function RedriveDialog({ topic, filter: first, done, close }) {
  const [to, setTo] = useState("");
  const [filter, setFilter] = useState(first);
  const [text, setText] = useState("1000");
  const limit = /^[1-9]\d*$/.test(text) ? Number(text) : null;
  return html`<${ActionDialog} title=${`Redrive ${topic}`} action="Redrive" danger wide call=${["post", path`topics/${topic}/redrive`, { to: to || null, filter: filter || null, limit }]} close=${close} ready=${limit} preview=${redriven}
    success=${(response) => `${plural(response.records, "record")} written to ${response.to ?? "their topics"}`} after=${(response) => (response.to ? navigate(link("messages", { topic: response.to })) : done())}>
    <p>Dead letters are written again to the topic they came from. They stay here; delete the records afterwards if you want.</p>
    <div class="form-grid">
      <${TextField} label="To topic" placeholder="named by each dead letter" value=${to} onInput=${setTo} />
      <${TextField} label="Only records with this text" value=${filter} onInput=${setFilter} />
      <${TextField} label="At most" type="number" min="1" value=${text} onInput=${setText} error=${limit ? "" : "A whole number from 1"} />
    </div>
  <//>`;
}
