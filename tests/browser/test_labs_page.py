"""The three labs of `make labs`, run small: their claims hold, and a browser shows their page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from labs.__main__ import LABS, run_labs
from labs.page import page_of
from labs.story import Story
from pipeline_assets.domain.machine import write_whole
from tests.browser.conftest import IMAGES

pytestmark = pytest.mark.slow
SMALL = {"append_or_replace": {"months": 3, "events": 40}, "event_time": {"events": 80}, "hot_key": {"rows": 24_000}}


@pytest.fixture(scope="module")
def stories(spark: Any, request: pytest.FixtureRequest) -> Mapping[str, Story]:
    """The labs as documented, or small; in all tests' session."""
    sizes = None if request.config.getoption("--images") else SMALL
    return {story.name: story for story in run_labs(list(LABS), lambda *_: None, sizes)}


def test_what_the_labs_claim_is_so(stories: Mapping[str, Story]) -> None:
    """Outcome: appending doubles revenue, replacing does not; Monday grows by event time until its late facts are
    there, by arrival never; divided work is more even, with the same digests."""
    twice = stories["append_or_replace"].figures
    assert twice["append_once"] == twice["replace_once"] == twice["replace_twice"] > 0
    assert twice["append_twice"] == pytest.approx(2 * twice["append_once"])

    monday = stories["event_time"].figures
    assert monday["first"] < monday["last"] == monday["before_last"]
    assert monday["processing_first"] == monday["processing_last"] != monday["last"]

    skew = stories["hot_key"].figures
    assert skew["is_same"] == 1
    assert skew["read_after"] < skew["read_before"] / 2
    assert skew["compare_after"] == pytest.approx(1, abs=0.2)
    assert skew["compare_before"] > 2
    for story in stories.values():
        assert len(story.told) >= 3
        assert "DIFFER" not in " ".join(story.told)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_shows_every_story_with_its_chart(
    width: int, scheme: str, stories: Mapping[str, Story], chromium: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Outcome: a heading, sentences and a chart of each lab; nothing exceeds the screen, nothing else is requested."""
    path = write_whole(tmp_path / "labs" / "index.html", page_of(list(stories.values())), makes_folder=True)
    context = chromium.new_context(viewport={"width": width, "height": 1500}, color_scheme=scheme)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: asked.append(message.text))
    page.goto(path.as_uri())
    assert page.locator("h2").all_inner_texts() == [story.title for story in stories.values()]
    assert page.locator("svg").count() == len(stories)
    for story in stories.values():
        section = page.locator(f"#{story.name}")
        assert section.locator("li").all_inner_texts() == [re.sub("`", "", text) for text in story.told]
        assert section.locator("svg").bounding_box()["height"] > 80
        assert section.locator("svg path[style*='--series-2']").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert asked == [path.as_uri()]
    if scheme == "light" and request.config.getoption("--images"):
        page.screenshot(path=IMAGES / "labs_page.png", full_page=True)
    context.close()
