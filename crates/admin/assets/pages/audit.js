// Who changed what.

import { get } from "../api.js";
import { number } from "../format.js";
import { empty, icon, pill, table, time } from "../parts.js";
import { h } from "../view.js";

const PAGE = 50;

function state({ ended_at, error }) {
  if (error) return [pill("bad", "failed"), h("span.under", null, error)];
  return ended_at ? pill("good", "done") : pill("warn", "not ended");
}

const view = (context, { audit, next }) =>
  audit.length
    ? [
      table(
        "Changes, newest first",
        [
          {
            head: "When",
            kind: "when",
            cell: ({ at }) => time(at),
          },
          {
            head: "Who",
            cell: ({ by, account }) => [h("strong", null, by), account && h("span.under", null, account)],
          },
          {
            head: "What",
            cell: ({ action }) => h("code", null, action),
          },
          { head: "To what", kind: "subject", cell: ({ subject }) => subject },
          { head: "Changed", kind: "number", cell: ({ affected }) => number(affected ?? 0) },
          { head: "State", cell: state },
        ],
        audit,
        ({ id }) => id,
      ),
      h(
        "div.pager",
        null,
        context.query.cursor && h("a.button", { href: context.link("audit") }, icon("first"), "Newest"),
        next !== null && next !== undefined &&
          h(
            "a.button",
            { href: context.link("audit", undefined, { cursor: next }), rel: "next" },
            "Older",
            icon("next"),
          ),
      ),
    ]
    : empty("Nobody has changed anything yet", "Replays, discards, pauses and purges are written down here.");

export default {
  key: "a",
  title: "Audit",
  every: 5000,
  load: ({ path, query, signal }) => get(path("audit"), { cursor: query.cursor, limit: PAGE }, signal),
  view,
};
