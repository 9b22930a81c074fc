// The search field of the top bar: it finds pages, topics and consumer groups by name.
import { html, useEffect, useId, useRef, useState } from "./html.js";
import { api } from "./api.js";
import { Icon } from "./icons.js";
import { href } from "./state.js";

const MOST = 8;

export function Finder({ sections }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [active, setActive] = useState(0);
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  const id = useId();

  useEffect(() => {
    const wanted = text.trim().toLowerCase();
    if (!wanted) {
      setFound([]);
      return undefined;
    }
    const pages = sections.filter(([, title]) => title.toLowerCase().includes(wanted)).map(([part, title, icon]) => ["Page", title, part ? href([part]) : "#/", icon]);
    setFound(pages);
    setActive(0);
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      const lists = await Promise.allSettled([api.topics({ search: wanted, limit: MOST }, abort.signal), api.groups({ search: wanted, limit: MOST }, abort.signal)]);
      if (abort.signal.aborted) return;
      const [topics, groups] = lists.map((each) => (each.status === "fulfilled" ? each.value.items.slice(0, MOST) : []));
      setFound([
        ...pages,
        ...topics.map((each) => ["Topic", each.name, href(["topics", each.name]), "topics"]),
        ...groups.map((each) => ["Consumer group", each.name, href(["consumer-groups", each.name]), "groups"]),
      ]);
    }, 150);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);

  const close = () => {
    setOpen(false);
    setText("");
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      close();
      event.currentTarget.blur();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && found.length) {
      event.preventDefault();
      setActive((now) => (now + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length);
    } else if (event.key === "Enter" && found[active]) {
      location.hash = found[active][2];
      close();
    }
  };
  const shown = open && text.trim() !== "";
  return html`<div class="finder" ref=${box} onFocusOut=${(event) => !box.current.contains(event.relatedTarget) && setOpen(false)}>
    <${Icon} name="search" size=${16} />
    <input id="finder" type="search" role="combobox" aria-label="Find a page, topic or consumer group" placeholder="Find a topic or group" autocomplete="off" spellcheck=${false}
      aria-expanded=${String(shown)} aria-controls=${`${id}-list`} aria-activedescendant=${shown && found.length ? `${id}-${active}` : null} aria-autocomplete="list"
      value=${text} onInput=${(event) => { setText(event.currentTarget.value); setOpen(true); }} onKeyDown=${onKeyDown} />
    <kbd aria-hidden="true">Ctrl K</kbd>
    ${shown && html`<ul id=${`${id}-list`} role="listbox" aria-label="Found" class="found">
      ${found.map(([kind, title, to, icon], index) => html`<li key=${to} id=${`${id}-${index}`} role="option" aria-selected=${String(index === active)}
        onMouseDown=${(event) => { event.preventDefault(); location.hash = to; close(); }}><${Icon} name=${icon} size=${16} /><span>${title}</span><small>${kind}</small></li>`)}
      ${!found.length && html`<li role="option" aria-selected="false" class="faint">Nothing has this name.</li>`}
    </ul>`}
  </div>`;
}
