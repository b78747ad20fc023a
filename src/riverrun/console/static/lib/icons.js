// Icons as 16-pixel strokes in the text's colour. <${Icon} name="topics" />; hidden from readers.

import { html } from "./preact.js";

const paths = {
  overview: "M2 9l3-4 3 3 3-5 3 4M2 13.5h12",
  topics: "M2.5 4h11M2.5 8h11M2.5 12h7",
  groups: "M5.5 7a2 2 0 100-4 2 2 0 000 4zM1.8 13c.2-2.4 1.7-3.8 3.7-3.8S9 10.6 9.2 13M10.5 7.2a1.8 1.8 0 10-.8-3.5M11 9.3c1.8.1 3 1.4 3.2 3.4",
  nodes: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  quorum: "M8 5a1.7 1.7 0 100-3.4A1.7 1.7 0 008 5zM3.7 14a1.7 1.7 0 100-3.4 1.7 1.7 0 000 3.4zM12.3 14a1.7 1.7 0 100-3.4 1.7 1.7 0 000 3.4zM7 5l-2.5 5.5M9 5l2.5 5.5M5.5 12.3h5",
  timeline: "M8 4v4l2.5 2M14 8A6 6 0 112 8a6 6 0 0112 0z",
  moves: "M2 5h11M10 2l3 3-3 3M14 11H3M6 8l-3 3 3 3",
  transactions: "M3 8.5l3.2 3.2L13 5",
  pipelines: "M2 4h4v3H2zM10 9h4v3h-4zM6 5.5h2.5v5H10",
  reports: "M4 2h5.5L13 5.5V14H4zM9 2v4h4M6.5 9h4M6.5 11.5h4",
  users: "M8 7.5a2.7 2.7 0 100-5.4 2.7 2.7 0 000 5.4zM2.8 14c.3-2.8 2.3-4.4 5.2-4.4s4.9 1.6 5.2 4.4",
  acls: "M8 1.8l5 2v4c0 3-2 5.3-5 6.4-3-1.1-5-3.4-5-6.4v-4zM6 8l1.5 1.5L10.5 6.5",
  quotas: "M2.5 12a6 6 0 1111 0M8 10l3-4",
  search: "M7 12A5 5 0 107 2a5 5 0 000 10zM10.7 10.7L14 14",
  sun: "M8 11a3 3 0 100-6 3 3 0 000 6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13.5 9.5A6 6 0 016.5 2.5a6 6 0 107 7z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  more: "M3 8h.01M8 8h.01M13 8h.01",
  chevron: "M6 3.5L10.5 8 6 12.5",
  down: "M3.5 6L8 10.5 12.5 6",
  play: "M4.5 3l8 5-8 5z",
  pause: "M5 3v10M11 3v10",
  refresh: "M13.5 8a5.5 5.5 0 11-1.7-4M12.5 1.5V4.5h-3",
  plus: "M8 3v10M3 8h10",
  download: "M8 2v8M4.5 7L8 10.5 11.5 7M2.5 13.5h11",
  link: "M6.5 9.5l3-3M7 4.5l1.5-1.5a3 3 0 014.5 4.5L11.5 9M9 11.5L7.5 13A3 3 0 013 8.5L4.5 7",
  warning: "M8 2.5l6.3 11H1.7zM8 6.5v3M8 11.5h.01",
  error: "M8 14A6 6 0 108 2a6 6 0 000 12zM8 5v3.5M8 11h.01",
  check: "M8 14A6 6 0 108 2a6 6 0 000 12zM5.5 8l2 2 3.2-3.8",
  menu: "M2 4h12M2 8h12M2 12h12",
  send: "M14 2L7 9M14 2l-4.5 12L7 9 2 6.5z",
  filter: "M2 3h12l-4.5 5.5V13l-3-1.5V8.5z",
};

export function Icon({ name, size = 16 }) {
  return html`<svg class="icon" viewBox="0 0 16 16" width=${size} height=${size} aria-hidden="true" focusable="false">
    <path d=${paths[name] ?? paths.more} />
  </svg>`;
}
