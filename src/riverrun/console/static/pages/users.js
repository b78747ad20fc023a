// Users that log in by SCRAM: add, change the password, delete.

import { path } from "../lib/api.js";
import { ActionDialog, Badge, CheckField, column, CopyButton, Empty, fixed, ListTable, Menu, openDialog, opener, Page, TextField } from "../lib/components.js";
import { count } from "../lib/format.js";
import { html, useState } from "../lib/preact.js";
import { link, navigate } from "../lib/router.js";
import { canWrite } from "../lib/state.js";

const MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"];
const RANDOM_BYTES = 18;

const randomPassword = () => btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(RANDOM_BYTES)))).replaceAll("+", "-").replaceAll("/", "_");

function PasswordField({ value, onInput }) {
  const [visible, setVisible] = useState(false);
  const generate = () => {
    onInput(randomPassword());
    setVisible(true);
  };
  return html`<${TextField} label="Password" type=${visible ? "text" : "password"} autocomplete="new-password" required wide ...${{ value, onInput }} />
    <div class="row"><button type="button" class="small" onClick=${generate}>Generate one</button>
      <${CheckField} label="Show it" checked=${visible} onInput=${setVisible} />${visible && value && html`<${CopyButton} text=${value} label="Copy the password" />`}</div>`;
}

// Adds a user, or changes the password of one. The password is never part of the command.
function UserDialog({ user, close }) {
  const [name, setName] = useState(user?.name ?? "");
  const [password, setPassword] = useState("");
  const [mechanisms, setMechanisms] = useState(user ? user.mechanisms.map((each) => each.mechanism) : MECHANISMS);
  const toggle = (each) => setMechanisms(MECHANISMS.filter((other) => (other === each) !== mechanisms.includes(other)));
  const ready = name.trim() !== "" && password !== "" && mechanisms.length > 0;
  const body = { password, mechanisms };
  return html`<${ActionDialog} title=${user ? `Change the password of ${name}` : "Add a user"} action=${user ? "Change the password" : "Add"} ready=${ready} close=${close}
    call=${user ? ["put", path`users/${name}/password`, body] : ["post", "users", { name: name.trim(), ...body }]} success=${user ? `The password of ${name} is changed` : `User ${name} is added`}>
    ${!user && html`<${TextField} label="Name" value=${name} onInput=${setName} required autofocus wide />`}
    <${PasswordField} value=${password} onInput=${setPassword} />
    <div class="row" role="group" aria-label="Mechanisms">${MECHANISMS.map((each) => html`<${CheckField} key=${each} label=${each} checked=${mechanisms.includes(each)} onInput=${() => toggle(each)} />`)}</div>
    ${!user && html`<p class="hint">A new user has no rights: add rules on the ACLs page.</p>`}
  <//>`;
}

function DeleteDialog({ name, close }) {
  return html`<${ActionDialog} title=${`Delete user ${name}`} action="Delete" danger typed=${name} call=${["delete", path`users/${name}`]} success=${`User ${name} is deleted`} close=${close}>
    <p>The user cannot log in any more. Its rules and quotas stay.</p>
  <//>`;
}

const columns = [
  column("name", "User", (row) => html`<span class="name-cell">${row.name}</span>`),
  fixed("mechanisms", "Mechanisms", (row) => html`<span class="row">${row.mechanisms.map((each) => html`<${Badge} key=${each.mechanism} title=${`${count(each.iterations)} iterations`}>${each.mechanism}<//>`)}</span>`),
  fixed("rules", "Rights", (row) => html`<a href=${link("acls", {}, { principal: `User:${row.name}` })} aria-label=${`Rules of ${row.name}`}>Rules</a>`),
  fixed("actions", "Actions", (row) => canWrite.value && html`<${Menu} label=${`Actions of ${row.name}`} items=${[
    { label: "Change the password…", run: () => openDialog(UserDialog, { user: row }) },
    { label: "Check a right…", run: () => navigate(link("acls", {}, { tab: "why", user: row.name })) },
    { label: "Delete…", danger: true, run: () => openDialog(DeleteDialog, { name: row.name }) },
  ]} />`, { align: "end" }),
];

export default function Users() {
  return html`<${Page} title="Users" note="log in by SCRAM" actions=${opener("Add a user…", UserDialog, {}, "primary")}>
    <${ListTable} path="users" columns=${columns} rowKey=${(row) => row.name} label="Users" search="Search users" sort="name" empty=${html`<${Empty} title="No users" icon="users">Users with certificates or tokens need no entry here.<//>`} />
  <//>`;
}
