// Who delivers: the relays, and the shards they hold as a map.

import { pause, resume } from "../act.js";
import { get } from "../api.js";
import { duration, number } from "../format.js";
import { button, card, empty, pill, table, time } from "../parts.js";
import { h } from "../view.js";

const COLOURS = 8;

async function load({ path, signal }) {
  const [{ relays }, { shards }, { pauses }] = await Promise.all(["relays", "shards", "pauses"].map((name) => get(path(name), {}, signal)));
  return { relays, shards, pauses };
}

function map(context, shards, relays) {
  const owners = [...new Set([...relays.map(({ owner }) => owner), ...shards.map(({ locked_by }) => locked_by)].filter(Boolean))];
  const nameOf = (owner) => relays.find((relay) => relay.owner === owner)?.name ?? owner;
  const letter = (owner) => String.fromCharCode(65 + (owners.indexOf(owner) % 26));
  const looked = shards.find(({ shard }) => shard === context.state.shard);
  const look = (shard) => () => { context.state.shard = shard; context.redraw(); };
  const held = owners.filter((owner) => shards.some(({ locked_by }) => locked_by === owner));
  return card("Shards", { aside: h("span.soft", null, `${shards.length} in all`) },
    h("ul.shards", { onpointerleave: look(undefined) }, shards.map(({ shard, locked_by }) =>
      h("li", {
        key: shard, class: locked_by ? `owner-${owners.indexOf(locked_by) % COLOURS}` : "free", onpointerenter: look(shard),
        title: `Shard ${shard}: ${locked_by ? nameOf(locked_by) : "free"}`,
      }, h("span", { "aria-hidden": "true" }, locked_by ? letter(locked_by) : "·"), h("span.hidden", null, `Shard ${shard}: ${locked_by ? nameOf(locked_by) : "free"}`)))),
    h("p.shard-readout", null, looked
      ? [h("strong", null, `Shard ${looked.shard}`), ` · ${looked.locked_by ? nameOf(looked.locked_by) : "free"} · owner no. ${number(looked.epoch)} · starts at ${number(looked.mark)}`, looked.locked_until && [" · lease ends ", time(looked.locked_until)]]
      : h("span.soft", null, "Point at a shard to see its lease.")),
    h("ul.owners", null,
      held.map((owner) => h("li", { key: owner }, h("span.swatch", { class: `owner-${owners.indexOf(owner) % COLOURS}`, "aria-hidden": "true" }, letter(owner)),
        nameOf(owner), h("span.soft", null, number(shards.filter(({ locked_by }) => locked_by === owner).length)))),
      shards.some(({ locked_by }) => !locked_by) && h("li", { key: "free" }, h("span.swatch.free", { "aria-hidden": "true" }, "·"), "free", h("span.soft", null, number(shards.filter(({ locked_by }) => !locked_by).length)))));
}

function control(context, relay, pauses) {
  const paused = pauses.find(({ kind, name }) => kind === "relay" && name === relay.name);
  if (!context.operator) return paused ? pill("held", "paused") : "";
  return paused
    ? button("Resume", { key: "resume", name: "resume", kind: "small", onclick: () => resume(context, paused, `relay ${relay.name}`) })
    : button("Pause", { key: "pause", name: "pause", kind: "small", onclick: () => pause(context, { kind: "relay", name: relay.name }, `relay ${relay.name}`, "It hands its shards over to the others and stands by.") });
}

const view = (context, { relays, shards, pauses }) => [
  relays.length
    ? table("Relays", [
      { head: "Relay", kind: "main", cell: (relay) => [h("strong", null, relay.name), h("span.under", null, relay.owner)] },
      { head: "State", cell: (relay) => [pill(relay.alive ? "good" : "bad", relay.alive ? "alive" : "gone"), pauses.some(({ kind, name }) => kind === "relay" && name === relay.name) && pill("held", "paused")] },
      { head: "Ordering", cell: (relay) => relay.ordering },
      { head: "Shards", kind: "number", cell: (relay) => number(relay.shards) },
      { head: "Heartbeat", kind: "when", cell: (relay) => `${duration(relay.heartbeat_age_s)} ago` },
      { head: "Started", kind: "when", cell: (relay) => time(relay.started_at) },
      { head: "Version", cell: (relay) => relay.version },
      { head: "", kind: "row-actions", cell: (relay) => control(context, relay, pauses) },
    ], relays, ({ owner }) => owner)
    : empty("No relay has reported", "Start one with: posthaste relay"),
  map(context, shards, relays),
];

export default { key: "r", title: "Relays & shards", every: 2000, load, view };
