// Is the installation sound?

import { get } from "../api.js";
import { many } from "../format.js";
import { button, command, empty, icon } from "../parts.js";
import { h } from "../view.js";

// The worst first.
const LEVELS = ["problem", "warning", "note", "ok"];

const finding = ({ check, level, text, mend }) =>
  h(
    "li.finding",
    { key: `${check}/${text}`, class: `level-${level}` },
    icon(level === "ok" ? "good" : level),
    h(
      "div.grow",
      null,
      h("strong", null, check.replaceAll("_", " ")),
      h("span.hidden", null, `: ${level}`),
      h("p", null, text),
      mend && command(mend),
    ),
  );

function view(context, findings) {
  if (!findings.length) return empty("Nothing was checked", "");
  const bad = findings.filter(({ level }) => level === "problem" || level === "warning").length;
  const sorted = [...findings].sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
  return [
    h(
      "div.between",
      null,
      h(
        "p.lead",
        { role: "status" },
        bad
          ? `${many(bad, "thing")} to look at, ${many(findings.length - bad, "check")} passed.`
          : `${many(findings.length, "check")} passed.`,
      ),
      button("Check again", { name: "replay", onclick: context.reload }),
    ),
    h("ul.findings", null, sorted.map(finding)),
  ];
}

export default {
  key: "x",
  title: "Doctor",
  every: 30_000,
  load: async ({ path, signal }) => (await get(path("doctor"), {}, signal)).findings,
  view,
};
