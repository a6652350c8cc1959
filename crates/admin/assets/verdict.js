// The one sentence at the top: what somebody on call wants to know first.

import { duration, many } from "./format.js";

const LONG_S = 60;

/** Why nobody delivers anything now, as `{ kind, title, text }`; null when somebody does. */
export function standstill({ relays, pauses }) {
  const outbox = pauses.find((pause) => pause.kind === "outbox");
  if (outbox) {
    return say(
      "held",
      "Paused",
      `${outbox.by} paused this outbox${outbox.note ? `: ${outbox.note}` : "."} Events are kept and wait.`,
    );
  }
  if (!relays.some((relay) => relay.alive)) {
    return say("bad", "No relay is alive", "Events are kept, and none is delivered until a relay runs.");
  }
  return null;
}

/** `{ kind, title, text }` of an overview, the most urgent first. After a `failure`, and while it is `old`,
 * nothing is said of the overview. */
export function verdict({ counts, relays, pauses, stalls, oldest_pending_s }, { failure, old }) {
  if (failure) {
    return say("bad", "Not known", "The state of this outbox could not be read. The numbers below are old.");
  }
  if (old) return say("held", "Not known", "The numbers below are old; new ones are asked for.");
  const still = standstill({ relays, pauses });
  if (still) return still;
  const open = relays.filter((relay) => relay.alive).flatMap((relay) => relay.breakers ?? []);
  if (open.length) {
    const names = [...new Set(open.map(({ destination }) => destination))];
    const title = `${names.join(", ")} ${names.length === 1 ? "takes" : "take"} nothing`;
    return say(
      "bad",
      title,
      "Their events wait and no attempt is burnt; the relays try again by themselves.",
    );
  }
  if (stalls?.length) {
    const { reason, sequence } = stalls[0];
    const events = stalls.reduce((sum, stall) => sum + stall.events, 0);
    return say("bad", `${many(events, "event")} stalled`, `Sequence ${sequence}: ${reason}.`);
  }
  if (oldest_pending_s > LONG_S) {
    return say(
      "warn",
      "Behind",
      `The oldest event that could be delivered has waited for ${duration(oldest_pending_s)}.`,
    );
  }
  if (counts.dead > 0) {
    return say(
      "warn",
      `${many(counts.dead, "dead letter")} to decide on`,
      "Everything else is delivered as it comes.",
    );
  }
  if (pauses.length) {
    return say(
      "held",
      `${many(pauses.length, "pause")} in force`,
      "Everything else is delivered as it comes.",
    );
  }
  return say("good", "All well", "Events are delivered as they come.");
}

const say = (kind, title, text) => ({ kind, title, text });
