// What happened to an event, first to last: enqueued, failed attempts, where it stands.

import { absolute, many } from "./format.js";
import { time } from "./parts.js";
import { h } from "./view.js";

// A relay is written down as its name, a slash, and its run; the run says nothing here.
const relayName = (relay) => relay.replace(/\/[^/]*$/, "");

const step = (kind, title, at, text) =>
  h(
    "li",
    { class: kind },
    h("span.step-head", null, h("strong", null, title), at && time(at)),
    at && h("span.under", null, absolute(at)),
    text && h("p.step-text", null, text),
  );

// Most events are written in the moment in which they occur: then a second time would say nothing.
const earlier = ({ created_at, occurred_at }) =>
  Math.abs(Date.parse(created_at) - Date.parse(occurred_at)) >= 1000;

export function timeline({ event, attempts }) {
  const end = {
    sent: () => step("good", "Sent", event.sent_at, event.destination && `to ${event.destination}`),
    dead: () =>
      step(
        "bad",
        "Dead",
        event.dead_at,
        event.wait === "parked" ? "Its key waits for a decision." : "Given up on.",
      ),
    discarded: () => step("held", "Discarded", event.dead_at, "An operator gave it up."),
    retry: () => step("warn next", "Next attempt", event.not_before),
    sending: () => step("first next", "Sending", null, event.locked_by && `by ${event.locked_by}`),
    new: () =>
      step(
        "first next",
        event.not_before ? "Due" : "Waiting",
        event.not_before,
        event.wait && `Reason: ${event.wait}`,
      ),
  }[event.status];
  return h(
    "ol.timeline",
    null,
    step("", "Enqueued", event.created_at, earlier(event) && `occurred ${absolute(event.occurred_at)}`),
    attempts.map(({ attempt, at, relay, destination, error }) =>
      h(
        "li.warn",
        { key: `${attempt}/${at}` },
        h("span.step-head", null, h("strong", null, `Attempt ${attempt} failed`), time(at)),
        h("span.under", null, absolute(at), ` · ${relayName(relay)} → ${destination}`),
        h("p.step-text.error-text", null, error),
      )
    ),
    event.replay > 0 && step("first", `Replayed (${many(event.replay, "time")})`, null),
    end?.(),
  );
}
