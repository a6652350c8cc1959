// How the outbox is doing now and in the last ten minutes.

import { pause, purge, resume, wake } from "../act.js";
import { get } from "../api.js";
import { chart } from "../chart.js";
import { age, count, duration, many, milliseconds, number, rate } from "../format.js";
import { bar, button, card, empty, icon, pill, time } from "../parts.js";
import { verdict } from "../verdict.js";
import { h } from "../view.js";

const KEPT_MS = 600_000;
const TENANTS = 6;

async function load(context) {
  const { state, signal } = context;
  const since = state.points?.at(-1)?.at;
  const [overview, series] = await Promise.all([
    get(context.path("overview"), {}, signal),
    get(context.path("series"), { since }, signal),
  ]);
  const fresh = series.points.filter(({ at }) => !since || Date.parse(at) > Date.parse(since));
  const points = [...(state.points ?? []), ...fresh];
  const newest = Date.parse(points.at(-1)?.at);
  state.points = points.filter(({ at }) => Date.parse(at) >= newest - KEPT_MS);
  // The server counts for the charts now and then, for the overview at each question: the chart's newest point
  // says what the tiles say.
  const last = state.points.at(-1);
  if (last) Object.assign(last, { backlog: waiting(overview.counts), dead: overview.counts.dead });
  return overview;
}

const waiting = ({ new: fresh, sending, retry }) => fresh + sending + retry;

const known = (value) => value !== null && value !== undefined;

const shortly = (seconds) => (seconds < 60 ? duration(seconds) : age(seconds));

const tile = (title, value, { kind = "", href, note } = {}) =>
  h(
    href ? "a.tile" : "div.tile",
    { key: title, class: kind, href },
    h("span.tile-title", null, title),
    h("strong.tile-value", null, value),
    h("span.tile-note", null, note ?? ""),
  );

function tiles(context, { counts, oldest_pending_s, shards }) {
  const last = context.state.points.at(-1) ?? {};
  const link = (status) => context.link("events", undefined, { status });
  return h(
    "div.tiles",
    null,
    tile("Delivered", known(last.delivered_per_s) ? rate(last.delivered_per_s) : "–", {
      note: known(last.delivered_per_s) ? "events a second" : "no relay runs here",
    }),
    tile("Waiting", count(waiting(counts), counts.estimated), {
      href: link("new"),
      note: counts.estimated ? "an estimate" : "new, sending, retry",
    }),
    tile("Oldest", oldest_pending_s ? shortly(oldest_pending_s) : "–", { note: "of those ready" }),
    tile("Retrying", number(counts.retry), {
      href: link("retry"),
      kind: counts.retry ? "warn" : "",
      note: "failed, tried again",
    }),
    tile("Dead", number(counts.dead), {
      href: context.link("dead"),
      kind: counts.dead ? "bad" : "",
      note: "given up on",
    }),
    tile("Shards held", `${shards.held}/${shards.total}`, {
      href: context.link("relays"),
      kind: shards.free ? "warn" : "",
      note: shards.free ? `${shards.free} free` : "all have an owner",
    }),
  );
}

function charts({ state, redraw }) {
  const draw = (title, name, lines, format) =>
    chart({ title, points: state.points, lines, format, state: state[name] ??= {}, redraw });
  return h(
    "div.charts",
    null,
    draw("Throughput", "throughput", [
      { name: "delivered/s", kind: "good", field: "delivered_per_s" },
      { name: "failed/s", kind: "bad", field: "failed_per_s" },
    ], rate),
    draw("Delivery latency", "latency", [
      { name: "p95", kind: "second", field: "delivery_p95_ms" },
      { name: "p50", kind: "first", field: "delivery_p50_ms" },
    ], milliseconds),
    draw("Backlog", "backlog", [
      { name: "waiting", kind: "first", field: "backlog" },
      { name: "dead", kind: "bad", field: "dead" },
    ], number),
  );
}

export const pauseName = (
  { kind, name, note },
) => (kind === "outbox" ? "the outbox" : `${kind} ${kind === "key" && note ? note : name}`);

const pauses = (context, list) =>
  card(
    "Pauses",
    {},
    h(
      "ul.rows",
      null,
      list.map((one) =>
        h(
          "li",
          { key: `${one.kind}/${one.name}` },
          h(
            "span.grow",
            null,
            pill("held", one.kind),
            " ",
            h("strong", null, one.kind === "outbox" ? "everything" : one.name),
            h("span.under", null, one.note ? `${one.note} · ` : "", `${one.by}, `, time(one.since)),
          ),
          context.operator &&
            button("Resume", {
              name: "resume",
              kind: "small",
              onclick: () => resume(context, one, pauseName(one)),
            }),
        )
      ),
    ),
  );

const relays = (context, list) =>
  card(
    "Relays",
    { aside: h("a", { href: context.link("relays") }, "All") },
    list.length
      ? h(
        "ul.rows",
        null,
        list.map((relay) =>
          h(
            "li",
            { key: relay.owner },
            h(
              "span.grow",
              null,
              h("strong", null, relay.name),
              h("span.under", null, relay.ordering, " · heartbeat ", duration(relay.heartbeat_age_s), " ago"),
            ),
            h("span.soft", null, many(relay.shards, "shard")),
            pill(relay.alive ? "good" : "bad", relay.alive ? "alive" : "gone"),
          )
        ),
      )
      : empty("No relay has reported", "Start one with: posthaste relay"),
  );

function tenants(context, { backlog_by_tenant: list, backlog_estimated }) {
  const most = Math.max(1, ...list.map(({ events }) => events));
  return card(
    "Backlog by tenant",
    { aside: h("a", { href: context.link("tenants") }, "All") },
    list.length
      ? h(
        "ul.rows",
        null,
        list.slice(0, TENANTS).map(({ tenant, events }) =>
          h(
            "li",
            { key: tenant ?? "" },
            h("span.tenant", null, tenant ?? h("em", null, "without")),
            bar(events / most),
            h("span.number", null, count(events, backlog_estimated)),
          )
        ),
      )
      : empty("Nothing waits", "Every tenant's events are delivered."),
  );
}

function view(context, data) {
  const { kind, title, text } = verdict(data, context);
  const held = data.pauses.some((one) => one.kind === "outbox");
  return [
    h(
      "section.verdict",
      { class: kind, "aria-label": "State" },
      // Without an icon until the server answers: it would have to be fetched from there.
      !context.failure && !context.old && icon({ good: "good", warn: "warning", bad: "problem", held: "pause" }[kind]),
      h("div.grow", { role: "status" }, h("strong", null, title), h("p", null, text)),
      context.operator && h(
        "div.actions",
        null,
        button("Wake", { name: "wake", onclick: () => wake(context) }),
        button("Purge", { name: "discard", onclick: () => purge(context) }),
        held
          ? button("Resume", {
            key: "resume",
            name: "resume",
            kind: "primary",
            onclick: () => resume(context, { kind: "outbox" }, "the outbox"),
          })
          : button("Pause", {
            key: "pause",
            name: "pause",
            onclick: () =>
              pause(
                context,
                { kind: "outbox" },
                "the outbox",
                "Every relay stops delivering; services go on writing.",
              ),
          }),
      ),
    ),
    tiles(context, data),
    charts(context),
    h(
      "div.columns",
      null,
      data.pauses.length > 0 && pauses(context, data.pauses),
      relays(context, data.relays),
      tenants(context, data),
    ),
  ];
}

export default { key: "o", title: "Overview", every: 2000, load, view };
