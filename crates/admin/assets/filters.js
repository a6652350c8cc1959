// The filter of a list of events: kept in the address, so that it can be sent to a colleague.

import { go } from "./router.js";
import { button, icon } from "./parts.js";
import { h } from "./view.js";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const FIELDS = [
  ["type", "Type", "order.placed"],
  ["aggregate_type", "Aggregate type", "Order"],
  ["aggregate_id", "Aggregate id", "42"],
  ["tenant", "Tenant", "acme"],
];
const TIMES = [["from", "Written from"], ["before", "Written before"]];
const NAMES = ["status", ...FIELDS.map(([name]) => name), ...TIMES.map(([name]) => name)];

/** The filter in the address. */
export const filterOf = ({ query }) =>
  Object.fromEntries(NAMES.filter((name) => query[name]).map((name) => [name, query[name]]));

const change = (context, filter) => go(context.link(context.page, undefined, filter));

/** What was typed: an event's id opens it, `Order/42` is an aggregate, anything else a type. */
function searched(context, text, filter) {
  const rest = { ...filter, type: undefined, aggregate_type: undefined, aggregate_id: undefined };
  if (ID.test(text)) return go(context.link("event", text.toLowerCase()));
  const slash = text.indexOf("/");
  if (slash > 0) {
    return change(context, {
      ...rest,
      aggregate_type: text.slice(0, slash),
      aggregate_id: text.slice(slash + 1),
    });
  }
  change(context, { ...rest, type: text });
}

// The address holds universal time, the field shows the reader's.
const local = (at) => {
  const date = new Date(at);
  return Number.isNaN(date.getTime())
    ? ""
    : new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};
const universal = (value) => (value ? new Date(value).toISOString() : undefined);

/** The search box and the fields; `fixed` is what this page always asks for. */
export function filterForm(context, fixed = {}) {
  const filter = filterOf(context);
  const given = FIELDS.concat(TIMES).filter(([name]) => filter[name]).length;
  const set = (name, value) => change(context, { ...filter, [name]: value });
  const { state } = context;
  return h(
    "search.filters",
    null,
    h(
      "form.search",
      {
        onsubmit: (event) => {
          event.preventDefault();
          searched(context, new FormData(event.target).get("text").trim(), filter);
        },
      },
      icon("search"),
      h("input", {
        id: "search",
        name: "text",
        type: "search",
        autocomplete: "off",
        spellcheck: "false",
        "aria-label": "Search events",
        placeholder: "Event id, Order/42, or a type",
        value: filter.aggregate_type
          ? `${filter.aggregate_type}/${filter.aggregate_id ?? ""}`
          : filter.type ?? "",
      }),
      h("kbd", { "aria-hidden": "true" }, "/"),
    ),
    button(given ? `Filters (${given})` : "Filters", {
      "aria-expanded": String(Boolean(state.filtersOpen)),
      "aria-controls": "filters",
      onclick: () => {
        state.filtersOpen = !state.filtersOpen;
        context.redraw();
      },
    }),
    Object.keys(filter).some((name) => !fixed[name]) &&
      button("Clear", { kind: "quiet", onclick: () => change(context, {}) }),
    h(
      "div.filter-fields",
      { id: "filters", hidden: !state.filtersOpen },
      FIELDS.map(([name, label, example]) =>
        h(
          "label.field",
          { key: name },
          label,
          h("input", {
            type: "text",
            value: filter[name] ?? "",
            placeholder: example,
            spellcheck: "false",
            onchange: (event) => set(name, event.target.value.trim()),
          }),
        )
      ),
      TIMES.map(([name, label]) =>
        h(
          "label.field",
          { key: name },
          label,
          h("input", {
            type: "datetime-local",
            value: filter[name] ? local(filter[name]) : "",
            onchange: (event) => set(name, universal(event.target.value)),
          }),
        )
      ),
    ),
  );
}

/** One of the states, or all. */
export function statusTabs(context, statuses) {
  const filter = filterOf(context);
  const tab = (value, text) =>
    h("a.tab", {
      key: text,
      href: context.link(context.page, undefined, { ...filter, status: value }),
      "aria-current": filter.status === value ? "true" : null,
    }, text);
  return h(
    "nav.tabs",
    { "aria-label": "State" },
    tab(undefined, "all"),
    statuses.map((status) => tab(status, status)),
  );
}

/** To the next page and back to the first. */
export function pager(context, { events, next, examined, window_ended }) {
  const filter = filterOf(context);
  return h(
    "div.pager",
    null,
    h(
      "p.soft",
      { role: "status" },
      window_ended
        ? `${events.length} found among the ${
          examined.toLocaleString("en")
        } events looked at so far; older ones were not looked at yet.`
        : `${events.length} on this page`,
    ),
    context.query.cursor &&
      h("a.button", { href: context.link(context.page, undefined, filter) }, icon("first"), "Newest"),
    next !== null && next !== undefined &&
      h(
        "a.button",
        { href: context.link(context.page, undefined, { ...filter, cursor: next }), rel: "next" },
        window_ended ? "Look further" : "Older",
        icon("next"),
      ),
  );
}
