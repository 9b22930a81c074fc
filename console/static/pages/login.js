import { html, useEffect, useRef, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { Mark } from "../lib/icons.js";
import { Failure, Field } from "../lib/components.js";

export function LogIn({ onDone }) {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const form = useRef(null);
  useEffect(() => {
    document.title = "Log in · Tallystick Console";
    form.current.querySelector("input").focus();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await api.logIn(user, password);
      onDone(await api.me());
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<main class="login"><form ref=${form} class="login-card" onSubmit=${submit}>
    <div class="login-brand"><${Mark} size=${44} /><h1>Tallystick Console</h1><p>Log in with an account of the cluster: a user of RocketMQ 5, or an access key and its secret.</p></div>
    ${error && html`<${Failure} error=${error} title="The log-in failed" />`}
    <${Field} label="User or access key" name="user" autocomplete="username" required value=${user} onInput=${setUser} />
    <${Field} label="Password or secret key" type="password" name="password" autocomplete="current-password" required value=${password} onInput=${setPassword} />
    <button type="submit" class="button primary big" disabled=${busy || !user || !password}><span>${busy ? "Checking …" : "Log in"}</span></button>
  </form></main>`;
}
