"""`tidemark reconcile`: compare published data with other systems, and propose repairs of the differences."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    JsonOption,
    Panel,
    ProjectOption,
    VerboseOption,
    run,
)
from pipeline_assets.cli.terminal import page, plainly, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import requested_range
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from resources.ledger.store import own_ledger

if TYPE_CHECKING:
    from resources.landing.store import LandingStore

_WHOSE = "refined/events"


def reconcile(
    first: Annotated[str | None, typer.Option("--from", help="First day; default the calendar's.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day; default today.")] = None,
    project: ProjectOption = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help="Compare keys with this list, in place of golden totals."),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="TABLE", help="Compare keys with this table, or with `backfill`.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", help="Whose keys are compared, with --keys or --against; default refined/events."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, max=10_000, help="Show so many keys of each kind.")] = 20,
    repair: Annotated[
        bool, typer.Option("--repair", help="Load and recover what closes the difference, then compare again.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compare published days with golden totals: golden/{date}.csv in landing, and the query of golden_query.

    With --keys or --against, compare keys of events, one by one. Exits 0 when all agree, 1 when not all do, 2 on bad usage.
    What a person has to decide is only proposed.
    """
    asked = _Asked(keys, against, table, samples, repair, as_json, verbose)
    run(lambda: _reconcile((first, last), tuple(project or ()), asked), verbose)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(rich_help_panel=Panel.TEST)(reconcile)


@dataclass(frozen=True)
class _Asked:
    """The options of the command."""

    keys: Path | None
    against: str | None
    table: str | None
    samples: int
    is_repaired: bool
    as_json: bool
    verbose: bool


def _reconcile(span: tuple[str | None, str | None], projects: tuple[str, ...], asked: _Asked) -> int:
    settings = load_settings()
    chosen = settings.require_projects(projects)
    first, last = _range(settings, *span)
    if asked.keys is not None and asked.against is not None:
        raise UsageError("--keys, --against", "name two things to compare with", "Give one of them")
    if asked.keys is None and asked.against is None:
        if asked.table is not None:
            hint = "Golden totals name their tables themselves; give --keys FILE or --against TABLE"
            raise UsageError(
                f"--table {asked.table}", "says whose keys are compared, and there is nothing beside", hint
            )
        return _golden(settings, chosen, first, last, asked)
    if None in span:
        raise UsageError("reconcile", "names no range, and would read every event there is", "Give --from and --to")
    return _keys(settings, chosen, first, last, asked)


def _range(settings: Settings, first: str | None, last: str | None) -> tuple[date, date]:
    start, end = first or str(settings.calendar_start), last or str(datetime.now(UTC).date())
    days = requested_range(start, end, settings)
    return days[0], days[-1]


def _golden(settings: Settings, projects: tuple[str, ...], first: date, last: date, asked: _Asked) -> int:
    from pipeline_assets.cli import render_reconcile as render  # noqa: PLC0415 - `status` starts without Dagster
    from pipeline_assets.cli.repair import Lacking, proposed, run_rounds  # noqa: PLC0415 - as above
    from pipeline_assets.operations.reconcile import again  # noqa: PLC0415 - as above
    from pipeline_assets.operations.reconcile import reconcile as compare  # noqa: PLC0415 - as above

    landing = _landing(settings)
    with own_ledger(settings) as ledger:
        found = compare(ledger, landing, settings, projects, first, last)
        if asked.is_repaired and found.lacking:
            before = found
            if not asked.as_json:
                render.print_reconciliation(page(), before, settings)

            def look() -> Lacking:
                return again(ledger, settings, projects, before).lacking

            with terminal(verbose=asked.verbose) as console:
                repairs = run_rounds(settings, landing, before.lacking, look, console, verbose=asked.verbose)
            found = again(ledger, settings, projects, before)
        else:
            repairs = proposed(settings, landing, found.lacking, set())
    if asked.as_json:
        write_json(render.reconciliation_json(found, repairs))
    else:
        render.print_reconciliation(page(), found, settings)
        render.print_repairs(page(), repairs)
    return EXIT_OK if found.is_good else EXIT_INCOMPLETE


def _keys(settings: Settings, projects: tuple[str, ...], first: date, last: date, asked: _Asked) -> int:
    from pipeline_assets.cli import render_keys as render  # noqa: PLC0415 - golden totals are compared without Spark
    from pipeline_assets.cli.render_reconcile import print_repairs, repairs_json  # noqa: PLC0415 - as above
    from pipeline_assets.cli.repair import Lacking, proposed, run_rounds  # noqa: PLC0415 - as above
    from pipeline_assets.cli.runtime import open_runtime  # noqa: PLC0415 - as above
    from pipeline_assets.formats.key_list import read_key_list  # noqa: PLC0415 - as above
    from pipeline_assets.inspection.keys import compare  # noqa: PLC0415 - as above

    table = compare.event_table(asked.table or _WHOSE)
    of = compare.KeyRange(projects, first, last)
    listed = None
    if asked.keys is not None:
        try:
            with asked.keys.open(encoding="utf-8", errors="replace") as lines:
                listed = read_key_list(str(asked.keys), lines)
        except OSError as error:
            raise UsageError(str(asked.keys), f"cannot be read: {error.strerror}", "Name a file") from None

    def compared(console: Console) -> compare.KeyComparison:
        with open_runtime(settings, plainly(console)) as runtime:
            if listed is not None:
                return compare.compare_with_list(runtime, table, of, str(asked.keys), listed, asked.samples)
            other = compare.event_table(asked.against or "")
            return compare.compare_tables(runtime, table, other, of, asked.samples)

    landing = _landing(settings)
    with terminal(verbose=asked.verbose) as console:
        found = compared(console)
        if asked.is_repaired and found.lacking:
            if not asked.as_json:
                render.print_keys(page(), found)

            def look() -> Lacking:
                return compared(console).lacking

            repairs = run_rounds(settings, landing, found.lacking, look, console, verbose=asked.verbose)
            found = compared(console)
        else:
            repairs = proposed(settings, landing, found.lacking, set())
    if asked.as_json:
        write_json({**render.keys_json(found), "repairs": repairs_json(repairs)})
    else:
        render.print_keys(page(), found)
        print_repairs(page(), repairs)
    return EXIT_OK if found.is_equal else EXIT_INCOMPLETE


def _landing(settings: Settings) -> LandingStore:
    from dagster_aws.s3 import S3Resource  # noqa: PLC0415 - `status` starts without Dagster

    from resources.landing.store import LandingStore  # noqa: PLC0415 - as above

    return LandingStore.from_settings(settings, S3Resource())
