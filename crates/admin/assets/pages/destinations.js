// Where events go, and whether it takes them.

import { pause, resume } from "../act.js";
import { get } from "../api.js";
import { button, empty, pill, time } from "../parts.js";
import { standstill } from "../verdict.js";
import { h } from "../view.js";

const CLOSED = ["good", "takes events"];
const STATES = { open: ["bad", "breaker open"], half_open: ["warn", "being tried"] };

const breaker = ({ relay, state, since, error }) =>
  h(
    "li",
    { key: relay },
    h("span.step-head", null, h("strong", null, relay), pill(...(STATES[state] ?? CLOSED)), time(since)),
    error && h("p.error-text", null, error),
  );

// Without a relay nobody knows whether a destination takes events: it is not said that it does.
const standing = (paused, open, still) => {
  if (paused) return ["held", "paused"];
  if (open.length) return STATES[open[0].state];
  return still ? [still.kind, "nobody delivers"] : CLOSED;
};

function words(paused, still) {
  if (paused) return "Its events wait until somebody resumes it.";
  return still ? "No relay delivers to it now." : "Every relay's breaker is closed.";
}

function destination(context, { name, paused, breakers }, still) {
  const open = breakers.filter(({ state }) => STATES[state]);
  const what = { kind: "destination", name };
  return h(
    "section.card.destination",
    { key: name, "aria-label": name },
    h(
      "header.card-head",
      null,
      h("h2", null, name),
      pill(...standing(paused, open, still)),
    ),
    open.length
      ? h("ul.breakers", null, open.map(breaker))
      : h("p.soft", null, words(paused, still)),
    context.operator && h(
      "div.actions",
      null,
      paused
        ? button("Resume", {
          key: "resume",
          name: "resume",
          kind: "primary",
          onclick: () => resume(context, what, `destination ${name}`),
        })
        : button("Pause", {
          key: "pause",
          name: "pause",
          onclick: () =>
            pause(context, what, `destination ${name}`, "Its events wait; other destinations go on."),
        }),
    ),
  );
}

async function load({ path, signal }) {
  const [{ destinations }, { relays }, { pauses }] = await Promise.all(
    ["destinations", "relays", "pauses"].map((name) => get(path(name), {}, signal)),
  );
  return { destinations, still: standstill({ relays, pauses }) };
}

const view = (context, { destinations, still }) => [
  still && h("p.lead", { role: "status" }, h("strong", null, `${still.title}.`), ` ${still.text}`),
  destinations.length
    ? h("div.grid", null, destinations.map((one) => destination(context, one, still)))
    : empty(
      "No destination is known",
      "A relay that runs in this process, or one whose breaker is open, makes its destinations known.",
    ),
];

export default { key: "s", title: "Destinations", every: 2000, load, view };
