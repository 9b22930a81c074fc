// The frame of the console: navigation, the log-in, the theme, and the page that the address names.
import { html, render, useEffect, useRef, useState } from "./lib/html.js";
import { api, onUnauthorized } from "./lib/api.js";
import { Icon, Mark } from "./lib/icons.js";
import { Empty, Failure, Loading } from "./lib/components.js";
import { live, useLive } from "./lib/live.js";
import { Me, forgetAnswers, href, notify, useNotices, useNow, useRoute } from "./lib/state.js";
import { relative } from "./lib/format.js";
import { Finder } from "./lib/finder.js";
import { LogIn } from "./pages/login.js";
import { Overview } from "./pages/overview.js";
import { ClusterPage } from "./pages/cluster.js";
import { TopicsPage } from "./pages/topics.js";
import { TopicPage } from "./pages/topic.js";
import { GroupsPage } from "./pages/groups.js";
import { GroupPage } from "./pages/group.js";
import { MessagesPage } from "./pages/messages.js";
import { MessagePage } from "./pages/message.js";
import { DeadLettersPage } from "./pages/dead_letters.js";
import { SettingsPage } from "./pages/settings.js";
import { AuditPage } from "./pages/audit.js";

const SECTIONS = [
  ["", "Overview", "overview", Overview],
  ["cluster", "Cluster", "cluster", ClusterPage],
  ["topics", "Topics", "topics", TopicsPage, TopicPage],
  ["consumer-groups", "Consumer groups", "groups", GroupsPage, GroupPage],
  ["messages", "Messages", "messages", MessagesPage, MessagePage],
  ["dead-letters", "Dead letters", "dead", DeadLettersPage, DeadLettersPage],
  ["settings", "Configuration", "settings", SettingsPage],
  ["audit", "Audit log", "audit", AuditPage],
];

function Page({ route }) {
  const [section = "", ...rest] = route.parts;
  const entry = SECTIONS.find(([id]) => id === section);
  const View = entry && (rest.length ? entry[4] : entry[3]);
  if (!View) return html`<${Empty} title="There is no such page" action=${html`<a class="button" href="#/">Go to the overview</a>`}>The address <code>${location.hash}</code> names no page of the console.<//>`;
  return html`<${View} key=${`${section}/${rest[0] || ""}`} name=${rest[0]} query=${route.query} />`;
}

function Navigation({ section, open, onClose }) {
  return html`<nav id="navigation" class=${`sidebar ${open ? "open" : ""}`} aria-label="Sections">
    <a class="brand" href="#/" onClick=${onClose}><${Mark} /><span>Tallystick<small>Console</small></span></a>
    <ul>${SECTIONS.map(([id, title, icon]) => html`<li key=${id}>
      <a href=${id ? href([id]) : "#/"} aria-current=${id === section ? "page" : null} onClick=${onClose}><${Icon} name=${icon} />${title}</a></li>`)}</ul>
  </nav>`;
}

const STATES = {
  live: ["good", "Live"],
  connecting: ["plain", "Connecting"],
  stale: ["warn", "Stale"],
  lost: ["bad", "Reconnecting"],
};

function LiveState() {
  const { state, receivedMs, problem } = useLive();
  const now = useNow();
  const [kind, text] = STATES[state];
  const title = problem || (receivedMs ? `Last figures: ${relative(receivedMs, now)}` : "No figures yet");
  return html`<span class=${`live ${kind}`} title=${title} role="status"><i aria-hidden="true"></i><span>${text}</span></span>`;
}

function Theme() {
  const dark = () => document.documentElement.dataset.theme === "dark";
  const [isDark, setDark] = useState(dark);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    const listener = () => setDark(dark());
    media.addEventListener("change", listener);
    return () => media.removeEventListener("change", listener);
  }, []);
  const toggle = () => {
    const next = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("tally.theme", next);
    } catch {
      document.documentElement.dataset.chosenTheme = next; // the choice holds for this page alone
    }
    setDark(!isDark);
  };
  const label = isDark ? "Use light colours" : "Use dark colours";
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label} onClick=${toggle}><${Icon} name=${isDark ? "sun" : "moon"} /></button>`;
}

function Who({ me, onLogOut }) {
  if (!me.user) return html`<span class="who" title="This HTTP port needs no log-in"><span class="badge plain">${me.role}</span></span>`;
  return html`<span class="who"><${Icon} name="user" size=${16} /><span class="who-name">${me.user}</span><span class="badge plain">${me.role}</span>
    <button type="button" class="icon-button" aria-label="Log out" title="Log out" onClick=${onLogOut}><${Icon} name="logout" /></button></span>`;
}

function Notices() {
  const list = useNotices();
  return html`<div class="notices" aria-live="polite" role="status">${list.map((each) => html`<div key=${each.id} class=${`notice ${each.kind}`}>
    <${Icon} name=${each.kind === "bad" ? "warn" : "check"} size=${16} />${each.text}</div>`)}</div>`;
}

/** The key `/` moves to the search field of the page, or to the one of the top bar. */
function useSearchKey() {
  useEffect(() => {
    const listener = (event) => {
      const typing = event.target.closest?.("input, textarea, select, dialog");
      const finder = (event.ctrlKey || event.metaKey) && event.key === "k";
      if (!finder && (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey)) return;
      const field = (!finder && document.querySelector("main [data-search]")) || document.getElementById("finder");
      if (!field || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      field.focus();
      field.select();
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
}

function Frame({ me, onLogOut }) {
  const route = useRoute();
  const [open, setOpen] = useState(false);
  const first = useRef(true);
  const place = route.parts.join("/");
  useSearchKey();
  useEffect(() => {
    live.start();
    return () => live.stop();
  }, []);
  useEffect(() => {
    setOpen(false);
    if (first.current) {
      first.current = false;
      return;
    }
    scrollTo(0, 0);
    document.getElementById("page-title")?.focus({ preventScroll: true }); // a screen reader reads the new page's title
  }, [place]);
  useEffect(() => {
    const listener = (event) => event.key === "Escape" && setOpen(false);
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <${Navigation} section=${route.parts[0] || ""} open=${open} onClose=${() => setOpen(false)} />
    ${open && html`<div class="veil" onClick=${() => setOpen(false)}></div>`}
    <div class="column">
      <header class="topbar">
        <button type="button" class="icon-button menu" aria-label="Menu" aria-expanded=${String(open)} aria-controls="navigation" onClick=${() => setOpen(!open)}><${Icon} name=${open ? "close" : "menu"} /></button>
        <${Finder} sections=${SECTIONS} />
        <div class="topbar-end"><${LiveState} /><${Theme} /><${Who} me=${me} onLogOut=${onLogOut} /></div>
      </header>
      <main id="main" tabindex="-1"><${Page} route=${route} /></main>
    </div>
  </div>`;
}

function App() {
  const [me, setMe] = useState(null);
  const [error, setError] = useState(null);
  const load = async () => {
    setError(null);
    try {
      setMe(await api.me());
    } catch (failure) {
      if (failure.status !== 401) setError(failure);
    }
  };
  useEffect(() => {
    const off = onUnauthorized((failure) => {
      forgetAnswers();
      setMe({ needed: true, methods: failure.problem.methods });
    });
    load();
    return off;
  }, []);
  const logOut = async () => {
    try {
      await api.logOut();
    } catch (failure) {
      notify(failure.message, "bad");
      return;
    }
    forgetAnswers();
    load(); // the server answers with how to log in
  };
  let body;
  if (error) body = html`<main class="alone"><${Failure} error=${error} retry=${load} /></main>`;
  else if (!me) body = html`<main class="alone"><${Loading} rows=${4} /></main>`;
  else if (me.needed) body = html`<${LogIn} methods=${me.methods || ["password"]} onDone=${setMe} />`;
  else body = html`<${Me.Provider} value=${me}><${Frame} me=${me} onLogOut=${logOut} /><//>`;
  return html`${body}<${Notices} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
