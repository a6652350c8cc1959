// Starts the dashboard: who is asking, which outbox, which page; then asks and draws while somebody looks.

import { get, inOutbox, Problem, token } from "./api.js";
import { listenToKeys } from "./keys.js";
import { OVERDUE_MS, Poll } from "./live.js";
import { login } from "./login.js";
import { notice } from "./notice.js";
import { empty } from "./parts.js";
import { address, go, here } from "./router.js";
import { shell } from "./shell.js";
import { applyTheme, nextTheme } from "./theme.js";
import { h, mount } from "./view.js";

import audit from "./pages/audit.js";
import dead from "./pages/dead.js";
import destinations from "./pages/destinations.js";
import doctor from "./pages/doctor.js";
import event from "./pages/event.js";
import events from "./pages/events.js";
import overview from "./pages/overview.js";
import relays from "./pages/relays.js";
import tenants from "./pages/tenants.js";

// A page: `title`, `load(context)` gives what `view(context, data)` shows, asked again `every` so many
// milliseconds. Those with a `key` stand in the menu.
const PAGES = { overview, events, event, dead, relays, destinations, tenants, audit, doctor };
const MENU = Object.entries(PAGES).filter(([, page]) => page.key).map(([page, { key, title }]) => ({
  page,
  key,
  title,
}));
const BADGE_MS = 10_000;
// No page says for longer that it is live without an answer of the database's.
const HEARTBEAT_MS = 2000;

const draw = mount(document.getElementById("app"));
const session = { who: null, outboxes: [], badges: {} };
let polls = [];
let context = null;

async function start() {
  const overdue = setTimeout(() => {
    draw(h("main.alone", null, empty("The admin API does not answer", "Waiting for its answer.")));
  }, OVERDUE_MS);
  try {
    session.who = await get("whoami");
    session.outboxes = (await get("outboxes")).outboxes;
    clearTimeout(overdue);
    visit();
  } catch (error) {
    clearTimeout(overdue);
    refused(error);
  }
}

// Only a missing or wrong token leads to the login; anything else may pass, so it is tried again.
function refused(error) {
  leave();
  if (error.status === 401) {
    const wrong = token.get() !== null;
    token.forget();
    draw(login({
      wrong,
      enter: (given) => {
        token.set(given);
        start();
      },
    }));
    // Selected: what is typed next replaces a token that was wrong.
    document.querySelector("#token").select();
  } else {
    // One that answers with a status is there, and says itself what is missing.
    const title = error.status ? error.title : "The admin API does not answer";
    draw(h("main.alone", null, empty(title, error.message)));
    setTimeout(start, 2000);
  }
}

function leave() {
  polls.forEach((poll) => poll.stop());
  polls = [];
  context = null;
}

function visit() {
  if (!session.who) return;
  // A question is about the page it was asked on.
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  const route = here();
  const outbox = session.outboxes.find(({ name }) => name === route.outbox);
  if (!outbox) {
    if (session.outboxes.length) go(address(session.outboxes[0].name, "overview"), { replace: true });
    else draw(h("main.alone", null, empty("No outbox", "This server was started without an outbox.")));
    return;
  }
  const before = context;
  const same = before !== null &&
    ["page", "argument", "outbox"].every((part) => before[part] === route[part]);
  leave();
  const page = PAGES[route.page] ?? PAGES.overview;
  const mine = {
    ...route,
    outbox: outbox.name,
    database: outbox.database,
    operator: session.who.role === "operator",
    payloads: session.who.payloads,
    // Only a filter changed: the old rows stay, dimmed, until the new ones are there.
    state: same ? before.state : {},
    data: same ? before.data : undefined,
    // The data answer another question, or were not asked for since long: they are not live.
    old: same,
    failure: same ? before.failure : null,
    failures: same ? before.failures : {},
    path: (...parts) => inOutbox(outbox.name, ...parts),
    link: (to, argument, query) => address(outbox.name, to, argument, query),
    redraw: () => context === mine && show(page),
    reload: () => polls.forEach((poll) => poll.now()),
  };
  context = mine;
  document.title = `${page.title} · ${outbox.name} · Posthaste`;
  show(page);
  // A reader with a screen reader or a keyboard starts at the head of the new page.
  if (before !== null && !same) {
    document.querySelector("h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  const asking = poll(page, mine);
  polls = [asking, badges(mine)];
  // One that asks as often notices by itself.
  if (page.every > HEARTBEAT_MS) polls.push(heartbeat(mine, asking));
}

const poll = (page, mine) =>
  new Poll({
    every: page.every,
    load: async (signal) => {
      const data = await page.load({ ...mine, signal });
      Object.assign(mine, { data, old: false });
    },
    // An answer is a sign of life, too.
    show: (failure) => judge(mine, failure ? { ...mine.failures, page: failure } : {}),
    late: () => outdate(mine),
  });

function outdate(mine) {
  mine.old = true;
  mine.redraw();
}

// A page that asks seldom learns of a lost connection here: the question is cheap, and the database has to
// answer it.
const heartbeat = (mine, asking) =>
  new Poll({
    every: HEARTBEAT_MS,
    load: (signal) => get(mine.path("pauses"), {}, signal),
    show: (failure) => {
      const back = !failure && mine.failures.heartbeat;
      judge(mine, { ...mine.failures, heartbeat: failure });
      // Much may have happened meanwhile.
      if (back) anew(mine, asking);
    },
    late: () => anew(mine, asking),
  });

function anew(mine, asking) {
  outdate(mine);
  asking.now();
}

// What is shown is old as long as one of the questions is without an answer.
function judge(mine, failures) {
  const failure = failures.page ?? failures.heartbeat ?? null;
  if (failure?.status === 401) return refused(failure);
  Object.assign(mine, { failures, failure });
  mine.redraw();
}

const badges = (mine) =>
  new Poll({
    every: BADGE_MS,
    load: async (signal) => {
      session.badges = await get(mine.path("overview"), {}, signal);
    },
    show: () => mine.redraw(),
  });

function show(page) {
  draw(shell({
    session,
    context,
    page,
    menu: MENU,
    switchOutbox: (name) => go(address(name, context.page === "event" ? "events" : context.page)),
    search,
    help,
    theme: changeTheme,
    leave: () => {
      token.forget();
      leave();
      Object.assign(session, { who: null, badges: {} });
      start();
    },
  }, body(page)));
  focusSearch();
}

function body(page) {
  if (context.data !== undefined) return page.view(context, context.data);
  if (!context.failure) return h("div.loading", { "aria-busy": "true" }, h("span", null, "Loading…"));
  const { title, message } = context.failure instanceof Problem
    ? context.failure
    : { title: "Something is wrong with this page", message: String(context.failure) };
  return empty(title, message);
}

function search() {
  if (!context) return;
  session.searching = true;
  if (context.page === "events") focusSearch();
  else go(context.link("events"));
}

// The field appears with the page's first answer.
function focusSearch() {
  const field = session.searching && document.querySelector("#search");
  if (!field) return;
  session.searching = false;
  field.focus();
  field.select();
}

function changeTheme() {
  notice(`Theme: ${nextTheme()}`);
  context?.redraw();
}

applyTheme();
const help = listenToKeys({
  pages: MENU,
  goTo: (page) => context && go(context.link(page)),
  search,
  theme: changeTheme,
});
addEventListener("hashchange", visit);
start();
