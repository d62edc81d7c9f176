"""The report page in a real browser, driven headlessly; skipped where there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fxprune.report.facts import ReportData, of_inspection
from fxprune.report.page import render
from tests.report.page_cases import page, residual

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="there is no Chromium with a chromedriver"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
SLOWEST_PAINT, SLOWEST_CLICK = 20_000, 5_000  # ms; a fast machine needs a hundredth
Show = Callable[..., Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    for argument in ("--headless=new", "--disable-gpu", f"--user-data-dir={profile}", *quiet, *root):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens a page; in the end nothing was complained about and nothing was loaded but the page."""
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)

    def opened(data: ReportData, *, width: int = 1280, height: int = 900, dark: bool = False) -> Any:
        (tmp_path / "report.html").write_text(render(data), encoding="utf-8")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        browser.get((tmp_path / "report.html").as_uri())
        return browser

    yield opened
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert asked <= {(tmp_path / "report.html").as_uri(), "data:,"}


def _at(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def _head(browser: Any, key: str) -> Any:
    return _at(browser, f"[data-key='{key}'] > .head")


def _places(browser: Any) -> dict[str, list[float]]:
    places: dict[str, list[float]] = browser.execute_script(
        "const places = {}; for (const e of document.querySelectorAll('#graph [data-key]')) {"
        "const b = (e.querySelector(':scope > .box, :scope > .head > .box')).getBoundingClientRect();"
        "const o = document.getElementById('graph').getBoundingClientRect();"
        "if (b.width) places[e.dataset.key] = [b.left - o.left, b.top - o.top, b.width, b.height]; } return places;"
    )
    return places


def _apart(places: dict[str, list[float]], nodes: set[str]) -> None:
    shown = [places[name] for name in nodes if name in places]
    for n, (x, y, width, height) in enumerate(shown):
        for left, top, wide, high in shown[:n]:
            assert x + width <= left + 0.5 or left + wide <= x + 0.5 or y + height <= top + 0.5 or top + high <= y + 0.5


def test_it_shows_what_was_written(show: Show) -> None:
    browser = show(page())
    assert _at(browser, "h1").text == "Residual"
    assert _at(browser, "#graph").is_displayed()
    assert browser.execute_script("return document.querySelectorAll('#graph .node').length") == len(residual().nodes)
    assert _at(browser, "#tip").is_displayed() is False


def test_hover_and_focus_show_numbers(show: Show) -> None:
    browser = show(page(), height=1400)
    tip = _at(browser, "#tip")
    stem = _at(browser, "[data-key='stem']")
    webdriver.ActionChains(browser).move_to_element(stem).perform()
    assert tip.is_displayed() and "8 of 16 channels live" in tip.text
    webdriver.ActionChains(browser).move_to_element(_at(browser, "h1")).perform()
    assert not tip.is_displayed()
    browser.execute_script("document.querySelector('[data-key=conv1_1_0]').focus()")
    assert tip.is_displayed() and tip.text.startswith("layer1.0.conv1")
    bar = _at(browser, ".entry")
    browser.execute_script("arguments[0].focus()", bar)
    assert "channels live" in tip.text
    scrolled = "document.querySelector('h1').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
    browser.execute_script(scrolled)  # the page moved under a pointer that rests
    assert "channels live" in tip.text
    webdriver.ActionChains(browser).send_keys("\ue00c").perform()  # Escape
    assert not tip.is_displayed()


def test_the_tab_key_reaches_every_node_and_control(show: Show) -> None:
    browser = show(page())
    reached = set()
    for _ in range(60):
        webdriver.ActionChains(browser).send_keys("\ue004").perform()  # Tab
        focused = browser.execute_script(
            "const a = document.activeElement; return a.id || a.dataset.key || a.parentNode.dataset.key || ''"
        )
        reached.add(focused)
    assert {"theme", "open-all", "stem", "/layer1.0", "add_2_1", "output"} <= reached


def test_a_click_opens_and_closes_a_block(show: Show) -> None:
    browser = show(page(residual(4, 6)))
    seen = residual(4, 6)
    inner = _at(browser, "[data-key='conv1_1_0']")
    before = _places(browser)
    assert not inner.is_displayed()
    head = _head(browser, "/layer1.0")
    head.click()
    assert inner.is_displayed() and head.get_attribute("aria-expanded") == "true"
    opened = _places(browser)
    assert opened["/layer1.1"][1] > before["/layer1.1"][1], "what comes after it makes room"
    _apart(opened, set(seen.nodes))
    browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", head)
    assert not inner.is_displayed() and head.get_attribute("aria-expanded") == "false"
    after = _places(browser)
    assert all(after[key] == pytest.approx(before[key], abs=0.2) for key in before), "all is where it was"


@pytest.mark.parametrize("key", ["\ue007", " "], ids=["enter", "space"])
def test_the_keyboard_opens_and_closes_a_block(show: Show, key: str) -> None:
    browser = show(page(residual(4, 6)))
    inner = _at(browser, "[data-key='conv1_2_0']")
    browser.execute_script("arguments[0].focus({preventScroll: true})", _head(browser, "/layer2.0"))
    webdriver.ActionChains(browser).send_keys(key).perform()
    assert inner.is_displayed()
    webdriver.ActionChains(browser).send_keys(key).perform()
    assert not inner.is_displayed()


def test_all_blocks_at_once(show: Show) -> None:
    browser, seen = show(page(residual(4, 6))), residual(4, 6)
    _at(browser, "#open-all").click()
    places = _places(browser)
    assert set(seen.nodes) <= set(places)
    _apart(places, set(seen.nodes))
    _at(browser, "#close-all").click()
    assert set(_places(browser)) == {"x", "stem", "/layer1", "/layer2", "/layer3", "/layer4", "output"}


def test_the_script_places_blocks_as_python_does(show: Show) -> None:
    data = page(residual(2, 3))
    drawn = re.findall(r'transform="translate\(([^)]*)\)"[^>]* data-key="([^"]*)"', render(data))
    written = {key: at for at, key in drawn}
    browser = show(data)
    _at(browser, "#close-all").click()
    _at(browser, "#open-all").click()
    placed = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('#graph [data-key]')]"
        ".map(e => [e.dataset.key, e.getAttribute('transform').slice(10, -1)]))"
    )
    assert set(placed) == set(written) and len(written) > 20
    for key, at in written.items():
        assert list(map(float, placed[key].split())) == pytest.approx(list(map(float, at.split())), abs=0.02), key


def _colour(browser: Any) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_light_dark_and_the_toggle(show: Show) -> None:
    browser = show(page())
    light, button = _colour(browser), _at(browser, "#theme")
    button.click()
    dark = _colour(browser)
    assert dark != light and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert _colour(browser) == light
    assert _colour(show(page(), dark=True)) == dark
    _at(browser, "#theme").click()
    assert _colour(browser) == light


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_never_scrolls_sideways(show: Show, width: int) -> None:
    long = residual(2, 3, model="A" * 60, stem="a_very_long_name_of_a_module." * 4 + "conv")
    for data in (page(), of_inspection(long, 0.5)):
        browser = show(data, width=width)
        wide = "return [document.documentElement.scrollWidth, window.innerWidth]"
        whole, inner = browser.execute_script(wide)
        assert whole <= inner == width
    if width == 390:
        browser.execute_script("document.getElementById('open-all').click()")
        assert browser.execute_script(wide)[0] <= 390


def test_texts_do_not_overlap(show: Show) -> None:
    browser = show(page(residual(2, 3)))
    pairs = browser.execute_script(
        "const texts = [...document.querySelectorAll('svg text')]"
        ".filter(t => t.textContent && t.getBoundingClientRect().width)"
        ".map(t => [t.textContent, t.getBoundingClientRect(), t.closest('svg'), !!t.getAttribute('transform')]);"
        "const bad = []; for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {"
        "const [a, p, s, r] = texts[i], [b, q, t, u] = texts[j]; if (s !== t || r || u) continue;"
        "if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2)"
        "bad.push([a, b]); } return bad;"
    )
    assert pairs == []


def test_on_paper_everything_is_open_and_light(show: Show) -> None:
    browser = show(page(residual(4, 6)), dark=True)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert set(residual(4, 6).nodes) <= set(_places(browser))
    assert _colour(browser) == "rgb(255, 255, 255)"
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert "conv1_1_0" not in _places(browser)


def test_a_thousand_nodes_stay_responsive(show: Show) -> None:
    seen = residual(4, 84)
    assert len(seen.nodes) > 1000
    browser = show(page(seen))
    painted = browser.execute_async_script(
        "const done = arguments[0]; new PerformanceObserver(list => done(list.getEntries()[0].startTime))"
        ".observe({type: 'paint', buffered: true}); setTimeout(() => done(null), 30000);"
    )
    assert painted is not None and painted < SLOWEST_PAINT
    took = (
        "const [key, done] = arguments, start = performance.now();"
        "document.querySelector(key).dispatchEvent(new MouseEvent('click', {bubbles: true}));"
        "requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"
    )
    for selector in ("[data-key='/layer1'] > .head", "[data-key='/layer1.0'] > .head", "#open-all"):
        assert browser.execute_async_script(took, selector) < SLOWEST_CLICK, selector
    _apart({key: place for key, place in _places(browser).items() if "_1_" in key}, set(seen.nodes))


def test_names_are_not_run(show: Show) -> None:
    evil = "<img src=x onerror=document.title='run'><script>document.title='run'</script>"
    browser = show(of_inspection(residual(model=evil, stem=evil)))
    assert _at(browser, "h1").text == evil and browser.title != "run"
    browser.execute_script("document.querySelector('[data-key=stem]').focus()")
    assert _at(browser, "#tip").text.startswith(evil)
    assert browser.title != "run"
