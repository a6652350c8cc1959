// All events, newest first, with search.

import { all } from "../act.js";
import { get } from "../api.js";
import { filterForm, filterOf, pager, statusTabs } from "../filters.js";
import { button, empty, pill, table, time } from "../parts.js";
import { h } from "../view.js";

const STATUSES = ["new", "sending", "retry", "sent", "dead", "discarded"];
const PAGE = 50;
// What can be done to all events of a state at once.
const BULK = { sent: ["replay"], dead: ["replay", "discard"], new: ["discard"], retry: ["discard"] };

/** The aggregate as people write it. */
export const aggregate = ({ aggregate_type, aggregate_id }) =>
  [aggregate_type, aggregate_id].filter((part) => part !== null && part !== undefined && part !== "").join(
    "/",
  );

// Long names break after their punctuation, not in the middle of a word.
const breakable = (name) => name.split(/(?<=[._:-])/).flatMap((part) => [part, h("wbr")]);

/** The columns that every list of events has. */
export const columns = (context) => [
  {
    head: "Event",
    kind: "main",
    cell: (event) => [
      event.id
        ? h("a.row-link", { href: context.link("event", event.id) }, breakable(event.type ?? "undecodable"))
        : h("span", null, "without an id"),
      h("span.under", null, aggregate(event) || "no aggregate"),
    ],
  },
  {
    head: "State",
    cell: (
      event,
    ) => [pill(event.status), event.wait && event.wait !== event.status && h("span.under", null, event.wait)],
  },
  { head: "Tenant", cell: (event) => event.tenant ?? h("span.soft", null, "–") },
  { head: "Attempts", kind: "number", cell: (event) => event.attempts },
  {
    head: "Last error",
    kind: "error",
    cell: (event) =>
      h(
        "span",
        { title: event.last_error ?? event.undecodable },
        event.last_error ?? event.undecodable ?? "",
      ),
  },
  { head: "Written", kind: "when", cell: (event) => time(event.created_at) },
];

export const rowKey = (event) => `${event.sequence}`;

export const load = (context, fixed = {}) =>
  get(
    context.path("events"),
    { ...filterOf(context), ...fixed, cursor: context.query.cursor, limit: PAGE },
    context.signal,
  );

export default {
  key: "e",
  title: "Events",
  every: 2000,
  load,
  view: (context, page) => {
    const filter = filterOf(context);
    const actions = context.operator ? BULK[filter.status] ?? [] : [];
    return [
      filterForm(context, { status: true }),
      h(
        "div.between",
        null,
        statusTabs(context, STATUSES),
        h(
          "div.actions",
          null,
          actions.map((action) =>
            button(action === "replay" ? "Replay matching…" : "Discard matching…", {
              key: action,
              name: action,
              onclick: () => all(context, action, filter),
            })
          ),
        ),
      ),
      page.events.length ? table("Events, newest first", columns(context), page.events, rowKey) : empty(
        "No event here",
        page.window_ended
          ? "None among those looked at so far."
          : Object.keys(filter).length
          ? "None matches this filter."
          : "As soon as a service writes one, it appears.",
      ),
      pager(context, page),
    ];
  },
};
