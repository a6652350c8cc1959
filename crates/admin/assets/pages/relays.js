// Who delivers: the relays, and the shards they hold as a map.

import { pause, resume } from "../act.js";
import { get } from "../api.js";
import { duration, number } from "../format.js";
import { button, empty, pill, table, time } from "../parts.js";
import { shardMap } from "../shards.js";
import { h } from "../view.js";

async function load({ path, signal }) {
  const [{ relays }, { shards }, { pauses }] = await Promise.all(
    ["relays", "shards", "pauses"].map((name) => get(path(name), {}, signal)),
  );
  return { relays, shards, pauses };
}

function control(context, relay, pauses) {
  const paused = pauses.find(({ kind, name }) => kind === "relay" && name === relay.name);
  if (!context.operator) return paused ? pill("held", "paused") : "";
  return paused
    ? button("Resume", {
      key: "resume",
      name: "resume",
      kind: "small",
      onclick: () => resume(context, paused, `relay ${relay.name}`),
    })
    : button("Pause", {
      key: "pause",
      name: "pause",
      kind: "small",
      onclick: () =>
        pause(
          context,
          { kind: "relay", name: relay.name },
          `relay ${relay.name}`,
          "It hands its shards over to the others and stands by.",
        ),
    });
}

const view = (context, { relays, shards, pauses }) => [
  relays.length
    ? table(
      "Relays",
      [
        {
          head: "Relay",
          kind: "main",
          cell: (relay) => [h("strong", null, relay.name), h("span.under", null, relay.owner)],
        },
        {
          head: "State",
          cell: (
            relay,
          ) => [
            pill(relay.alive ? "good" : "bad", relay.alive ? "alive" : "gone"),
            pauses.some(({ kind, name }) => kind === "relay" && name === relay.name) &&
            pill("held", "paused"),
          ],
        },
        { head: "Ordering", cell: (relay) => relay.ordering },
        { head: "Shards", kind: "number", cell: (relay) => number(relay.shards) },
        { head: "Heartbeat", kind: "when", cell: (relay) => `${duration(relay.heartbeat_age_s)} ago` },
        { head: "Started", kind: "when", cell: (relay) => time(relay.started_at) },
        { head: "Version", cell: (relay) => relay.version },
        { head: "", kind: "row-actions", cell: (relay) => control(context, relay, pauses) },
      ],
      relays,
      ({ owner }) => owner,
    )
    : empty("No relay has reported", "Start one with: posthaste relay"),
  shardMap(context, shards, relays),
];

export default { key: "r", title: "Relays & shards", every: 2000, load, view };
