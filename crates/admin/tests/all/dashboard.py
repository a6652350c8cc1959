"""What somebody does at the dashboard, in headless Chromium: dashboard.py VISIT KNOWN

VISIT is one of the functions below, KNOWN a JSON object with what it needs. Waits for conditions with a
deadline, never for a time. Exits with 0 when everything was as promised.
"""

import json
import signal
import sys
import tempfile
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

DEADLINE_S = 20
WHOLE_VISIT_S = 75
PAGES = ["overview", "events", "dead", "relays", "destinations", "tenants", "audit", "doctor"]
HEADINGS = {
    "overview": "Overview", "events": "Events", "dead": "Dead letters", "relays": "Relays & shards",
    "destinations": "Destinations", "tenants": "Tenants", "audit": "Audit", "doctor": "Doctor",
}
ACTIONS = ["Replay", "Discard", "Pause", "Resume", "Wake", "Purge", "Show payload"]


class Reader:
    """Somebody with a browser."""

    def __init__(self, driver, known):
        self.driver = driver
        self.known = known

    def visit(self, page, *rest):
        # The listener comes after the dashboard's own: when it is called, the new page has been begun.
        self.driver.execute_async_script(
            """const [hash, done] = arguments;
            addEventListener("hashchange", () => done(), { once: true });
            if (location.hash === hash) done(); else location.hash = hash;""", "/".join(["#/shop", page, *rest]))
        self.until("the page has loaded", lambda: self.all("main h1") and not self.all(".loading, .login"))

    def until(self, what, reached, within=DEADLINE_S):
        """Waits for something true and gives it."""
        def tried(_):
            # What was redrawn in between is stale: that is only "not yet".
            try:
                return reached()
            except (StaleElementReferenceException, IndexError, ValueError):
                return False
        try:
            return WebDriverWait(self.driver, within, poll_frequency=0.05).until(tried)
        except TimeoutException:
            raise AssertionError(f"in vain: {what}; the page says:\n{self.text()}") from None

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector="body"):
        return "\n".join(element.text for element in self.all(selector))

    def button(self, label, within="main"):
        """The button that says this, when it is there and can be pressed."""
        path = f"//{within}//button[normalize-space()='{label}' and not(@disabled)]"
        return next(iter(self.driver.find_elements(By.XPATH, path)), None)

    def press(self, label, within="main"):
        self.until(f"a button {label}", lambda: self.button(label, within)).click()

    def confirm(self, label):
        self.press(label, "dialog")
        self.until("the dialog is closed", lambda: not self.all("dialog"))

    def focused(self):
        return self.driver.switch_to.active_element

    def focused_text(self):
        return self.driver.execute_script("return document.activeElement.textContent.trim()")

    def keys(self, *keys):
        # To whatever has the focus when they arrive: an element that was asked for before may be gone by then.
        ActionChains(self.driver).send_keys(*keys).perform()

    def heading(self, text):
        self.until(f"the page {text}", lambda: self.text("h1") == text)

    def come(self):
        self.driver.get(self.known["base"])
        self.until("the overview", lambda: self.all(".tiles"))

    def log_in(self):
        self.driver.get(self.known["base"])
        self.enter(self.known["token"])
        self.until("the overview", lambda: self.all(".tiles"))

    def enter(self, token):
        self.until("the login", lambda: self.focused().get_attribute("id") == "token")
        self.keys(token, Keys.ENTER)

    def problems(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def live_numbers_move(reader):
    reader.come()
    delivered = lambda: reader.text(".tile:first-child .tile-value")
    line = lambda: reader.all(".chart .line-good .stroke")[0].get_attribute("d").count("L")
    reader.until("something is delivered", lambda: float(delivered()) > 0)
    rows, points = reader.all(".tiles")[0], line()
    reader.until("the chart grows", lambda: line() >= points + 2)
    for name in [".line-first", ".line-second"]:
        latency = lambda: reader.text(f".chart:nth-child(2) .legend {name} strong")
        reader.until("latency is measured", lambda: latency().endswith((" ms", " s")))
    assert rows == reader.all(".tiles")[0], "the page was changed in place, not thrown away"

    # While all waits, the tile and the chart tell the same number, at every moment.
    both = """const tile = [...document.querySelectorAll(".tile")].find((one) => one.textContent.startsWith("Waiting"));
        const chart = [...document.querySelectorAll(".chart")].find((one) => one.ariaLabel === "Backlog");
        return [tile.querySelector(".tile-value").textContent, chart.querySelector(".legend strong").textContent]"""
    reader.press("Pause")
    reader.confirm("Pause")
    seen = set()

    def grows():
        tile, line = reader.driver.execute_script(both)
        assert tile == line, f"the tile says {tile}, the chart {line}"
        seen.add(tile)
        return len(seen) >= 4
    reader.until("the backlog grows", grows)
    reader.press("Resume")
    reader.confirm("Resume")

    reader.visit("events")
    newest = lambda: reader.all("tbody a.row-link")[0].get_attribute("href")
    first = newest()
    reader.until("newer events appear", lambda: newest() != first)


def old_numbers_never_look_well(reader):
    reader.come()
    well = lambda: bool(reader.all(".verdict.good")) and reader.text(".live") == "Live"
    reader.until("all is well", well)
    # From now on no question is answered, and none is refused either.
    reader.driver.execute_cdp_cmd("Fetch.enable", {"patterns": [{"urlPattern": "*/api/*"}]})
    # The page asks within 2 s, and waits 2 s for the answer; the rest is the browser's on a busy machine.
    reader.until("the verdict is taken back", lambda: reader.text(".verdict strong") == "Not known", within=8)
    reader.until("the numbers are called old", lambda: "These numbers are old" in reader.text(".stale"))
    assert reader.text(".live") == "Not connected", reader.text()
    colour = "return getComputedStyle(document.querySelector('.tiles')).filter"
    assert reader.driver.execute_script(colour) == "grayscale(1)", reader.driver.execute_script(colour)
    for page in ["relays", "doctor"]:
        reader.visit(page)
        reader.until(f"{page} says that nobody answers", lambda: "has not answered" in reader.text("main"))
    reader.driver.refresh()
    reader.until("a reload says so, too", lambda: "does not answer" in reader.text())
    reader.driver.execute_cdp_cmd("Fetch.disable", {})
    reader.until("the page of before is back", lambda: reader.text("h1") == "Doctor")
    reader.visit("overview")
    reader.until("all is well again", well)


def a_page_that_asks_seldom_notices_a_cut(reader):
    reader.come()
    for page in ["doctor", "tenants", "audit"]:
        reader.visit(page)
        reader.until(f"{page} is live", lambda: reader.text(".live") == "Live")
        # The doctor asks again in 30 s, long after the deadline of this test.
        reader.driver.execute_cdp_cmd("Fetch.enable", {"patterns": [{"urlPattern": "*/api/*"}]})
        reader.until(f"{page} is called old", lambda: "These numbers are old" in reader.text(".stale"))
        assert reader.text(".live") == "Not connected", reader.text()
        reader.driver.execute_cdp_cmd("Fetch.disable", {})
        reader.until(f"{page} is live again", lambda: reader.text(".live") == "Live" and not reader.all(".stale"))


def data_of_another_question_are_not_live(reader):
    reader.come()
    reader.until("it is live", lambda: reader.text(".live") == "Live" and reader.all(".verdict.good"))
    # The tab is hidden for an hour, and comes back while nobody answers.
    become = lambda hidden, hours: reader.driver.execute_script(
        """const [hidden, hours] = arguments;
        const now = Date.now;
        Date.now = () => now() + hours * 3_600_000;
        Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange"));
        return [".live", ".verdict strong"].map((one) => document.querySelector(one).textContent);""", hidden, hours)
    become(True, 0)
    reader.driver.execute_cdp_cmd("Fetch.enable", {"patterns": [{"urlPattern": "*/api/*"}]})
    seen = become(False, 1)
    assert seen == ["Connecting", "Not known"], f"what is an hour old is called {seen}"
    reader.driver.execute_cdp_cmd("Fetch.disable", {})
    reader.until("it is live again", lambda: reader.text(".live") == "Live" and reader.all(".verdict.good"))

    # Until the answer to a new filter comes, the rows are those of the last one.
    reader.visit("events")
    reader.until("the events are live", lambda: reader.text(".live") == "Live")
    reader.driver.execute_cdp_cmd("Fetch.enable", {"patterns": [{"urlPattern": "*/api/*"}]})
    filtered = lambda kind: reader.driver.execute_async_script(
        """const [hash, done] = arguments;
        addEventListener("hashchange", () => done(document.querySelector(".live").textContent), { once: true });
        location.hash = hash;""", f"#/shop/events?type={kind}")
    said = filtered("Nothing")
    assert said == "Connecting", f"rows of another filter are called {said}"
    reader.until("it is not connected", lambda: reader.text(".live") == "Not connected")
    # One more filter does not make it look connected.
    said = filtered("Nobody")
    assert said == "Not connected", said
    reader.driver.execute_cdp_cmd("Fetch.disable", {})
    reader.until("it is live again", lambda: reader.text(".live") == "Live")


def a_silent_database_is_not_blamed_on_the_api(reader):
    reader.driver.get(reader.known["base"] + "#/shop/doctor")
    # Which outboxes there are is known without their databases.
    reader.until("the page is there", lambda: reader.text("h1") == "Doctor")
    reader.until("the database may be it", lambda: "or its database, has not answered" in reader.text("main"))
    assert "admin API" not in reader.text(), reader.text()


def a_destination_without_a_relay_is_not_green(reader):
    reader.come()
    reader.visit("destinations")
    reader.until("it is said that nobody delivers", lambda: "No relay is alive" in reader.text("main .lead"))
    reader.until("its destination says so, too", lambda: reader.text(".destination .pill") == "nobody delivers")
    assert not reader.all(".destination .is-good"), reader.text()


def the_verdict_tells_what_waits(reader):
    reader.come()

    def verdict(retry=0, held=0, dead=0, paused=(), relays=("one",)):
        overview = {
            "counts": {"new": held, "held": held, "sending": 0, "retry": retry, "dead": dead},
            "relays": [{"name": name, "alive": True, "breakers": []} for name in relays],
            "pauses": [{"kind": kind, "name": name, "by": "ada", "note": None} for kind, name in paused],
            "stalls": [],
            "oldest_pending_s": None,
        }
        said = reader.driver.execute_async_script(
            """const [overview, done] = arguments;
            import(new URL("assets/verdict.js", document.baseURI)).then(
                ({ verdict }) => done(verdict(overview, { failure: null, old: false })), (error) => done(String(error)));
            """, overview)
        assert isinstance(said, dict), said
        return said

    well = "Events are delivered as they come."
    rest = "Everything else is delivered as it comes."
    one = ("relay", "one")
    for told, kind, title, text in [
        (verdict(), "good", "All well", well),
        # Parked keys.
        (verdict(dead=1, held=7), "warn", "1 dead letter to decide on",
         f"7 events wait behind one of the same key that failed or is dead. {rest}"),
        (verdict(retry=2, held=1), "warn", "2 events to be tried again",
         f"2 events failed and are tried again. 1 event waits behind one of the same key that failed or is dead. {rest}"),
        (verdict(dead=1), "warn", "1 dead letter to decide on", rest),
        (verdict(dead=2, paused=[("destination", "x")]), "warn", "2 dead letters to decide on",
         f"What is paused waits. {rest}"),
        # Relays alone: nobody is left, or somebody is.
        (verdict(paused=[one]), "held", "The only relay is paused",
         "Events are kept, and none is delivered until one is resumed or another runs."),
        (verdict(paused=[one, ("relay", "two")], relays=("one", "two")), "held", "Every relay is paused",
         "Events are kept, and none is delivered until one is resumed or another runs."),
        (verdict(paused=[one], relays=("one", "two")), "held", "1 pause in force",
         f"Other relays deliver for those that are paused. {rest}"),
    ]:
        assert told == {"kind": kind, "title": title, "text": text}, told


def a_dialog_belongs_to_its_page(reader):
    reader.come()
    reader.press("Purge")
    reader.until("a question", lambda: reader.all("dialog"))
    reader.driver.execute_script("location.hash = '#/shop/events'")
    reader.heading("Events")
    reader.until("nobody is asked any more", lambda: not reader.all("dialog"))


def dead_letters_are_replayed(reader):
    reader.log_in()
    reader.until("the badge", lambda: reader.text(".menu .badge") == str(reader.known["dead"]))
    reader.visit("dead")
    rows = lambda: len(reader.all("tbody tr"))
    assert rows() == reader.known["dead"], reader.text()

    number = lambda: reader.until("the dry run's number", lambda: reader.text(".dialog-number"))
    reader.press("Replay all that match…")
    assert number() == str(reader.known["dead"])
    reader.confirm("Cancel")
    assert rows() == reader.known["dead"], "nothing happens without a yes"

    reader.press("Replay all that match…")
    number()
    reader.confirm(f"Replay {reader.known['dead']} events")
    reader.until("it is said", lambda: "3 events replayed" in reader.text(".notices"))
    reader.until("the list is empty", lambda: "No dead letters" in reader.text("main"))
    reader.visit("audit")
    reader.until("it is in the audit", lambda: "oscar" in reader.text("main table"))


def single_actions(reader):
    reader.log_in()
    reader.visit("event", reader.known["replayed"])
    reader.press("Replay…")
    reader.confirm("Replay")
    reader.until("the event is sent", lambda: "sent" in reader.text(".event-head .pill"))

    reader.visit("event", reader.known["discarded"])
    reader.press("Discard…")
    reader.confirm("Discard")
    reader.until("the event is discarded", lambda: "discarded" in reader.text(".event-head .pill"))

    for page in ["overview", "destinations", "relays"]:
        reader.visit(page)
        reader.press("Pause")
        reader.until("a place for a note", lambda: reader.all("dialog input"))[0].send_keys("as a test")
        reader.confirm("Pause")
        reader.until("it is paused", lambda: reader.button("Resume"))
        reader.press("Resume")
        reader.confirm("Resume")
        reader.until("it goes on", lambda: reader.button("Pause"))

    reader.visit("overview")
    reader.press("Wake")
    reader.confirm("Wake")
    reader.press("Purge")
    reader.confirm("Purge")
    reader.until("it is said", lambda: "deleted" in reader.text(".notices"))


def the_key_that_is_paused_is_the_events(reader):
    reader.log_in()
    for event, called in [("own", "ordering key basket-7"), ("derived", "Order/1 of tenant acme")]:
        reader.visit("event", reader.known[event])
        reader.press("Pause its key…")
        reader.until("the key is named", lambda: f"Pause {called}?" in reader.text("dialog"))
        reader.confirm("Pause")
        reader.until("it is said", lambda: f"Paused: {called}" in reader.text(".notices"))
    reader.visit("event", reader.known["unordered"])
    reader.until("the event is there", lambda: reader.all(".event-head .pill"))
    assert not reader.button("Pause its key…"), reader.text()


def a_viewer_cannot_act(reader):
    reader.log_in()
    assert reader.text(".who-role") == "viewer"
    for page in PAGES + ["event"]:
        reader.visit(page, *([reader.known["id"]] if page == "event" else []))
        labels = [element.text.strip() for element in reader.all("main button")]
        acting = [label for label in labels if label.startswith(tuple(ACTIONS))]
        assert not acting, f"{page} offers {acting}"
    # The page's manners are not the lock: what it does not offer is refused as well.
    for path, body in [
        (f"events/{reader.known['id']}/replay", {}),
        (f"events/{reader.known['id']}/discard", {}),
        ("bulk", {"action": "replay", "filter": {"status": "dead"}, "dry_run": False}),
        ("pauses", {"kind": "outbox"}),
        ("purge", {}),
    ]:
        status = reader.driver.execute_async_script(
            """const [path, body, done] = arguments;
            fetch(`api/v1/outboxes/shop/${path}`, { method: "POST", body: JSON.stringify(body), headers: {
                "Content-Type": "application/json", Authorization: `Bearer ${sessionStorage.getItem("posthaste.token")}`,
            } }).then((answer) => done(answer.status), (error) => done(String(error)));""", path, body)
        assert status == 403, f"{path}: {status}"


def a_payload_is_hidden(reader):
    secret = reader.known["secret"]
    reader.log_in()
    reader.visit("event", reader.known["id"])
    asked = lambda: reader.driver.execute_script(
        "return performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/payload')).length")
    assert secret not in reader.driver.page_source and asked() == 0, "it was not even fetched"
    reader.press("Show payload")
    reader.until("the payload", lambda: secret in reader.text(".payload"))
    reader.press("Hide")
    reader.until("it is hidden again", lambda: secret not in reader.driver.page_source)
    reader.press("Show payload")
    reader.until("the payload", lambda: secret in reader.text(".payload"))
    reader.keys("g", "e")
    reader.heading("Events")
    assert secret not in reader.driver.page_source


def every_page_is_clean(reader):
    sizes = {"light": (1280, 900), "dark": (1280, 900), "phone": (390, 800)}
    for look, (width, height) in sizes.items():
        reader.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": look == "phone"})
        reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if look == "dark" else "light"}]})
        reader.come()
        for page in PAGES + ["event"]:
            reader.visit(page, *([reader.known["id"]] if page == "event" else []))
            assert page == "event" or reader.text("h1") == HEADINGS[page]
            problems = reader.problems()
            assert not problems, (look, page, problems)
            wide = reader.driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, f"{page} needs {wide} pixels of {width}"
            hosts = reader.driver.execute_script("return performance.getEntriesByType('resource').map(({ name }) => name)")
            assert all(urlsplit(name).netloc == urlsplit(reader.known["base"]).netloc for name in hosts), hosts
            assert not reader.all("main img, main script"), "what an event holds is text"
        background = reader.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        sizes[look] = background
    assert sizes["light"] != sizes["dark"], "dark is dark"
    reader.visit("event", reader.known["id"])
    assert "<script>alert(2)</script>" in reader.text("main")


def the_keyboard_reaches_everything(reader):
    reader.come()
    # At once: nothing was pressed before them.
    theme = lambda: reader.driver.execute_script("return document.documentElement.dataset.theme")
    for expected in ["light", "dark"]:
        reader.keys("t")
        reader.until(f"the theme {expected}", lambda: theme() == expected)

    for key, heading in zip("edrstaxo", ["Events", "Dead letters", "Relays & shards", "Destinations", "Tenants", "Audit", "Doctor", "Overview"]):
        reader.keys("g", key)
        reader.heading(heading)

    reader.keys("?")
    reader.until("the help", lambda: "Search events" in reader.text("dialog"))
    reader.keys(Keys.ESCAPE)
    reader.until("the help is closed", lambda: not reader.all("dialog"))

    reader.keys("/")
    reader.heading("Events")
    reader.until("the search has the focus", lambda: reader.focused().get_attribute("id") == "search")
    reader.keys("Order/Poison", Keys.ENTER)
    reader.until("one event is found", lambda: len(reader.all("tbody tr")) == 1)
    reader.driver.execute_script("document.activeElement.blur()")
    reader.keys("j")
    reader.until("the row has the focus", lambda: "row-link" in reader.focused().get_attribute("class"))
    reader.keys(Keys.ENTER)
    reader.heading("Poison")
    reader.keys("/")
    reader.until("the search has the focus", lambda: reader.focused().get_attribute("id") == "search")
    reader.keys(reader.known["id"], Keys.ENTER)
    reader.heading("Poison")

    # From the head of the page to an action and through its dialog, without a mouse.
    reader.until("the action", lambda: reader.button("Replay…"))
    for _ in range(12):
        reader.keys(Keys.TAB)
        if reader.focused_text() == "Replay…":
            break
    assert reader.focused_text() == "Replay…", reader.focused_text()
    reader.keys(Keys.ENTER)
    reader.until("the dialog", lambda: reader.button("Replay", "dialog"))
    reader.keys(Keys.ESCAPE)
    reader.until("the dialog is closed", lambda: not reader.all("dialog"))


def a_token_is_asked_for(reader):
    reader.driver.get(reader.known["base"])
    reader.enter("not-a-token-0123456789")
    reader.until("it is refused", lambda: "not known" in reader.text("[role=alert]"))
    assert not reader.all(".tiles"), "no number without a token"
    reader.enter(reader.known["token"])
    reader.until("the overview", lambda: reader.all(".tiles"))
    kept = reader.driver.execute_script(
        "return [sessionStorage, localStorage].map((store) => JSON.stringify(store)).concat(document.cookie, location.href)")
    assert [reader.known["token"] in place for place in kept] == [True, False, False, False], kept
    reader.until("the way out", lambda: reader.all("[aria-label='Sign out']"))[0].click()
    reader.until("the login", lambda: reader.all("#token"))
    assert reader.driver.execute_script("return sessionStorage.length") == 0


def browser(known, folder):
    options = webdriver.ChromeOptions()
    options.binary_location = known["chromium"]
    for argument in ["headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking",
                     "disable-component-update", "disable-sync", "no-first-run", f"user-data-dir={folder}"]:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(known["chromedriver"]))


def hung(*_):
    raise TimeoutError("the visit takes too long")


def main(visit, known):
    # Ends the browser too, which a killed script would leave behind.
    signal.signal(signal.SIGALRM, hung)
    signal.alarm(WHOLE_VISIT_S)
    with tempfile.TemporaryDirectory() as folder:
        driver = browser(known, folder)
        try:
            driver.set_window_size(1280, 900)
            globals()[visit](Reader(driver, known))
        finally:
            driver.quit()


main(sys.argv[1], json.loads(sys.argv[2]))
