"""`make labs`: run the three labs in a scratch folder, print their stories, write their page."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from labs.append_or_replace import append_or_replace
from labs.event_time import event_time
from labs.hot_key import hot_key
from labs.page import page_of
from labs.story import Story
from pipeline_assets.domain.machine import write_whole
from pipeline_assets.domain.settings import PROJECT_ROOT

PAGE = PROJECT_ROOT / "data" / "labs" / "index.html"
LABS: Mapping[str, Callable[..., Story]] = {
    "append_or_replace": append_or_replace,
    "event_time": event_time,
    "hot_key": hot_key,
}


def run_labs(
    names: list[str], tell: Callable[[Story, float], None], sizes: Mapping[str, Any] | None = None
) -> list[Story]:
    """Run labs in a temporary folder and return their stories; `sizes` is lab -> arguments, for quick runs."""
    work = Path(tempfile.mkdtemp(prefix="tidemark-labs-"))
    stories = []
    try:
        for name in names:
            started = time.perf_counter()
            stories.append(LABS[name](work, **(sizes or {}).get(name, {})))
            tell(stories[-1], time.perf_counter() - started)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return stories


def main() -> int:
    """Run the chosen labs and print their stories and the path of the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m labs", description=__doc__)
    parser.add_argument("labs", nargs="*", default=list(LABS), metavar="LAB", help=", ".join(LABS))
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.labs if name not in LABS]
    if unknown:
        parser.error(f"there is no lab {unknown[0]}; there are {', '.join(LABS)}")
    console = Console(width=110, highlight=False)

    def tell(story: Story, seconds: float) -> None:
        console.print(f"\n[bold]{story.title}[/bold]  ({seconds:.0f} s)")
        for sentence in story.told:
            console.print(f"  {sentence}", markup=False)

    page = write_whole(chosen.page, page_of(run_labs(chosen.labs, tell)), makes_folder=True)
    console.print(f"\nThe page: {page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
