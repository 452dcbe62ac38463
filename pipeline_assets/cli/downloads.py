"""Show downloads: a progress bar on a terminal, a line per file elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from resources.spark.jar_download import WATCH


class _Shown:
    """The display; it shows nothing before the first download starts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: set[str] = set()

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if not self._console.is_terminal:
            if name not in self._told:
                self._told.add(name)
                size = f" ({total / 1024**2:,.0f} MiB)" if total else ""
                self._console.print(f"fetching {name}{size}")
            return
        if self._bar is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total)
        self._bar.update(self._tasks[name], completed=done, total=total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def downloads_shown(console: Console) -> Iterator[None]:
    """Show the downloads of the block on this console."""
    shown = _Shown(console)
    token = WATCH.set(shown)
    try:
        yield
    finally:
        WATCH.reset(token)
        shown.close()
