// The keyboard: `g` and a letter goes to a page, `/` searches, `j` and `k` walk through a list, `?` explains.

import { open } from "./dialog.js";
import { button } from "./parts.js";
import { h } from "./view.js";

const OFF = "posthaste.shortcuts";
const SECOND_KEY_MS = 1500;
/** When `g` was pressed, if the second key is awaited. */
let waiting = null;

const on = () => localStorage.getItem(OFF) !== "off";
const typing = (target) => target.closest?.("input, select, textarea, dialog") !== null;

/** `pages`: `{ key, title, page }`; the others are functions. */
export function listenToKeys({ pages, goTo, search, theme }) {
  const help = () => explain(pages);
  const single = { "/": search, "?": help, t: theme, j: () => walk(1), k: () => walk(-1) };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || !on()) return;
    if (document.querySelector("dialog[open]")) return;
    const afterG = waiting !== null && event.timeStamp - waiting < SECOND_KEY_MS;
    waiting = null;
    const page = afterG && pages.find(({ key }) => key === event.key);
    if (page) goTo(page.page);
    else if (event.key === "g") waiting = event.timeStamp;
    else if (single[event.key]) single[event.key]();
    else return;
    event.preventDefault();
  });
  return help;
}

function walk(by) {
  const rows = [...document.querySelectorAll("tbody a.row-link")];
  if (!rows.length) return;
  const current = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, current < 0 ? 0 : current + by))].focus();
}

function explain(pages) {
  const row = (keys, text) =>
    h("div", { key: text }, h("dt", null, keys.map((key) => h("kbd", { key }, key))), h("dd", null, text));
  open(
    "Keyboard",
    ({ close, redraw }) =>
      h(
        "div",
        null,
        h("h2", null, "Keyboard"),
        h(
          "dl.shortcuts",
          null,
          pages.map(({ key, title }) => row(["g", key], title)),
          row(["/"], "Search events"),
          row(["j", "k"], "Next and previous row"),
          row(["Enter"], "Open the row"),
          row(["t"], "Light, dark, system"),
          row(["?"], "This list"),
          row(["Esc"], "Close"),
        ),
        h(
          "label.check",
          null,
          h("input", {
            type: "checkbox",
            checked: on(),
            onchange: (event) => {
              localStorage.setItem(OFF, event.target.checked ? "on" : "off");
              redraw();
            },
          }),
          "Shortcuts are on",
        ),
        h("div.dialog-buttons", null, button("Close", { onclick: close, kind: "primary", autofocus: true })),
      ),
  );
}
