// Dialogs that write messages: produce, send one message again, and redrive a dead-letter topic.

import { api, path } from "../lib/api.js";
import { ActionDialog, CheckField, Code, prettyJson, useForm } from "../lib/components.js";
import { count, plural } from "../lib/format.js";
import { html, useState } from "../lib/preact.js";
import { link, navigate } from "../lib/router.js";
import { parsePairs } from "./topic-dialogs.js";

const RECORDS_MAX = 1_000;
const options = [["text", "Text"], ["json", "JSON"], ["base64", "Base64 (bytes)"], "null"];

// A payload as the form shows it: format and text. Bytes that are not text are edited as base64.
function prefill(payload) {
  if (!payload) return ["null", ""];
  const { format, base64, text } = payload;
  return base64 && !["text", "json"].includes(format) ? ["base64", base64] : [format === "json" ? "json" : "text", text];
}

function wrong(format, text) {
  if (format === "json" && prettyJson(text) === null) return "This is not JSON";
  return format === "base64" && !/^[A-Za-z0-9+/]*={0,2}$/.test(text.trim()) ? "This is not base64" : "";
}

// Headers that were not edited are sent as they were, also bytes and null.
const sameHeader = ({ name, value }) => (value?.base64 ? { name, value: value.base64, format: "base64" } : { name, value: value?.text ?? null });

export function ProduceDialog({ topic, partitions = Infinity, message, done, close }) {
  const [[keyFormat, key], [valueFormat, value]] = [prefill(message?.key), message ? prefill(message.value) : ["text", ""]];
  const copied = message?.headers ?? [];
  const headers = copied.map((each) => `${each.name}: ${each.value?.text ?? ""}`).join("\n");
  const { values: now, field } = useForm({ keyFormat, key, valueFormat, value, headers, partition: "", lines: false });
  const { bad, pairs } = parsePairs(now.headers, ":");
  const texts = now.lines ? now.value.split("\n").filter((line) => line.trim()) : [now.value];
  const keyError = wrong(now.keyFormat, now.key);
  const valueError = texts.length > RECORDS_MAX ? `At most ${count(RECORDS_MAX)} records at once` : texts.map((text) => wrong(now.valueFormat, text)).find(Boolean);
  const misplaced = now.partition !== "" && !(/^\d+$/.test(now.partition) && now.partition < partitions);
  const part = (name, format, text) => (format === "null" ? { [name]: null, [`${name}_format`]: null } : { [name]: text, [`${name}_format`]: format });
  const records = texts.map((text) => ({
    partition: now.partition === "" ? null : Number(now.partition),
    headers: now.headers === headers ? copied.map(sameHeader) : pairs.map(([name, value]) => ({ name, value })),
    ...part("key", now.keyFormat, now.key),
    ...part("value", now.valueFormat, text),
  }));
  const success = ({ offsets: [first, ...others] }) => (others.length ? `${plural(others.length + 1, "record")} written` : `Written to partition ${first.partition} at offset ${first.offset}`);
  return html`<${ActionDialog} title=${`Produce to ${topic}`} action=${records.length > 1 ? `Produce ${count(records.length)} records` : "Produce"} wide call=${["post", path`topics/${topic}/messages`, { records }]} close=${close}
    ready=${!bad && !valueError && !keyError && !misplaced && records.length} success=${success} after=${done}>
    <div class="part">${field("keyFormat", "Key format", { options })}${now.keyFormat !== "null" && field("key", "Key", { rows: 1, error: keyError })}</div>
    <div class="part">${field("valueFormat", "Value format", { options })}${now.valueFormat !== "null" && field("value", "Value", { rows: 7, error: valueError })}</div>
    ${field("lines", "Each line of the value is a record of its own")}
    <div class="form-grid">
      ${field("headers", "Headers, one “name: value” per line", { rows: 2, error: bad })}
      ${field("partition", "Partition", { placeholder: "chosen by the key", error: misplaced && "There is no such partition" })}
    </div>
  <//>`;
}

export function ResendDialog({ topic, message: { partition, offset }, done, close }) {
  const { values: { to }, field } = useForm({ to: topic });
  return html`<${ActionDialog} title=${`Send ${partition}:${offset} of ${topic} again`} action="Send" call=${["post", path`topics/${topic}/resend`, { partition, offset, to }]} close=${close} ready=${to !== ""} success=${`Sent to ${to}`} after=${done}>
    <p>Key, value and headers are copied byte by byte. The original stays.</p>
    ${field("to", "To topic", { wide: true })}
  <//>`;
}

// Headers of the dead letters name the topics, so each must be confirmed unless one topic was typed.
function redriven({ records, topics, refused, refused_records, skipped, sample, complete }, to, chosen, toggle) {
  return html`<p><b>${plural(records, "record")}</b> would be written${to ? ` to ${to}.` : records ? ". Dead letters name these topics; choose those that get their records:" : "."}${skipped > 0 && ` ${plural(skipped, "record names", "records name")} no topic.`}${!complete && " There are more."}</p>
    ${!to && Object.entries(topics).map(([topic, number]) => html`<${CheckField} key=${topic} label=${`${plural(number, "record")} to ${topic}`} checked=${chosen.includes(topic)} onInput=${() => toggle(topic)} />`)}
    ${refused_records > 0 && html`<p class="muted">${plural(refused_records, "record names", "records name")} an internal or unknown topic and ${refused_records === 1 ? "is" : "are"} not written: ${Object.keys(refused).join(", ")}</p>`}
    ${sample?.length > 0 && html`<details><summary>First ${sample.length}</summary><${Code} label="Sample" json text=${JSON.stringify(sample, null, 2)} /></details>`}`;
}

export function RedriveDialog({ topic, filter: first = "", done, close }) {
  const { values: { to, filter, most }, field } = useForm({ to: "", filter: first, most: "1000" });
  const limit = /^[1-9]\d*$/.test(most) ? Number(most) : null;
  const [chosen, setChosen] = useState([]);
  const toggle = (each) => setChosen(chosen.includes(each) ? chosen.filter((other) => other !== each) : [...chosen, each]);
  const confirmed = (shown) => chosen.filter((each) => each in (shown?.topics ?? {}));
  const inputs = { to: to || null, filter: filter || null, limit };
  const send = (dry, shown) => api.post(path`topics/${topic}/redrive`, { ...inputs, targets: dry || to ? null : confirmed(shown), dry_run: dry });
  return html`<${ActionDialog} title=${`Redrive ${topic}`} action="Redrive" danger wide send=${send} dryRun inputs=${inputs} close=${close} ready=${limit} approved=${(shown) => to || confirmed(shown).length > 0} preview=${(shown) => redriven(shown, to, chosen, toggle)}
    success=${(response) => `${plural(response.records, "record")} written to ${response.to ?? "their topics"}`} after=${(response) => (response.to ? navigate(link("messages", { topic: response.to })) : done?.())}>
    <p>Dead letters are written again to the topic they came from. They also stay here.</p>
    <div class="form-grid">
      ${field("to", "To topic", { placeholder: "named by each dead letter" })}${field("filter", "Only records with this text")}
      ${field("most", "At most", { type: "number", min: 1, error: !limit && "A whole number from 1" })}
    </div>
  <//>`;
}
