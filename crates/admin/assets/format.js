// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** 12,345; from a million on 1.2M. */
export const number = (value) => (value < 1_000_000 ? whole.format(Math.round(value)) : short.format(value));

/** A count that may be an estimate. */
export const count = (value, estimated) => (estimated ? `≈ ${number(value)}` : number(value));

/** "1 event", "2 events". */
export const many = (value, one, more = `${one}s`) => `${number(value)} ${value === 1 ? one : more}`;

/** Events a second: one decimal while that says something. */
export const rate = (value) => (value > 0 && value < 10 ? value.toFixed(1) : number(value));

/** Milliseconds in the unit that fits. */
export function milliseconds(value) {
  if (value < 1) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return duration(value / 1000);
}

/** Seconds as one or two units: 4.2 s, 3 min 20 s, 5 h 12 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds < 10) return `${seconds < 0.05 ? 0 : seconds.toFixed(1)} s`;
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.floor(seconds) % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  const shown = parts.slice(first, first + 2).filter(([value]) => value > 0);
  return shown.map(([value, unit]) => `${value} ${unit}`).join(" ");
}

/** One unit is enough for an age in a list. */
export function age(seconds) {
  if (seconds < 1) return "now";
  const [size, unit] = [[86_400, "d"], [3600, "h"], [60, "min"]].find(([size]) => seconds >= size) ??
    [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

const moment = new Intl.DateTimeFormat("en-GB", {
  year: "numeric",
  month: "short",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
});
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const absolute = (at) => moment.format(new Date(at));
export const timeOfDay = (at) => clock.format(new Date(at));

/** 1,536 → 1.5 KiB. */
export function size(bytes) {
  if (bytes < 1024) return many(bytes, "byte");
  return bytes < 1024 * 1024 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}
