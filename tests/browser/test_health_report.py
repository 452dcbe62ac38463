"""The page of health in a browser: wide and narrow, light and dark, and a red day's reason by one click."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.health import read_health
from pipeline_assets.orchestration.health_page import write_page
from resources.ledger.store import Ledger
from tests.browser.conftest import IMAGES
from tests.support.recorded_history import UNREADABLE, record_history

pytestmark = pytest.mark.slow
PROJECTS = ("10001", "10002", "10003")
LAST = date(2026, 3, 31)
RED = "2026-03-28 raw/regular_events: refused"
SIZES = {"wide": (1200, 1700, "light"), "narrow": (390, 1700, "dark")}
"""Name -> width, height and scheme of the docs' picture; tests look at both schemes in both widths."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("health")
    with closing(Ledger(f"sqlite:///{folder}/ledger.db")) as ledger:
        record_history(ledger, PROJECTS, LAST, 150)
        health = read_health(ledger, Settings(projects=PROJECTS), datetime(2026, 4, 1, 8, tzinfo=UTC))
    return write_page(health, folder / "health_report.html")


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[Any, str], None]:
    """`picture(page, name)` keeps the page for the documentation, with `--images`."""

    def take(page: Any, name: str) -> None:
        if request.config.getoption("--images"):
            page.screenshot(path=IMAGES / f"{name}.png")

    return take


@pytest.mark.parametrize("width", SIZES)
def test_the_page_is_read_wide_and_narrow_and_in_both_schemes(
    width: str, chromium: Any, report: Path, picture: Callable[[Any, str], None]
) -> None:
    """Outcome: nothing exceeds the screen, colours are the scheme's, a red day's reason appears by click."""
    across, down, scheme_of_picture = SIZES[width]
    inks = {}
    for scheme in ("light", "dark"):
        context = chromium.new_context(
            viewport={"width": across, "height": down}, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("request", lambda asked, said=said: said.append(asked.url))
        page.goto(report.as_uri())
        if scheme == scheme_of_picture:
            picture(page, "health_report" if width == "wide" else "health_report_narrow")
        assert page.evaluate("document.documentElement.scrollWidth") <= across
        inks[scheme] = page.evaluate(_COLOURS)
        _click_the_red_day(page)
        # The policy was kept: only the file was requested.
        assert said == [report.as_uri()]
        context.close()
    assert all(light != dark for light, dark in zip(*inks.values(), strict=True)), inks


def _click_the_red_day(page: Any) -> None:
    window = page.locator("[popover]:popover-open")
    assert window.count() == 0
    page.get_by_role("button", name=RED).click()
    window.get_by_text(UNREADABLE).wait_for()
    window.get_by_text("tidemark load --source regular --from 2026-03-28 --to 2026-03-28 --project 10002").wait_for()
    box, size = window.bounding_box(), page.viewport_size
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size["width"]
    page.keyboard.press("Escape")
    window.wait_for(state="hidden")


@pytest.mark.parametrize("width", SIZES)
def test_nothing_overlaps_and_labels_are_legible(width: str, chromium: Any, report: Path) -> None:
    """Outcome: no labels or parts overlap, labels are at least 8 pixels high, and cells of days can be clicked."""
    across, down, _ = SIZES[width]
    context = chromium.new_context(viewport={"width": across, "height": down})
    page = context.new_page()
    page.goto(report.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate(_OVERLAPS) == []
    assert (
        page.evaluate(
            "Math.min(...[...document.querySelectorAll('svg text')].map(_ => _.getBoundingClientRect().height))"
        )
        >= 8
    )
    smallest = page.evaluate("[...document.querySelectorAll('.days button')].map(_ => _.getBoundingClientRect().width)")
    assert min(smallest) >= 7
    assert re.fullmatch(r"Health of 3 projects", page.locator("h1").inner_text())
    context.close()


_OVERLAPS = """() => {
  const found = [];
  const check = (parts) => parts.forEach((one, index) => parts.slice(index + 1).forEach((other) => {
    const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 3) found.push([one.textContent.slice(0, 40), other.textContent.slice(0, 40)]);
  }));
  document.querySelectorAll('svg').forEach(chart => check([...chart.querySelectorAll('text')]));
  ['.tiles', '.questions', '.months', '.charts', 'main'].forEach(name => document.querySelectorAll(name).forEach(
    place => check([...place.children].filter(part => !part.matches('[popover]')))));
  document.querySelectorAll('.tile, figure, td, h4, .days > b').forEach(part => {
    const isCut = part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display !== 'inline';
    if (isCut) found.push(['cut', part.textContent.slice(0, 40)]);
  });
  return found;
}"""
"""Pairs of labels or parts that overlap, and parts that are cut."""
_COLOURS = """() => {
  const colour = (place, name) => getComputedStyle(document.querySelector(place)).getPropertyValue(name);
  const line = 'svg path[style*="stroke: var(--series-1)"]';
  return [colour('body', 'background-color'), colour('body', 'color'), colour('svg text', 'fill'), colour(line, 'stroke')];
}"""
