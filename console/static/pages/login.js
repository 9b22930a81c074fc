import { html, useEffect, useRef, useState } from "../lib/html.js";
import { api } from "../lib/api.js";
import { Mark } from "../lib/icons.js";
import { Failure, Field, Segments } from "../lib/components.js";

export function LogIn({ methods, onDone }) {
  const [way, setWay] = useState(methods[0] || "password");
  const [token, setToken] = useState("");
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
      await api.logIn(way === "token" ? { token } : { user, password });
      onDone(await api.me());
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<main class="login"><form ref=${form} class="login-card" onSubmit=${submit}>
    <div class="login-brand"><${Mark} size=${44} /><h1>Tallystick Console</h1><p>Log in with an account of the cluster: a user of RocketMQ 5, or an access key and its secret.</p></div>
    ${error && html`<${Failure} error=${error} title="The log-in failed" />`}
    ${methods.length > 1 && html`<${Segments} label="How to log in" options=${[["password", "Account"], ["token", "Token"]]} value=${way} onChange=${setWay} />`}
    ${way === "token" ? html`<${Field} key="token" label="Token" type="password" name="token" autocomplete="off" required value=${token} onInput=${setToken} hint="a line of the file that adminTokenFile names" />`
      : html`<${Field} key="user" label="User or access key" name="user" autocomplete="username" required value=${user} onInput=${setUser} />
    <${Field} key="password" label="Password or secret key" type="password" name="password" autocomplete="current-password" required value=${password} onInput=${setPassword} />`}
    <button type="submit" class="button primary big" disabled=${busy || (way === "token" ? !token : !user || !password)}><span>${busy ? "Checking …" : "Log in"}</span></button>
  </form></main>`;
}
