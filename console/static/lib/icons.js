// Icons as paths on a grid of 24. They are decoration: the text beside them, or a label, says the same.
import { html } from "./html.js";

const PATHS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z",
  cluster: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.500h.01M12 7.500h4M12 16.500h4",
  topics: "M4 6h16M4 12h16M4 18h10",
  groups: "M9 11a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7zM2.500 20c.5-3.500 3-5.500 6.500-5.500s6 2 6.500 5.500M16 4.500a3.500 3.500 0 0 1 0 6.500M18 14.800c2 .8 3.200 2.600 3.500 5.200",
  messages: "M4 5h16v12H9l-5 4z M8 9.500h8M8 13h5",
  dead: "M12 3 2.500 20h19zM12 10v4.500M12 17.500h.01",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.500v5M9 14.500v5",
  audit: "M6 3h9l4 4v14H6zM14.500 3v4.500H19M9.500 12h6M9.500 16h6",
  search: "M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13zM15.500 15.500 20 20",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2.500v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400M17.300 17.300l1.400 1.400M5.300 18.700l1.400-1.400M17.300 6.700l1.400-1.400",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z",
  menu: "M4 6.500h16M4 12h16M4 17.500h16",
  close: "M6 6l12 12M18 6 6 18",
  check: "M5 12.500 10 17.500 19.500 7",
  right: "M9.500 5.500 16 12l-6.500 6.500",
  left: "M14.500 5.500 8 12l6.500 6.500",
  up: "M6 14.500 12 8.500l6 6",
  down: "M6 9.500l6 6 6-6",
  plus: "M12 5v14M5 12h14",
  trash: "M4.500 7h15M9.500 7V4.500h5V7M6.500 7l1 13h9l1-13M10.500 11v5M13.500 11v5",
  edit: "M4 20h4.500L20 8.500 15.500 4 4 15.500zM13 6.500l4.500 4.500",
  send: "M21 3 10.500 13.500M21 3l-6.500 18-4-7.500L3 9.500z",
  refresh: "M20 11a8 8 0 0 0-14.500-3.500L4 9M4 4v5h5M4 13a8 8 0 0 0 14.500 3.500L20 15M20 20v-5h-5",
  copy: "M9 9h11v11H9zM5.500 15H4V4h11v1.500",
  warn: "M12 3.500 2.500 20h19zM12 10v4.500M12 17.500h.01",
  info: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5.500M12 7.500h.01",
  rewind: "M11 6 4 12l7 6zM20 6l-7 6 7 6z",
  crown: "M4 18h16M4 15 3 7l5 4 4-6 4 6 5-4-1 8z",
  user: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4.500 20.500c.7-4 3.500-6 7.500-6s6.800 2 7.500 6",
  logout: "M14 4H5v16h9M10 12h11M17.500 8.500 21 12l-3.500 3.500",
  kube: "M12 2.500 20.500 7v10L12 21.500 3.500 17V7zM12 8.500v7M9 10l6 4M15 10l-6 4",
  disk: "M4 6c0-1.700 3.600-3 8-3s8 1.300 8 3-3.600 3-8 3-8-1.300-8-3zM4 6v12c0 1.700 3.600 3 8 3s8-1.300 8-3V6M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5.500l3.500 2",
  empty: "M4 13l2.500-8h11L20 13v6H4zM4 13h5l1 2.500h4L15 13h5",
};

export function Icon({ name, size = 18 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}

/** The product's mark: four strokes and the fifth across them. */
export function Mark({ size = 28 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 32 32" aria-hidden="true" focusable="false" class="mark">
    <rect width="32" height="32" rx="8" class="mark-back" />
    <path d="M9 8v16M14 8v16M19 8v16M24 8v16" class="mark-tally" />
    <path d="M5.500 21.500 26.500 10.500" class="mark-fifth" />
  </svg>`;
}
