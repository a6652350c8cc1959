// Light, dark, or as the system has it.

const NAME = "posthaste.theme";
const THEMES = ["system", "light", "dark"];

export const theme = () => localStorage.getItem(NAME) ?? "system";

export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

/** The next of the three; gives its name. */
export function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  localStorage.setItem(NAME, next);
  applyTheme();
  return next;
}
