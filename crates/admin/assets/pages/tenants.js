// Whose events wait.

import { get } from "../api.js";
import { count } from "../format.js";
import { bar, empty, table } from "../parts.js";
import { h } from "../view.js";

function view(context, { tenants, estimated }) {
  const most = Math.max(1, ...tenants.map(({ events }) => events));
  if (!tenants.length) return empty("Nothing waits", "Every tenant's events are delivered.");
  return [
    estimated &&
    h("p.lead", null, "There are more events than were counted: these are the parts of the oldest of them."),
    table(
      "Backlog by tenant",
      [
        {
          head: "Tenant",
          kind: "main",
          cell: ({ tenant }) =>
            tenant
              ? h("a.row-link", { href: context.link("events", undefined, { tenant }) }, tenant)
              : h("em", null, "without a tenant"),
        },
        { head: "Waiting", kind: "number", cell: ({ events }) => count(events, estimated) },
        { head: "", kind: "wide", cell: ({ events }) => bar(events / most) },
      ],
      tenants,
      ({ tenant }) => tenant ?? "",
    ),
  ];
}

export default {
  key: "t",
  title: "Tenants",
  every: 5000,
  load: ({ path, signal }) => get(path("tenants"), {}, signal),
  view,
};
