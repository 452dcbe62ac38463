"""`tidemark reconcile`: compare published data with other systems, and propose repairs of the differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK, JsonOption, ProjectOption, VerboseOption
from pipeline_assets.cli.terminal import PlainConsole, page, plainly, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import requested_range
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.repairs import Repair, RepairKind
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from resources.ledger.store import own_ledger

if TYPE_CHECKING:
    from pipeline_assets.inspection.key_comparison import KeyComparison
    from pipeline_assets.load.golden import Reconciliation
    from resources.landing.store import LandingStore


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
        bool, typer.Option("--repair", help="Run the proposed loads and recoveries, then compare again.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Compare published days with golden totals: golden/{date}.csv in landing, and the query of golden_query.

    With --keys or --against, compare keys of events, one by one. Exits 0 when all agree, 1 when not all do, 2 on bad usage.
    What a person has to decide is only proposed.
    """
    from dagster_aws.s3 import S3Resource  # noqa: PLC0415 - `status` starts without Dagster

    from pipeline_assets.cli import render_reconcile as render  # noqa: PLC0415 - as above
    from pipeline_assets.operations.repair_plan import plan_repairs  # noqa: PLC0415 - as above
    from resources.landing.store import LandingStore  # noqa: PLC0415 - as above

    settings = load_settings()
    chosen = settings.require_projects(tuple(project or ()))
    today = str(datetime.now(UTC).date())
    days = requested_range(first or str(settings.calendar_start), last or today, settings)
    landing = LandingStore.from_settings(settings, S3Resource())
    look: Callable[[], Any]
    if keys is not None and against is not None:
        raise UsageError("--keys, --against", "name two things to compare with", "Give one of them")
    if keys is not None or against is not None:
        if first is None or last is None:
            raise UsageError("reconcile", "names no range, and would read every event there is", "Give --from and --to")
        look = _keys(settings, chosen, days, keys, against, table or "refined/events", samples, verbose=verbose)
    elif table is not None:
        hint = "Golden totals name their tables themselves; give --keys FILE or --against TABLE"
        raise UsageError(f"--table {table}", "says whose keys are compared, and there is nothing beside", hint)
    else:
        look = partial(_golden, settings, chosen, days, landing)

    found, console, tried = look(), PlainConsole(stderr=True, soft_wrap=True), set[tuple[RepairKind, Slice]]()
    while True:
        with own_ledger(settings) as ledger:
            now = datetime.now(UTC)
            repairs = plan_repairs(ledger, landing, settings, found.lacking, now, tried) if found.lacking else []
        able = [one for one in repairs if repair and one.is_runnable]
        if not able:
            break
        if not tried and not as_json:
            render.print_comparison(page(), found)
        # The cheapest kind runs first and may make the others unnecessary. Each runs once for a day, so rounds are bounded.
        chosen_repairs = [one for one in able if one.kind is able[0].kind]
        render.print_repairs(console, chosen_repairs)
        for one in chosen_repairs:
            _run(one, verbose=verbose)
            tried.update((one.kind, key) for key in one.slices)
        before, found = len(found.lacking), look()
        console.print(styled(f"looked again: {before - len(found.lacking):,} of {before:,} days closed", "bold"))
    if as_json:
        write_json({**render.comparison_json(found), "repairs": render.repairs_json(repairs)})
    else:
        render.print_comparison(page(), found)
        render.print_repairs(page(), repairs)
    return EXIT_OK if found.is_good else EXIT_INCOMPLETE


def _run(one: Repair, *, verbose: bool) -> None:
    """Run the command of a repair in this process; what it prints goes to standard error, and whether it helped is compared."""
    from pipeline_assets.cli.app import app  # noqa: PLC0415 - it imports this module

    arguments = [*one.arguments, *(["--verbose"] if verbose else [])]
    command = typer.main.get_command(app)
    with redirect_stdout(sys.stderr), suppress(typer.Exit), command.make_context("tidemark", arguments) as context:
        command.invoke(context)


def _golden(settings: Settings, projects: Sequence[str], days: Sequence[date], landing: LandingStore) -> Reconciliation:
    from pipeline_assets.load import golden  # noqa: PLC0415 - `status` starts without Dagster

    with own_ledger(settings) as ledger:
        return golden.reconcile(ledger, landing, settings, projects, days[0], days[-1])


def _keys(
    settings: Settings,
    projects: tuple[str, ...],
    days: Sequence[date],
    keys: Path | None,
    against: str | None,
    whose: str,
    samples: int,
    *,
    verbose: bool,
) -> Callable[[], KeyComparison]:
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - golden totals are compared without Spark
    from pipeline_assets.formats.key_list import read_key_list  # noqa: PLC0415 - as above
    from pipeline_assets.inspection import key_comparison  # noqa: PLC0415 - as above

    table = key_comparison.event_table(whose)
    of = key_comparison.KeyRange(projects, days[0], days[-1])
    listed = None
    if keys is not None:
        try:
            with keys.open(encoding="utf-8", errors="replace") as lines:
                listed = read_key_list(str(keys), lines)
        except OSError as error:
            raise UsageError(str(keys), f"cannot be read: {error.strerror}", "Name a file") from None
    other = key_comparison.event_table(against) if against is not None else table

    def look() -> KeyComparison:
        with terminal(verbose=verbose) as console, open_runtime(settings, plainly(console)) as runtime:
            if listed is not None:
                return key_comparison.compare_with_list(runtime, table, of, str(keys), listed, samples)
            return key_comparison.compare_tables(runtime, table, other, of, samples)

    return look
