// One message by its permanent address: topic, partition and offset.

import { path } from "../lib/api.js";
import { Empty, Icon, Loaded, Page, SelectField } from "../lib/components.js";
import { html } from "../lib/preact.js";
import { link, route, useQuery } from "../lib/router.js";
import { useResource } from "../lib/state.js";
import { MessageDetail } from "./message-parts.js";
import { FORMATS } from "./messages.js";

export default function Message({ params: { topic, partition, offset } }) {
  const [format, setFormat] = useQuery("format", "auto");
  const resource = useResource(path`topics/${topic}/messages/${partition}/${offset}`, { format }, { every: 0 });
  const beside = (step) => link("message", { topic, partition, offset: Number(offset) + step }, route.value.query);
  const browse = link("messages", { topic }, { partition, from: "offset", offset });
  const actions = html`
    <${SelectField} label="Format" compact value=${format} onInput=${setFormat} options=${FORMATS} />
    ${offset > 0 && html`<a class="button back" href=${beside(-1)}><${Icon} name="chevron" size=${12} />Previous</a>`}
    <a class="button" href=${beside(1)}>Next<${Icon} name="chevron" size=${12} /></a>
    <a class="button" href=${browse}>Browse from here</a>`;
  const missing = html`<${Empty} title="There is no message at this offset" icon="topics">It was deleted by retention, compaction or trimming, or it is not written yet.<//>`;
  return html`<${Page} title=${`${topic} ${partition}:${offset}`} actions=${actions}><section class="panel">
    ${resource.error?.status === 404 ? missing : html`<${Loaded} resource=${resource}>${(message) => html`<${MessageDetail} isPage topic=${topic} message=${message} />`}<//>`}
  </section><//>`;
}
