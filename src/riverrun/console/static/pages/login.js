// The login: the users of the cluster itself, by SCRAM, PLAIN or a token. The console then acts as
// that user, so ACLs decide. The address stays, so the requested page opens after the login.

import { DialogError } from "../lib/dialog.js";
import { CheckField, SelectField, TextField } from "../lib/forms.js";
import { html, useLayoutEffect, useState } from "../lib/preact.js";
import { ClusterPicker } from "../lib/shell.js";
import { login, session } from "../lib/state.js";
import { ThemeButton } from "../lib/theme.js";

export default function Login() {
  const { mechanisms = [], clusters = [], cluster, problem } = session.value;
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [visible, setVisible] = useState(false);
  const [mechanism, setMechanism] = useState("");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  useLayoutEffect(() => {
    document.title = "Log in · riverrun";
    document.querySelector(".login input")?.focus();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    try {
      await login(user, password, mechanism);
    } catch (error) {
      setFailure(error);
      setPassword("");
      setBusy(false);
      document.querySelector(".login [name=password]")?.focus();
    }
  };
  return html`<main class="login">
    <form class="panel" onSubmit=${submit}>
      <h1><img src=${new URL("../icon.svg", import.meta.url).href} alt="" width="28" height="28" />riverrun</h1>
      <${ClusterPicker} />
      <p class="muted">Log in as a user of ${clusters.length > 1 ? html`the cluster <b>${cluster}</b>` : "this cluster"}. The console may do what this user may do.</p>
      <${TextField} label="User" name="user" value=${user} onInput=${setUser} autocomplete="username" autocapitalize="none" required wide />
      <${TextField} label="Password" name="password" type=${visible ? "text" : "password"} value=${password} onInput=${setPassword} autocomplete="current-password" required wide />
      <${CheckField} label="Show the password" checked=${visible} onInput=${setVisible} />
      ${mechanisms.length > 1 && html`<${SelectField} label="Mechanism" value=${mechanism} onInput=${setMechanism} options=${[["", "Choose for me"], ...mechanisms]} wide />`}
      <${DialogError} error=${failure ?? problem} />
      <button type="submit" class="primary" disabled=${busy || !user || !password} aria-busy=${busy ? "true" : undefined}>${busy ? "Logging in…" : "Log in"}</button>
      <p class="hint">No user yet? An administrator adds one: <code>riverrun users add NAME</code></p>
    </form>
    <${ThemeButton} />
  </main>`;
}
