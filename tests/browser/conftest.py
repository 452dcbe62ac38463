"""A browser at a running deployment; pages are kept when a test fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline_assets.domain.settings import PROJECT_ROOT

FAILURES = PROJECT_ROOT / "build" / "screenshots"
IMAGES = PROJECT_ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.browser.deployment import Deployment, a_day

    with Deployment(tmp_path_factory.mktemp("deployment"), a_day(10)) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's browser, headless; closed before other modules run, whose event loops Playwright's would block."""
    if shutil.which("chromium") is None:
        pytest.skip("Chromium is not installed (on Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses root a sandbox, and containers run as root.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any, deployment: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    page = chromium.new_page(viewport={"width": 1400, "height": 900}, base_url=deployment.url)
    page.set_default_timeout(60_000)
    failed_before = request.session.testsfailed
    yield page
    if request.session.testsfailed > failed_before:
        FAILURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=FAILURES / f"{request.node.name}.png")
        shutil.copy(deployment.log, FAILURES / f"{request.node.name}.log")
    page.close()


@pytest.fixture
def picture(page: Any, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """`picture(name)` keeps the page for the documentation, with `--images`."""

    def take(name: str) -> None:
        if request.config.getoption("--images"):
            page.screenshot(path=IMAGES / f"{name}.png")

    return take
