// Lines over time, drawn as SVG. The plot is stretched to its frame, so the words around it are HTML.

import { duration, timeOfDay } from "./format.js";
import { h } from "./view.js";

const WIDTH = 1000;
const HEIGHT = 100;
const SHORTEST_MS = 60_000;
const STEP_MS = 30_000;

/**
 * `lines`: `{ name, kind, field }` of the points; `state` keeps which point is looked at. The first line is
 * filled. Values of that point, or of the newest, stand in the head: nothing covers the plot.
 */
export function chart({ title, points, lines, format, state, redraw }) {
  const times = points.map((point) => Date.parse(point.at));
  const end = times.at(-1) ?? 0;
  // Grows with the points: a chart that has just begun is not an empty frame.
  const span = Math.max(SHORTEST_MS, STEP_MS * Math.ceil((end - (times[0] ?? end)) / STEP_MS));
  const top = ceiling(Math.max(0, ...points.flatMap((point) => lines.map(({ field }) => point[field] ?? 0))));
  const x = (index) => WIDTH * (1 - (end - times[index]) / span);
  const y = (value) => HEIGHT * (1 - value / top);

  const looked = state.at === undefined ? -1 : nearest(times, state.at);
  const shown = points[looked] ?? points.at(-1);
  const value = (
    field,
  ) => (shown?.[field] === null || shown?.[field] === undefined ? "–" : format(shown[field]));
  const look = (at) => {
    state.at = at;
    redraw();
  };
  const point = (event) => {
    const box = event.currentTarget.querySelector("svg").getBoundingClientRect();
    look(end - span * (1 - (event.clientX - box.left) / box.width));
  };
  const step = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") look(undefined);
    if (!by || !times.length) return;
    event.preventDefault();
    look(times[Math.max(0, Math.min(times.length - 1, (looked < 0 ? times.length - 1 : looked) + by))]);
  };

  return h(
    "figure.chart.card",
    { "aria-label": title },
    h(
      "figcaption.chart-head",
      null,
      h("h2", null, title),
      h("span.chart-time", null, looked >= 0 ? timeOfDay(shown.at) : ""),
      h(
        "ul.legend",
        null,
        lines.map(({ name, kind, field }) =>
          h(
            "li",
            { key: name, class: `line-${kind}` },
            h("span.legend-name", null, name),
            h("strong", null, value(field)),
          )
        ),
      ),
    ),
    h(
      "div.plot",
      {
        tabindex: "0",
        role: "img",
        "aria-label": `${title}: ${
          lines.map(({ name, field }) => `${name} ${value(field)}`).join(", ")
        }. Arrow keys move through time.`,
        onpointermove: point,
        onpointerleave: () => look(undefined),
        onkeydown: step,
        onblur: () => look(undefined),
      },
      [1, 0.5, 0].map((part) =>
        h(
          "span.scale",
          { key: part, vars: { "--at": String(1 - part) } },
          part === 0 ? "0" : format(top * part),
        )
      ),
      h(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        lines.map(({ kind, field }, index) => {
          const path = line(points, field, x, y);
          return h(
            "g",
            { key: kind, class: `line-${kind}` },
            index === 0 && path && h("path.area", { d: area(points, field, x, y) }),
            h("path.stroke", { d: path }),
          );
        }),
        looked >= 0 && h("line.cursor", { x1: x(looked), x2: x(looked), y1: 0, y2: HEIGHT }),
      ),
      lines.every(({ field }) => known(points, field).length === 0) &&
        h("span.plot-empty", null, "Nothing yet"),
    ),
    h(
      "div.chart-foot",
      { "aria-hidden": "true" },
      h("span", null, `${duration(span / 1000)} ago`),
      h("span", null, "now"),
    ),
  );
}

const known = (points, field) =>
  points.map((point, index) => [index, point[field]]).filter(([, value]) =>
    value !== null && value !== undefined
  );

const line = (points, field, x, y) =>
  known(points, field).map(([index, value], nth) =>
    `${nth ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(2)}`
  ).join("");

function area(points, field, x, y) {
  const [first, last] = [known(points, field)[0][0], known(points, field).at(-1)[0]];
  return `${line(points, field, x, y)}L${x(last).toFixed(1)} ${HEIGHT}L${x(first).toFixed(1)} ${HEIGHT}Z`;
}

/** A round number above it whose half is round too: both are written at the scale. */
function ceiling(value) {
  const power = Math.max(1, 10 ** Math.floor(Math.log10(value || 1)));
  return power *
    [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].find((step) =>
      step * power >= value && Number.isInteger((step * power) / 2)
    );
}

function nearest(times, at) {
  let best = -1;
  times.forEach((time, index) => {
    if (best < 0 || Math.abs(time - at) < Math.abs(times[best] - at)) best = index;
  });
  return best;
}
