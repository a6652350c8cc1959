// Short words about what just happened, read aloud by screen readers.

import { h, mount } from "./view.js";

const SHOWN_MS = 6000;
const draw = mount(document.getElementById("notices"));
let shown = [];
let last = 0;

/** Says it for some seconds; `kind` is "good" or "bad". */
export function notice(text, kind = "good") {
  const key = ++last;
  shown = [...shown.slice(-3), { key, text, kind }];
  show();
  setTimeout(() => {
    shown = shown.filter((one) => one.key !== key);
    show();
  }, SHOWN_MS);
}

const show = () => draw(shown.map(({ key, text, kind }) => h("p.notice", { key, class: kind }, text)));
