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
  const alive = relays.filter((relay) => relay.alive);
  if (!alive.length) {
    return say("bad", "No relay is alive", "Events are kept, and none is delivered until a relay runs.");
  }
  const paused = ({ name }) => pauses.some((pause) => pause.kind === "relay" && pause.name === name);
  if (alive.every(paused)) {
    const title = alive.length === 1 ? "The only relay is paused" : "Every relay is paused";
    return say("held", title, "Events are kept, and none is delivered until one is resumed or another runs.");
  }
  return null;
}

/** What waits although something is delivered, in sentences. */
function waiting({ retry, held }, pauses) {
  return [
    retry > 0 && `${many(retry, "event")} failed and ${retry === 1 ? "is" : "are"} tried again.`,
    held > 0 &&
    `${many(held, "event")} ${held === 1 ? "waits" : "wait"} behind one of the same key that failed or is dead.`,
    pauses.some(({ kind }) => kind !== "relay") && "What is paused waits.",
    pauses.some(({ kind }) => kind === "relay") && "Other relays deliver for those that are paused.",
    "Everything else is delivered as it comes.",
  ].filter(Boolean).join(" ");
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
  const rest = waiting(counts, pauses);
  if (counts.dead > 0) return say("warn", `${many(counts.dead, "dead letter")} to decide on`, rest);
  if (pauses.length) return say("held", `${many(pauses.length, "pause")} in force`, rest);
  if (counts.retry > 0) return say("warn", `${many(counts.retry, "event")} to be tried again`, rest);
  if (counts.held > 0) return say("warn", `${many(counts.held, "event")} held`, rest);
  return say("good", "All well", "Events are delivered as they come.");
}

const say = (kind, title, text) => ({ kind, title, text });
