// Dead letters: what was given up on, and the way back.

import { all, one } from "../act.js";
import { filterForm, filterOf, pager } from "../filters.js";
import { button, empty, table, time } from "../parts.js";
import { h } from "../view.js";
import { columns, load, rowKey } from "./events.js";

const FIXED = { status: "dead" };

const actionsOf = (context) => ({
  head: "Actions",
  kind: "row-actions",
  cell: (event) =>
    event.id && ["replay", "discard"].map((action) =>
      button(action === "replay" ? "Replay" : "Discard", {
        key: action,
        name: action,
        kind: "small",
        "aria-label": `${action} event ${event.id}`,
        onclick: () => one(context, action, event),
      })
    ),
});

export default {
  key: "d",
  title: "Dead letters",
  every: 2000,
  load: (context) => load(context, FIXED),
  view: (context, page) => {
    const filter = { ...filterOf(context), ...FIXED };
    const shown = columns(context).filter(({ head }) => !["State", "Written"].includes(head));
    shown.push({ head: "Dead", kind: "when", cell: (event) => time(event.dead_at) });
    if (context.operator) shown.push(actionsOf(context));
    return [
      h(
        "p.lead",
        null,
        "Events that were given up on. They are kept until somebody replays or discards them.",
      ),
      h(
        "div.between",
        null,
        filterForm(context),
        context.operator && page.events.length > 0 &&
          h(
            "div.actions",
            null,
            button("Replay all that match…", {
              name: "replay",
              kind: "primary",
              onclick: () => all(context, "replay", filter),
            }),
            button("Discard all that match…", {
              name: "discard",
              onclick: () => all(context, "discard", filter),
            }),
          ),
      ),
      page.events.length ? table("Dead letters, newest first", shown, page.events, rowKey) : empty(
        Object.keys(filter).length > 1 ? "No dead letter matches this filter" : "No dead letters",
        "Nothing was given up on.",
      ),
      page.events.length > 0 && pager(context, page),
    ];
  },
};
