// The shards as a map: one square each, a colour and a letter for who holds it.

import { number } from "./format.js";
import { card, time } from "./parts.js";
import { h } from "./view.js";

const COLOURS = 8;
const FREE = { kind: "free", letter: "·", name: "free" };

export function shardMap(context, shards, relays) {
  const owners = ownersOf(shards, relays);
  const ownerOf = ({ locked_by }) => owners.get(locked_by) ?? FREE;
  const look = (shard) => () => {
    context.state.shard = shard;
    context.redraw();
  };
  const cell = (shard) => {
    const { kind, letter, name } = ownerOf(shard);
    const words = `Shard ${shard.shard}: ${name}`;
    return h(
      "li",
      { key: shard.shard, class: kind, title: words, onpointerenter: look(shard.shard) },
      h("span", { "aria-hidden": "true" }, letter),
      h("span.hidden", null, words),
    );
  };
  const looked = shards.find(({ shard }) => shard === context.state.shard);
  return card(
    "Shards",
    { aside: h("span.soft", null, `${shards.length} in all`) },
    h("ul.shards", { onpointerleave: look(undefined) }, shards.map(cell)),
    h(
      "p.shard-readout",
      null,
      looked ? lease(looked, ownerOf(looked)) : h("span.soft", null, "Point at a shard to see its lease."),
    ),
    h("ul.owners", null, legend(shards.map(ownerOf))),
  );
}

// By relay and not by shard: a relay keeps its colour while shards change hands.
function ownersOf(shards, relays) {
  const names = new Map(relays.map(({ owner, name }) => [owner, name]));
  for (const { locked_by } of shards) if (locked_by && !names.has(locked_by)) names.set(locked_by, locked_by);
  return new Map([...names].map(([owner, name], index) => [owner, {
    kind: `owner-${index % COLOURS}`,
    letter: String.fromCharCode(65 + (index % 26)),
    name,
  }]));
}

const lease = ({ shard, epoch, mark, locked_until }, { name }) => [
  h("strong", null, `Shard ${shard}`),
  ` · ${name} · owner no. ${number(epoch)} · the next one starts at ${number(mark)}`,
  locked_until && [" · lease ends ", time(locked_until)],
];

const legend = (held) =>
  [...new Set(held)].map((owner) =>
    h(
      "li",
      { key: `${owner.kind} ${owner.name}` },
      h("span.swatch", { class: owner.kind, "aria-hidden": "true" }, owner.letter),
      owner.name,
      h("span.soft", null, number(held.filter((one) => one === owner).length)),
    )
  );
