// Light, dark or the system's choice, kept in localStorage. The style sheet uses light-dark(), so
// the whole theme is the `color-scheme` of the root element.
//
//   theme.value               "system", "light" or "dark"
//   isDark.value              what is shown now; charts draw again when it changes
//   <${ThemeButton} />        switches to the next

import { Icon } from "./icons.js";
import { computed, effect, html, signal } from "./preact.js";

const KEY = "riverrun.theme";
const CHOICES = ["system", "light", "dark"];
const ICONS = { system: "system", light: "sun", dark: "moon" };

const stored = window.localStorage.getItem(KEY);
export const theme = signal(CHOICES.includes(stored) ? stored : "system");

const media = window.matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(media.matches);
media.addEventListener("change", () => (systemDark.value = media.matches));

export const isDark = computed(() => theme.value === "dark" || (theme.value === "system" && systemDark.value));

effect(() => {
  window.localStorage.setItem(KEY, theme.value);
  document.documentElement.dataset.theme = theme.value;
});

export function nextTheme() {
  theme.value = CHOICES[(CHOICES.indexOf(theme.value) + 1) % CHOICES.length];
}

export function ThemeButton() {
  const label = `Theme: ${theme.value}. Switch to the next theme`;
  return html`<button class="ghost icon-only" type="button" aria-label=${label} title=${label} onClick=${nextTheme}>
    <${Icon} name=${ICONS[theme.value]} />
  </button>`;
}
