"""`tidemark window`: what each reprocessing window would catch and cost, and a recommendation."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK, JsonOption, ProjectOption
from pipeline_assets.cli.terminal import line, page, styled, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.slices import Source
from resources.ledger.store import own_ledger

if TYPE_CHECKING:
    from pipeline_assets.inspection.window import Percentiles, WindowReport

_MiB = 1024**2


def window(
    source: Annotated[Source, typer.Option("--source", help="Which exports' arrivals.")] = Source.REGULAR,
    project: ProjectOption = None,
    first: Annotated[
        str | None, typer.Option("--from", help="First arrival day; default 91 days before the last.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last arrival day; default the last on record.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show how late rows arrive, what each reprocessing window would catch and cost, and recommend one. From the ledger alone.

    Exits 0 when the set window misses no more than is tolerated, or too little is known to say so; 1 when it misses more; 2 on
    bad usage.
    """
    from pipeline_assets.inspection.window import read_window  # noqa: PLC0415 - other commands start without it

    settings = load_settings()
    chosen = settings.require_projects(tuple(project or ()))
    start, end = (parse_day(day) if day else None for day in (first, last))
    if start and end and end < start:
        raise UsageError(f"--from {start} --to {end}", "the range ends before it begins", "Swap the two days")
    with own_ledger(settings) as ledger:
        found = read_window(ledger, settings, source, chosen, datetime.now(UTC).date(), first=start, last=end)
    if as_json:
        write_json(found.to_json())
    else:
        print_window(page(), found)
    return EXIT_INCOMPLETE if found.is_too_narrow else EXIT_OK


def print_window(console: Console, found: WindowReport) -> None:
    """Print the lateness of rows, then the windows, then the recommendation."""
    from pipeline_assets.domain.lateness import percent  # noqa: PLC0415 - as the report itself

    settings, set_days = found.settings, found.settings.reprocessing_window_days
    arrived = f"{found.source.value} deliveries that arrived {found.first} to {found.last}"
    if not found.all.late.rows:
        console.print(f"no rows of {arrived} are on record")
        return
    console.print(styled(arrived, "dim"))
    _print_percentiles(console, found)
    console.print()
    headings = (
        "window",
        "caught",
        "missed rows a day",
        "arrival days",
        "objects",
        "slices",
        "rows",
        "MiB",
        "final after",
        "",
    )
    table = RichTable(*headings, box=None, pad_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for reach in found.reaches:
        marks = [word for word, days in (("set", set_days), ("enough", found.recommended)) if days == reach.days]
        style = "bold" if marks else ""
        cells = (
            f"{reach.days} d",
            _share(reach.caught),
            f"{reach.missed_a_day:,.1f}",
            str(reach.arrival_days),
            f"{reach.objects:,}",
            f"{reach.slices:,}",
            f"{reach.rows:,}",
            f"{reach.size_bytes / _MiB:,.1f}",
            f"{reach.final_after_hours} h",
            ", ".join(marks),
        )
        table.add_row(*(styled(cell, style) for cell in cells))
    console.print(table)
    console.print(
        styled(
            "arrival days, objects, slices: what the load of one day looks at. rows, MiB: what it reads again where all of these "
            "objects came anew",
            "dim",
        )
    )
    _print_out_of_reach(console, found)
    if found.recommended is None:
        console.print(f"no window is recommended: {found.reason}")
        return
    verdict = line(styled("too narrow", "bold red")) if found.is_too_narrow else line(styled("wide enough", "green"))
    console.print(line(f"reprocessing_window_days = {set_days} is ", verdict))
    console.print(
        f"  {found.recommended} days are enough to miss no more than {percent(settings.tolerated_missed_share)}: {found.reason}"
    )
    if found.is_too_narrow:
        console.print(
            f"  fix: set TIDEMARK_REPROCESSING_WINDOW_DAYS={found.recommended}; days stay provisional as much longer"
        )
        missed = math.ceil(10_000 * max(1 - one.late.caught_within(set_days) for one in found.of_projects)) / 10_000
        console.print(
            f"  or:  set TIDEMARK_TOLERATED_MISSED_SHARE={missed:g}; later rows are loaded all the same, into a final day"
        )


def _print_percentiles(console: Console, found: WindowReport) -> None:
    from pipeline_assets.inspection.window import PERCENTILES  # noqa: PLC0415 - as the report itself

    table = RichTable("project", "days", "rows", *PERCENTILES, "early", "enough", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    shown = found.of_projects if len(found.of_projects) != 2 else found.of_projects[1:]
    for one in shown:
        seconds = (_length(value) for value in one.seconds.values())
        enough = f"{one.advice.days} d" if one.advice.days is not None else "?"
        days = str(one.late.arrival_days)
        table.add_row(one.project or "all", days, f"{one.late.rows:,}", *seconds, f"{one.times.early_rows:,}", enough)
    console.print(table)
    _print_unmeasured(console, found.all)


def _print_unmeasured(console: Console, of_all: Percentiles) -> None:
    from pipeline_assets.domain.lateness import RELATIVE_ERROR  # noqa: PLC0415 - as the report itself

    told = f"times from event to arrival, at most {100 * RELATIVE_ERROR:g} % off; days are exact"
    lacking = of_all.late.arrival_days - of_all.measured_days
    if lacking > 0:
        told += f"; of {lacking} days no times are on record: an older version loaded them"
    console.print(styled(told, "dim"))


def _print_out_of_reach(console: Console, found: WindowReport) -> None:
    most = found.settings.max_lateness_days
    kinds = {
        "rows_before_calendar": "before the calendar's first day",
        "rows_in_future": "of days after their arrival",
        "rows_beyond_max_lateness": f"more than {most} days late, which no window is widened for",
    }
    told = ", ".join(f"{rows:,} {kinds[kind]}" for kind, rows in found.out_of_reach.items() if rows)
    if told:
        console.print(f"rows that are loaded and counted, but lie out of reach: {told}")


def _share(share: float) -> str:
    """A percentage that rounds to 100 % only for exactly all."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.9999):.6g} %"


def _length(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, size, least in (("d", 86_400, 2 * 86_400), ("h", 3_600, 2 * 3_600), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
