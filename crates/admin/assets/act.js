// What an operator can do, each asked for first. The server writes down who did it.

import { post, remove } from "./api.js";
import { ask } from "./dialog.js";
import { count, many } from "./format.js";
import { h } from "./view.js";

const VERBS = { replay: ["Replay", "replayed"], discard: ["Discard", "discarded"] };
// The server changes no more than these with one question.
const LIMIT = 10_000;
const RATES = [["", "as fast as possible"], ["10", "10 a second"], ["100", "100 a second"], [
  "1000",
  "1,000 a second",
]];

const CONSEQUENCE = {
  replay: {
    one: "It is sent again, its attempts counted from 0. Consumers may see it twice.",
    all: "They are sent again, their attempts counted from 0. Consumers may see them twice.",
  },
  discard: {
    one: "It is given up for good: it is not delivered and cannot be replayed.",
    all: "They are given up for good: they are not delivered and cannot be replayed.",
  },
};

/** Replays or discards one event. */
export function one(context, action, event) {
  const [verb, done] = VERBS[action];
  return ask({
    title: `${verb} this event?`,
    danger: action === "discard",
    text: () => [
      h("p", null, h("strong", null, event.type ?? "Event"), " ", h("code", null, event.id)),
      h("p", null, CONSEQUENCE[action].one),
    ],
    confirm: () => verb,
    act: async () => {
      const { changed } = await post(context.path("events", event.id, action));
      context.reload();
      return changed ? `Event ${done}` : "Nothing changed: somebody was quicker";
    },
  });
}

/** Replays or discards all that match; the number comes from a dry run. */
export function all(context, action, filter) {
  const [verb, done] = VERBS[action];
  const form = { rate: "" };
  const body = (dry_run) => ({
    action,
    filter,
    dry_run,
    limit: LIMIT,
    ...(form.rate && !dry_run ? { rate: Number(form.rate) } : {}),
  });
  return ask({
    title: `${verb} all that match?`,
    danger: action === "discard",
    prepare: async () => {
      const answer = await post(context.path("bulk"), body(true));
      return { ...answer, nothing: answer.matched === 0 };
    },
    text: ({ matched, more }) => [
      h("p.dialog-number", null, count(matched), more && "+"),
      h(
        "p",
        null,
        matched === 0
          ? "No event matches."
          : `${matched === 1 ? "event matches" : "events match"} ${describe(filter)}.`,
      ),
      more && h("p.soft", null, `There are more: each time at most ${many(LIMIT, "event")} are changed.`),
      matched > 0 && h("p", null, CONSEQUENCE[action].all),
    ],
    fields: (redraw) =>
      action === "replay" &&
      h(
        "label.field",
        null,
        "Rate",
        h("select", {
          value: form.rate,
          onchange: (event) => {
            form.rate = event.target.value;
            redraw();
          },
        }, RATES.map(([value, text]) => h("option", { key: value, value }, text))),
      ),
    confirm: ({ matched }) => `${verb} ${many(matched, "event")}`,
    act: async () => {
      const { changed, more } = await post(context.path("bulk"), body(false));
      context.reload();
      return `${many(changed, "event")} ${done}${more ? "; more match, ask again" : ""}`;
    },
  });
}

const describe = (filter) => {
  const parts = Object.entries(filter).filter(([, value]) => value);
  return parts.length
    ? parts.map(([name, value]) => `${name.replace("_", " ")} ${value}`).join(", ")
    : "everything";
};

/** Pauses something: `{ kind, name? }`. `called`, where the name says nothing to people, is kept with the note. */
export function pause(context, what, named, consequence, called) {
  const form = {};
  return ask({
    title: `Pause ${named}?`,
    text: () =>
      h("p", null, `${consequence} The pause is kept until somebody ends it, also across restarts.`),
    fields: () =>
      h(
        "label.field",
        null,
        "Why (for your colleagues)",
        h("input", {
          type: "text",
          maxlength: "200",
          oninput: (event) => {
            form.note = event.target.value;
          },
        }),
      ),
    confirm: () => "Pause",
    act: async () => {
      const note = [called, form.note].filter(Boolean).join(": ");
      const { changed } = await post(context.path("pauses"), { ...what, ...(note ? { note } : {}) });
      context.reload();
      return changed ? `Paused: ${named}` : `${named} was paused already`;
    },
  });
}

/** Ends a pause. */
export function resume(context, { kind, name }, named) {
  return ask({
    title: `Resume ${named}?`,
    text: () => h("p", null, "What waits is delivered."),
    confirm: () => "Resume",
    act: async () => {
      const { changed } = await remove(context.path("pauses", kind, name || "-"));
      context.reload();
      return changed ? `Resumed: ${named}` : `${named} was not paused`;
    },
  });
}

export function wake(context) {
  return ask({
    title: "Wake the relays?",
    text: () => h("p", null, "Every relay looks for events now instead of at its next poll."),
    confirm: () => "Wake",
    act: async () => {
      const { woken } = await post(context.path("poll"));
      context.reload();
      return woken
        ? "The relays look for events"
        : "No relay could be told: with this database they look at their next poll";
    },
  });
}

export function purge(context) {
  return ask({
    title: "Purge now?",
    danger: true,
    text: () =>
      h("p", null, "Events that were sent or discarded longer ago than they are kept for are deleted."),
    confirm: () => "Purge",
    act: async () => {
      const { deleted } = await post(context.path("purge"));
      context.reload();
      return `${many(deleted, "event")} deleted`;
    },
  });
}
