// One event: what happened to it, why it is where it is, and what is in it.

import { one, pause } from "../act.js";
import { get } from "../api.js";
import { button, card, command, empty, facts, pill } from "../parts.js";
import { payload } from "../payload.js";
import { timeline } from "../timeline.js";
import { h } from "../view.js";
import { aggregate } from "./events.js";

const CAN = { replay: ["sent", "dead"], discard: ["new", "retry", "dead"] };

async function load(context) {
  try {
    return await get(context.path("events", context.argument), {}, context.signal);
  } catch (error) {
    // The doctor knows why an event may not be found; that is an answer, not a failure.
    if (error.status === 404) return { missing: error.message };
    throw error;
  }
}

const part = (text) => `${new TextEncoder().encode(text).length}:${text}`;

/** What keeps the event in order, as people call it: its aggregate, or a key of the application's own. */
function keyName(event) {
  const { tenant, aggregate_type, aggregate_id, ordering_key } = event;
  const derived = [tenant ?? "", aggregate_type ?? "", aggregate_id ?? ""].map(part).join("");
  if (ordering_key !== derived) return `ordering key ${ordering_key}`;
  return `${aggregate(event)}${tenant ? ` of tenant ${tenant}` : ""}`;
}

const headers = (list) =>
  card("Headers", {}, facts(Object.entries(list).map(([name, value]) => [name, h("code", null, value)])));

function view(context, data) {
  if (data.missing !== undefined) return empty("This event is not in the outbox", data.missing);
  const { event, explanation } = data;
  const hasAggregate = event.aggregate_type && event.aggregate_id;
  return [
    h(
      "div.between.event-head",
      null,
      h("div.grow", null, pill(event.status), " ", h("code.id", null, event.id)),
      context.operator && h(
        "div.actions",
        null,
        ["replay", "discard"].filter((action) => CAN[action].includes(event.status)).map((action) =>
          button(action === "replay" ? "Replay…" : "Discard…", {
            key: action,
            name: action,
            kind: action === "replay" ? "primary" : "",
            onclick: () => one(context, action, event),
          })
        ),
        // One that is unordered has none.
        event.key && button("Pause its key…", {
          key: "pause",
          name: "pause",
          onclick: () =>
            pause(
              context,
              { kind: "key", name: event.key },
              keyName(event),
              "Events of this key wait at all destinations; others go on.",
              keyName(event),
            ),
        }),
      ),
    ),
    explanation &&
    h(
      "section.explanation",
      { "aria-label": "Doctor", class: `cause-${explanation.cause}` },
      h("p", null, explanation.sentence),
      explanation.mend && command(explanation.mend),
    ),
    h(
      "div.columns.wide-left",
      null,
      card("Timeline", {}, timeline(data)),
      h(
        "div.stack",
        null,
        card(
          "Details",
          {},
          facts([
            [
              "Aggregate",
              hasAggregate
                ? h("a", {
                  href: context.link("events", undefined, {
                    aggregate_type: event.aggregate_type,
                    aggregate_id: event.aggregate_id,
                  }),
                }, aggregate(event))
                : "none",
            ],
            [
              "Tenant",
              event.tenant
                ? h("a", { href: context.link("events", undefined, { tenant: event.tenant }) }, event.tenant)
                : "–",
            ],
            ["Topic", event.topic ?? "–"],
            ["Destination", event.destination ?? "–"],
            ["Sequence", h("span.number", null, event.sequence)],
            ["Shard", h("span.number", null, event.shard)],
            event.routing_key && ["Routing key", event.routing_key],
            ["Ordering key", event.ordering_key ? h("code", null, event.ordering_key) : "none: unordered"],
            event.schema_id &&
            ["Schema", `${event.schema_id}${event.schema_version ? ` · ${event.schema_version}` : ""}`],
            ["Content type", event.content_type ?? "–"],
            event.undecodable && ["Undecodable", event.undecodable],
          ]),
        ),
        event.headers && Object.keys(event.headers).length > 0 && headers(event.headers),
        payload(context, event),
      ),
    ),
  ];
}

export default {
  title: "Event",
  every: 2000,
  load,
  view,
  heading: ({ data }) => data?.event?.type ?? "Event",
};
