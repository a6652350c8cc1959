// One event: what happened to it, why it is where it is, and what is in it.

import { one, pause } from "../act.js";
import { get } from "../api.js";
import { absolute, many, size } from "../format.js";
import { button, card, command, empty, facts, pill, time } from "../parts.js";
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

const step = (kind, title, at, text) =>
  h("li", { class: kind }, h("span.step-head", null, h("strong", null, title), at && time(at)), at && h("span.under", null, absolute(at)), text && h("p.step-text", null, text));

// Most events are written in the moment in which they occur: then a second time would say nothing.
const earlier = ({ created_at, occurred_at }) => Math.abs(Date.parse(created_at) - Date.parse(occurred_at)) >= 1000;

function timeline({ event, attempts }) {
  const end = {
    sent: () => step("good", "Sent", event.sent_at, event.destination && `to ${event.destination}`),
    dead: () => step("bad", "Dead", event.dead_at, event.wait === "parked" ? "Its key waits for a decision." : "Given up on."),
    discarded: () => step("held", "Discarded", event.dead_at, "An operator gave it up."),
    retry: () => step("warn next", "Next attempt", event.not_before),
    sending: () => step("first next", "Sending", null, event.locked_by && `by ${event.locked_by}`),
    new: () => step("first next", event.not_before ? "Due" : "Waiting", event.not_before, event.wait && `Reason: ${event.wait}`),
  }[event.status];
  return h("ol.timeline", null,
    step("", "Enqueued", event.created_at, earlier(event) && `occurred ${absolute(event.occurred_at)}`),
    attempts.map(({ attempt, at, relay, destination, error }) => h("li.warn", { key: `${attempt}/${at}` },
      h("span.step-head", null, h("strong", null, `Attempt ${attempt} failed`), time(at)),
      h("span.under", null, absolute(at), ` · ${relay} → ${destination}`), h("p.step-text.error-text", null, error))),
    event.replay > 0 && step("first", `Replayed (${many(event.replay, "time")})`, null),
    end?.());
}

function payload(context, event) {
  const { state, operator } = context;
  const ask = async () => {
    state.payload = { asked: true };
    context.redraw();
    try {
      state.payload = await get(context.path("events", event.id, "payload"));
    } catch (error) {
      state.payload = { failure: error.message };
    }
    context.redraw();
  };
  const hide = () => { state.payload = undefined; context.redraw(); };
  const shown = state.payload?.payload !== undefined;
  return card("Payload", { aside: h("span.soft", null, size(event.payload_bytes ?? 0)) },
    !operator && h("p.soft", null, "Only an operator may look at payloads."),
    operator && !shown && h("div.payload-hidden", null,
      h("p.soft", null, state.payload?.failure ?? "Hidden. Looking at it may show personal data."),
      button("Show payload", { onclick: ask, disabled: Boolean(state.payload?.asked) })),
    operator && shown && [
      h("pre.payload", { tabindex: "0", "aria-label": "Payload" }, pretty(state.payload)),
      h("div.actions", null, h("span.soft.grow", null, `${state.payload.content_type ?? ""} ${state.payload.encoding === "base64" ? "(bytes, as base64)" : ""}`), button("Hide", { onclick: hide })),
    ]);
}

// For reading only; the bytes that are delivered are not touched.
function pretty({ payload, encoding }) {
  if (encoding !== "utf8") return payload;
  try {
    return JSON.stringify(JSON.parse(payload), null, 2);
  } catch {
    return payload;
  }
}

const headers = (list) => card("Headers", {}, facts(Object.entries(list).map(([name, value]) => [name, h("code", null, value)])));

function view(context, data) {
  if (data.missing !== undefined) return empty("This event is not in the outbox", data.missing);
  const { event, explanation } = data;
  const hasKey = event.aggregate_type && event.aggregate_id;
  return [
    h("div.between.event-head", null,
      h("div.grow", null, pill(event.status), " ", h("code.id", null, event.id)),
      context.operator && h("div.actions", null,
        ["replay", "discard"].filter((action) => CAN[action].includes(event.status)).map((action) =>
          button(action === "replay" ? "Replay…" : "Discard…", { key: action, name: action, kind: action === "replay" ? "primary" : "", onclick: () => one(context, action, event) })),
        hasKey && button("Pause its key…", {
          key: "pause", name: "pause",
          onclick: () => pause(context, { kind: "key", key: { tenant: event.tenant, aggregate_type: event.aggregate_type, aggregate_id: event.aggregate_id } }, `key ${aggregate(event)}`, "Events of this key wait at all destinations; others go on."),
        }))),
    explanation && h("section.explanation", { "aria-label": "Doctor", class: `cause-${explanation.cause}` },
      h("p", null, explanation.sentence), explanation.mend && command(explanation.mend)),
    h("div.columns.wide-left", null,
      card("Timeline", {}, timeline(data)),
      h("div.stack", null,
        card("Details", {}, facts([
          ["Aggregate", hasKey ? h("a", { href: context.link("events", undefined, { aggregate_type: event.aggregate_type, aggregate_id: event.aggregate_id }) }, aggregate(event)) : "none: unordered"],
          ["Tenant", event.tenant ? h("a", { href: context.link("events", undefined, { tenant: event.tenant }) }, event.tenant) : "–"],
          ["Topic", event.topic ?? "–"],
          ["Destination", event.destination ?? "–"],
          ["Sequence", h("span.number", null, event.sequence)],
          ["Shard", h("span.number", null, event.shard)],
          event.routing_key && ["Routing key", event.routing_key],
          event.ordering_key && ["Ordering key", h("code", null, event.ordering_key)],
          event.schema_id && ["Schema", `${event.schema_id}${event.schema_version ? ` · ${event.schema_version}` : ""}`],
          ["Content type", event.content_type ?? "–"],
          event.undecodable && ["Undecodable", event.undecodable],
        ])),
        event.headers && Object.keys(event.headers).length > 0 && headers(event.headers),
        payload(context, event))),
  ];
}

export default { title: "Event", every: 2000, load, view, heading: ({ data }) => data?.event?.type ?? "Event" };
