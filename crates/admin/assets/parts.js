// The parts that pages are made of.

import { now } from "./api.js";
import { absolute, age } from "./format.js";
import { notice } from "./notice.js";
import { h } from "./view.js";

export const icon = (name) =>
  h(
    "svg.icon",
    { "aria-hidden": "true", focusable: "false" },
    h("use", { href: `assets/icons.svg#${name}` }),
  );

export const pill = (status, text = status) => h("span.pill", { class: `is-${status}` }, text);

/** How long ago or until when; the exact time on hover. */
export function time(at) {
  if (!at) return h("span.soft", null, "–");
  const seconds = (now() - Date.parse(at)) / 1000;
  let text = age(Math.abs(seconds));
  if (text !== "now") text = seconds < 0 ? `in ${text}` : `${text} ago`;
  return h("time", { datetime: at, title: absolute(at) }, text);
}

export const button = (text, { name, kind = "", ...props }) =>
  h("button.button", { type: "button", class: kind, ...props }, name && icon(name), h("span", null, text));

export const card = (title, { aside, ...props }, ...content) =>
  h(
    "section.card",
    { "aria-label": title, ...props },
    h("header.card-head", null, h("h2", null, title), aside),
    content,
  );

export const empty = (title, text) =>
  h("div.empty", null, h("p.empty-title", null, title), text && h("p", null, text));

/** A command somebody can paste into a terminal. */
export const command = (text) =>
  h(
    "div.command",
    null,
    h("code", { tabindex: "0" }, text),
    h("button.button.quiet", {
      type: "button",
      "aria-label": "Copy the command",
      title: "Copy",
      onclick: () =>
        navigator.clipboard?.writeText(text).then(
          () => notice("Copied"),
          () => notice("The browser did not allow to copy"),
        ),
    }, icon("copy")),
  );

/** Columns `{ head, cell(row), kind }`; on a phone each row becomes a card whose cells carry their heads. */
export const table = (label, columns, rows, key) =>
  h(
    "div.table-frame",
    null,
    h(
      "table",
      { "aria-label": label },
      h(
        "thead",
        null,
        h("tr", null, columns.map(({ head, kind }) => h("th", { scope: "col", class: kind }, head))),
      ),
      h(
        "tbody",
        null,
        rows.map((row) =>
          h(
            "tr",
            { key: key(row) },
            columns.map(({ head, cell, kind }) => h("td", { class: kind, "data-head": head }, cell(row))),
          )
        ),
      ),
    ),
  );

/** A bar that shows a part of a whole. */
export const bar = (part, kind = "") =>
  h("span.bar", {
    class: kind,
    "aria-hidden": "true",
    vars: { "--part": Math.min(1, Math.max(0, part)).toFixed(4) },
  });

/** Rows of names and values. */
export const facts = (rows) =>
  h(
    "dl.facts",
    null,
    rows.filter(Boolean).map(([name, value]) =>
      h("div", { key: name }, h("dt", null, name), h("dd", null, value))
    ),
  );
