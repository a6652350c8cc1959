// What is around every page: the menu, the outbox, whether the numbers are live, who is looking.

import { count } from "./format.js";
import { icon } from "./parts.js";
import { theme } from "./theme.js";
import { h } from "./view.js";

export function shell(app, body) {
  const { session, context, page, help, leave, search } = app;
  return [
    h("a.skip", { href: "#content", onclick: skip }, "Skip to content"),
    h(
      "header.top",
      null,
      h("button.button.quiet.menu-button", {
        type: "button",
        "aria-label": "Menu",
        "aria-expanded": String(Boolean(session.menuOpen)),
        "aria-controls": "menu",
        onclick: () => toggleMenu(session, context),
      }, icon("menu")),
      h(
        "a.brand",
        { href: context.link("overview"), "aria-label": "Posthaste" },
        h("img", { src: "assets/mark.svg", alt: "", width: "26", height: "26" }),
        h("span", null, "Posthaste"),
      ),
      outboxes(app),
      live(context),
      h(
        "div.top-end",
        null,
        tool("search", "Search events (/)", search),
        tool("theme", `Theme: ${theme()} (t)`, app.theme),
        tool("help", "Keyboard shortcuts (?)", help),
        h(
          "span.who",
          { title: `You are ${session.who.name}, ${session.who.role}` },
          h("span.who-name", null, session.who.name),
          h("span.who-role", null, session.who.role),
        ),
        session.who.name !== "local" && tool("leave", "Sign out", leave),
      ),
    ),
    h("nav.menu", { id: "menu", "aria-label": "Pages", class: session.menuOpen ? "open" : "" }, menu(app)),
    h(
      "main",
      {
        id: "content",
        class: (context.failure || context.old) && context.data !== undefined ? "outdated" : "",
        "aria-busy": String(context.old),
      },
      h("h1", { tabindex: "-1" }, page.heading?.(context) ?? page.title),
      context.failure && context.data !== undefined &&
        // Without an icon: that one would have to be fetched from the server that does not answer.
        h("p.stale", { role: "alert" }, `${context.failure.message} These numbers are old; trying again.`),
      body,
    ),
  ];
}

// The hash is the router's, so the link cannot use it.
function skip(event) {
  event.preventDefault();
  document.querySelector("h1").focus();
}

function toggleMenu(session, context, open = !session.menuOpen) {
  session.menuOpen = open;
  context.redraw();
}

const tool = (name, label, onclick) =>
  h(
    "button.button.quiet",
    { key: name, type: "button", "aria-label": label, title: label, onclick },
    icon(name),
  );

function outboxes({ session, context, switchOutbox }) {
  if (session.outboxes.length === 1) return h("span.outbox", { title: "Outbox" }, context.outbox);
  return h("select.outbox", {
    "aria-label": "Outbox",
    value: context.outbox,
    onchange: (event) => switchOutbox(event.target.value),
  }, session.outboxes.map(({ name }) => h("option", { key: name, value: name }, name)));
}

function live({ failure, old, data }) {
  const waiting = old || data === undefined;
  return h(
    "span.live",
    { class: failure ? "off" : waiting ? "waiting" : "", role: "status" },
    h("span.dot", { "aria-hidden": "true" }),
    h("span", null, failure ? "Not connected" : waiting ? "Connecting" : "Live"),
  );
}

const menu = ({ session, context, menu: pages }) =>
  h(
    "ul",
    null,
    pages.map(({ page, key, title }) => {
      const current = context.page === page || (page === "events" && context.page === "event");
      const dead = page === "dead" ? session.badges.counts?.dead : 0;
      return h(
        "li",
        { key: page },
        h(
          "a",
          {
            href: context.link(page),
            title: `g ${key}`,
            "aria-current": current ? "page" : null,
            onclick: () => toggleMenu(session, context, false),
          },
          icon(page),
          h("span", null, title),
          dead > 0 && h("span.badge", null, count(dead)),
        ),
      );
    }),
  );
