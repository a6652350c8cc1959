// Where events go, and whether it takes them.

import { pause, resume } from "../act.js";
import { get } from "../api.js";
import { button, empty, pill, time } from "../parts.js";
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

function destination(context, { name, paused, breakers }) {
  const open = breakers.filter(({ state }) => STATES[state]);
  const what = { kind: "destination", name };
  return h(
    "section.card.destination",
    { key: name, "aria-label": name },
    h(
      "header.card-head",
      null,
      h("h2", null, name),
      paused ? pill("held", "paused") : pill(...(open.length ? STATES[open[0].state] : CLOSED)),
    ),
    open.length ? h("ul.breakers", null, open.map(breaker)) : h(
      "p.soft",
      null,
      paused ? "Its events wait until somebody resumes it." : "Every relay's breaker is closed.",
    ),
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

export default {
  key: "s",
  title: "Destinations",
  every: 2000,
  load: async ({ path, signal }) => (await get(path("destinations"), {}, signal)).destinations,
  view: (context, list) =>
    list.length ? h("div.grid", null, list.map((one) => destination(context, one))) : empty(
      "No destination is known",
      "A relay that runs in this process, or one whose breaker is open, makes its destinations known.",
    ),
};
