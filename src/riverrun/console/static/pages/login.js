// The login: the users of the cluster itself, by SCRAM, PLAIN or a token. The console then acts as
// that user, so ACLs decide. The address stays, so the requested page opens after the login.

import { DialogError } from "../lib/dialog.js";
import { SelectField, TextField } from "../lib/forms.js";
import { html, useState } from "../lib/preact.js";
import { login, session } from "../lib/state.js";
import { ThemeButton } from "../lib/theme.js";

export default function Login() {
  const mechanisms = session.value.mechanisms ?? [];
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [mechanism, setMechanism] = useState(mechanisms[0] ?? "");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    try {
      await login(user, password, mechanism);
    } catch (error) {
      setFailure(error);
      setBusy(false);
    }
  };
  return html`<main class="login">
    <form class="panel" onSubmit=${submit}>
      <h1>riverrun</h1>
      <p class="muted">Log in with a user of this cluster. The console can do what this user may do.</p>
      <${TextField} label="User" name="user" value=${user} onInput=${setUser} autocomplete="username" required autofocus wide />
      <${TextField} label="Password" name="password" type="password" value=${password} onInput=${setPassword} autocomplete="current-password" required wide />
      ${mechanisms.length > 1 && html`<${SelectField} label="Mechanism" value=${mechanism} onInput=${setMechanism} options=${mechanisms} wide />`}
      <${DialogError} error=${failure} />
      <button type="submit" class="primary" disabled=${busy || !user || !password} aria-busy=${busy ? "true" : undefined}>Log in</button>
      <p class="hint">No user yet? An administrator adds one: <code>riverrun users add NAME</code></p>
    </form>
    <${ThemeButton} />
  </main>`;
}
