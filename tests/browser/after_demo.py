"""Pictures of the UI right after `make demo`: the group page and a table's partitions (`make images`)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.browser.conftest import IMAGES
from tests.support.ports import a_free_port

_LONGEST_SECONDS = 120
PAGES = {
    "group_page": ("/locations/tidemark/asset-groups/events", "daily_revenue"),
    "partitions_page": ("/assets/refined/events?view=partitions", "Failed (0)"),
}
"""Picture -> address, and a required text: no day failed."""


def main() -> int:
    if not (PROJECT_ROOT / "data" / ".demo").exists():
        sys.stderr.write("there is no demo: run `make demo` first\n")
        return 1
    with _dagster() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900}, base_url=url)
        for name, (address, text) in PAGES.items():
            _take(page, name, address, text)
        browser.close()
    return 0


def _take(page: Page, name: str, address: str, text: str) -> None:
    page.goto(address)
    page.get_by_text(text).first.wait_for(timeout=60_000)
    # The page asks for each asset's state after it is drawn.
    time.sleep(5)
    page.screenshot(path=IMAGES / f"{name}.png")
    sys.stdout.write(f"docs/images/{name}.png\n")


@contextmanager
def _dagster() -> Iterator[str]:
    """Webserver and daemon as `make dev` starts them; gives the address."""
    port = a_free_port()
    environment = {**os.environ, "PORT": str(port)}
    command = [sys.executable, "-m", "pipeline_assets.cli", "dev"]
    process = subprocess.Popen(
        command, cwd=PROJECT_ROOT, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the webserver did not start")
            time.sleep(1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(90)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    raise SystemExit(main())
