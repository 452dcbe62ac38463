"""The terminal of a command, and the log file beside it."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipeline_assets.config import dagster_home
from pipeline_assets.domain.masking import scrubbed
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.requests import Printed, Styled, Table
from resources.spark.jars import WATCH

Parts = Iterator[Table | Text | str | None]
LOG_NAME = "tidemark-load.log"
VERBOSE = ContextVar("verbose", default=False)


class PlainConsole(Console):
    """A console that prints every string literally, also in cells and titles: no markup, no emoji, one line each."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string literally; rich converts every string here."""
        plain = {"markup": False, "highlight": False, "emoji": False, "highlighter": None}
        return super().render_str(shown(text), **(options | plain))


def styled(text: object, style: str = "") -> Text:
    """Return text with a style, without markup in the text."""
    return Text(shown(text), style)


def line(*parts: str | Text) -> Text:
    """Return a line of plain and styled parts."""
    return Text.assemble(*(styled(part) if isinstance(part, str) else part for part in parts))


def stacked(*parts: str) -> Text:
    """Several lines for one table cell; line breaks within a part are escaped."""
    return Text("\n").join(styled(part) for part in parts)


def show(console: Console, *parts: object) -> None:
    """Print tables, with numbers to the right, and sentences; None is left out."""
    for part in parts:
        if isinstance(part, Table) and part.rows:
            grid = RichTable(box=None, pad_edge=False)
            for name, column in zip(part.headings, zip(*part.rows, strict=True), strict=True):
                is_number = all(isinstance(cell, int | float | None) for cell in column)
                grid.add_column(name, justify="right" if is_number else "left", overflow="fold")
            for row in part.rows:
                grid.add_row(*map(_text, row))
            console.print(grid)
        elif part is not None and not isinstance(part, Table):
            console.print(_text(part), soft_wrap=True)


def _text(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, Styled):
        return styled(value.value, value.style)
    if isinstance(value, int | float):
        return styled(f"{value:,}")
    return styled("" if value is None else value)


def page() -> PlainConsole:
    """A console on standard output; a pipe gets the width that tables need."""
    return PlainConsole(width=None if sys.stdout.isatty() else 200, soft_wrap=sys.stdout.isatty())


def plainly(console: Console) -> Callable[[str], None]:
    """Return a log function that prints lines dimmed."""
    return lambda text: console.print(styled(text, "dim"))


def more(count: int, what: str) -> str | None:
    """`and 3 more days`, where the count is positive."""
    return f"and {count:,} more {what}" if count > 0 else None


def members(one: object, *names: str, **paths: str) -> dict[str, Any]:
    """Attributes of a value for `write_json`: by their names, or name -> path such as `key.event_date`."""
    return {name: attrgetter(path)(one) for name, path in (dict(zip(names, names, strict=True)) | paths).items()}


def answer(request: Printed, value: object, parts: Iterable[object]) -> None:
    """Print the value as JSON where that is asked, else the parts."""
    if request.as_json:
        write_json(value)
    else:
        show(page(), *parts)


def write_json(value: object) -> None:
    """Write JSON to standard output, with control characters escaped and secrets masked; other values as their text."""
    sys.stdout.write(json.dumps(_scrubbed(value), indent=2).replace("\x7f", "\\u007f") + "\n")


def _scrubbed(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _scrubbed(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    return scrubbed(value.isoformat() if isinstance(value, date) else str(value))


def print_trace(console: Console, error: BaseException) -> None:
    """Print a stack trace as plain text."""
    show(console, *"".join(traceback.format_exception(error)).splitlines())


@contextmanager
def terminal() -> Iterator[Console]:
    """Yield a console on standard error; Spark's and Dagster's lines go to a log file unless --verbose."""
    if VERBOSE.get():
        console = PlainConsole(stderr=True, soft_wrap=True)
        with downloads_shown(console):
            yield console
        return
    warnings.simplefilter("ignore")
    home = dagster_home()
    sys.stderr.flush()
    kept = os.dup(2)
    with (home / LOG_NAME).open("a", encoding="utf-8") as log, os.fdopen(kept, "w", encoding="utf-8") as terminal:
        # The JVM inherits the descriptor.
        os.dup2(log.fileno(), 2)
        try:
            console = PlainConsole(file=terminal, soft_wrap=True)
            with downloads_shown(console):
                yield console
        finally:
            sys.stderr.flush()
            terminal.flush()
            os.dup2(kept, 2)


@contextmanager
def downloads_shown(console: Console) -> Iterator[None]:
    """Print a line when a download begins."""
    begun = set[str]()

    def watch(name: str, _: int, total: int | None) -> None:
        if name not in begun:
            begun.add(name)
            console.print(f"fetching {name}{f' ({total / 1024**2:,.0f} MiB)' if total else ''}")

    token = WATCH.set(watch)
    try:
        yield
    finally:
        WATCH.reset(token)
