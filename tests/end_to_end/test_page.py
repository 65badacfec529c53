"""The page in a real browser, drawn from a real daemon."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from forebay import LocalDaemon

from .browser import Browser, chromium
from .fed_orchestrator import stage
from .processes import StartDaemon, StartParty, kill, see, slot_in

pytestmark = pytest.mark.slow

INJECTED = "<script>document.title='owned'</script><img src=//evil.example onerror=alert(1)>\"'&"
HOSTILE = f"{INJECTED}\x1b[31m\u202e\u2066z"
ROWS = "[...document.querySelectorAll('#slots tbody tr')].map(row => row.innerText).join('\\n')"
CELLS = "[...document.querySelectorAll('.cell')].map(cell => cell.dataset.state).join(' ')"
MOOD = "document.getElementById('mood').textContent"


@pytest.fixture
def browser() -> Iterator[Browser]:
    chromium()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-browser-", ignore_cleanup_errors=True) as profile,
        Browser(Path(profile)) as browser,
    ):
        yield browser


def open_page(browser: Browser, daemon: LocalDaemon) -> None:
    browser.open(f"http://{daemon.ready.http_endpoint}/")
    browser.until(f"document.getElementById('mood') && {MOOD} === '● serving'")


def assert_clean(browser: Browser, daemon: LocalDaemon) -> None:
    """Asserts that nobody else was asked and that nothing went wrong, policies included."""
    hosts = {urlsplit(url).netloc for url in browser.requested if url.startswith("http")}
    assert hosts == {daemon.ready.http_endpoint}
    assert browser.complaints == []


def test_it_shows_what_is_filling_ready_and_lent_and_follows_without_being_loaded_again(
    browser: Browser, start_daemon: StartDaemon, start: StartParty
) -> None:
    daemon = start_daemon(slots=5, http_endpoint="127.0.0.1:0")
    open_page(browser, daemon)
    browser.find("window.wasLoadedOnce = true")
    assert browser.find(CELLS) == "FREE FREE FREE FREE FREE"

    trainer = start("trainer", daemon.trainer_endpoint, hold_transfer=True)
    first = start("orchestrator", daemon.control_endpoint, prefix="lent-", count=1)
    trainer.until("transferring")
    first.finish()
    stage(daemon, "ready-0")
    filling = start("orchestrator", daemon.control_endpoint, prefix="filling-", hold_chunk=2)
    filling.until("filling")
    see(daemon, slot_in("FILLING", received=1))

    rows = browser.until(f"({ROWS}).includes('filling-0') && !({ROWS}).includes('\\t0 %') && {ROWS}").splitlines()
    told = {row.split("\t")[2]: row for row in rows}
    assert sorted(told) == ["filling-0", "lent-0", "ready-0"]
    assert "LENT" in told["lent-0"]
    assert "trainer" in told["lent-0"]
    assert "READY" in told["ready-0"]
    assert "FILLING" in told["filling-0"]
    assert "orchestrator" in told["filling-0"]
    assert sorted(browser.find(CELLS).split()) == ["FILLING", "FREE", "FREE", "LENT", "READY"]
    assert "ready-0" in browser.find("document.getElementById('queues').innerText")
    titles = "[...document.querySelectorAll('#timeline title')].map(title => title.textContent).join('\\n')"
    spans = browser.until(f"({titles}).includes('FILLING filling-0') && {titles}")
    assert "LENT lent-0, queue train" in spans
    assert "READY ready-0, queue train" in spans

    stage(daemon, "ready-1")
    browser.until(f"({ROWS}).includes('ready-1')")
    trainer.go_on()
    browser.until(f"({titles}).includes('ON_DEVICE lent-0')")
    browser.until("document.getElementById('events').innerText.includes('consumed')")
    assert browser.find("window.wasLoadedOnce") is True
    assert_clean(browser, daemon)
    filling.go_on()
    filling.finish()


def test_a_hostile_key_is_shown_and_followed_nowhere(browser: Browser, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=2, http_endpoint="127.0.0.1:0")
    stage(daemon, HOSTILE)
    open_page(browser, daemon)
    browser.until(f"({ROWS}).includes('script')")
    for part in ("slots", "queues"):
        assert INJECTED[:20] in browser.find(f"document.getElementById('{part}').innerText")
    assert "\\u{202e}\\u{2066}z" in browser.find(ROWS)
    browser.until("document.querySelector('#timeline title') !== null")
    raw = [char for char in browser.text() if not (char.isprintable() or char in "\n\t")]
    assert raw == []
    assert browser.find("document.querySelectorAll('img').length + document.scripts.length") == 1
    assert browser.find("document.title") == "Forebay"
    assert_clean(browser, daemon)


def test_what_would_be_put_in_as_html_is_refused_by_the_policy(
    browser: Browser, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(http_endpoint="127.0.0.1:0")
    open_page(browser, daemon)
    put = "document.body.innerHTML = '<b>x</b>'"
    assert browser.find(f"(() => {{ try {{ {put} }} catch (error) {{ return error.name }} }})()") == "TypeError"
    browser.find("window.told = ''; fetch('http://127.0.0.2:1/').catch((error) => { told = String(error) }), 0")
    browser.until("told")
    browser.until("fetch('/healthz').then((answer) => answer.ok), true")  # what the console said came before this
    assert any("Content Security Policy" in words for words in browser.complaints)


def test_it_says_since_when_the_daemon_is_away_and_goes_on_with_the_next_one(
    browser: Browser, start_daemon: StartDaemon
) -> None:
    first = start_daemon(slots=2, http_endpoint="127.0.0.1:0")
    where = first.ready.http_endpoint
    stage(first, "before")
    open_page(browser, first)
    browser.until(f"({ROWS}).includes('before')")
    assert browser.complaints == []
    kill(first)
    words = browser.until(f"{MOOD}.startsWith('✕') && {MOOD}")
    assert words.startswith("✕ the daemon is away since ")
    assert "before" in browser.find(ROWS), "the last state stays, and is told to be old"
    assert " old" in browser.until("document.getElementById('note').textContent")

    second = start_daemon(slots=2, http_endpoint=where)
    stage(second, "after")
    browser.until(f"({ROWS}).includes('after') && {MOOD} === '● serving'")
    browser.until("document.getElementById('events').innerText.includes('adopt')")
    assert all("ERR_CONNECTION" in words or "ERR_EMPTY" in words for words in browser.complaints)
    assert {urlsplit(url).netloc for url in browser.requested if url.startswith("http")} == {where}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 480])
def test_it_fits_and_can_be_read_in_light_and_dark(
    browser: Browser, start_daemon: StartDaemon, width: int, scheme: str
) -> None:
    daemon = start_daemon(slots=70, slot_initial_bytes=1 << 16, http_endpoint="127.0.0.1:0")
    stage(daemon, *(f"a-rather-long-name-of-a-key/{number}" for number in range(3)))
    browser.look_like(width=width, height=900, scheme=scheme)
    open_page(browser, daemon)
    browser.until(f"({ROWS}).includes('key/2')")
    assert browser.find("document.documentElement.scrollWidth") <= width
    assert browser.find(CONTRASTS) >= 4.5


CONTRASTS = """(() => {
  const light = (rgb) => {
    const [r, g, b] = rgb.match(/[\\d.]+/g).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const of = (element) => {
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    return (one + 0.05) / (other + 0.05);
  };
  const texts = [...document.querySelectorAll("h1, h2, p, dt, dd, td, th, button, .swatch, li")];
  return Math.min(...texts.filter((each) => each.dataset.state !== "FILLING" && each.offsetParent).map(of));
})()"""
"""The least contrast of a text to what is behind it, as WCAG counts it; but for that on stripes."""


def test_slots_can_be_looked_at_by_keyboard(browser: Browser, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=3, http_endpoint="127.0.0.1:0")
    stage(daemon, "k0")
    open_page(browser, daemon)
    browser.until(f"({ROWS}).includes('k0')")
    browser.find("document.querySelector('.cell').focus()")
    readout = "document.getElementById('readout').textContent"
    assert browser.find(readout).startswith("slot 0: ")
    browser.press("ArrowRight")
    assert browser.find(readout).startswith("slot 1: ")
    browser.press("End")
    browser.press("ArrowRight")
    assert browser.find(readout).startswith("slot 2: ")
    assert browser.find("document.querySelectorAll('.cell[tabindex=\"0\"]').length") == 1


def test_a_page_that_nobody_sees_asks_nothing(browser: Browser, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(http_endpoint="127.0.0.1:0")
    open_page(browser, daemon)
    hide = "Object.defineProperty(document, 'visibilityState', {configurable: true, get: () => %s})"
    browser.until("!isAsking")
    browser.find(hide % json.dumps("hidden"))
    asked = len(browser.requested)
    # The page's own clock: two more turns of its timer, and nothing asked.
    browser.find("window.turns = 0; setInterval(() => { window.turns += 1 }, ASK_MS)")
    browser.until("window.turns >= 2")
    assert len(browser.requested) == asked
    browser.find(hide % json.dumps("visible"))
    browser.find("document.dispatchEvent(new Event('visibilitychange')), 0")
    browser.until("!isAsking")
    assert len(browser.requested) > asked
