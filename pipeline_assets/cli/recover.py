"""`tidemark recover`: download hours from the vendor again, and load them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    JsonOption,
    LoadSource,
    ProjectOption,
    VerboseOption,
    print_failures,
)
from pipeline_assets.cli.render_tables import print_statuses
from pipeline_assets.cli.terminal import page, plainly, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.inspection.status import DayStatus, recorded_statuses
from resources.ledger.store import own_ledger


def recover(
    first: Annotated[str | None, typer.Option("--from", help="First day or hour, YYYY-MM-DD[THH] (UTC).")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day or hour, YYYY-MM-DD[THH] (UTC).")] = None,
    project: ProjectOption = None,
    refused: Annotated[
        bool,
        typer.Option("--refused", help="Only what is missing or refused of days that `status` calls refused or short."),
    ] = False,
    ask_again: Annotated[
        bool, typer.Option("--ask-again", help="Also hours of which the vendor had no data before.")
    ] = False,
    load: Annotated[bool, typer.Option("--load", help="Load the recovered days afterwards.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what is missing or refused, and what would be fetched.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Fetch lost hours from the vendor's Export API again and put them below the backfill prefix, to be loaded from there.

    Every hour of the range is fetched, but for those that were recovered before; with --refused only bad ones. Exits 0 when
    every hour is there (with --load: and loaded), 1 when not, 2 on bad usage. The same call again goes on where it ended.
    """
    from dagster_aws.s3 import S3Resource  # noqa: PLC0415 - `status` starts without Dagster

    from pipeline_assets.cli import render_recovery as render  # noqa: PLC0415 - `status` starts without an HTTP client
    from pipeline_assets.operations.recover import Recovery, whole_days  # noqa: PLC0415 - as above
    from pipeline_assets.operations.recover_plan import plan_recovery, recovery_request  # noqa: PLC0415 - as above
    from resources.export_api import ExportApi  # noqa: PLC0415 - as above
    from resources.landing.store import LandingStore  # noqa: PLC0415 - as above

    settings = load_settings()
    request = recovery_request(settings, first, last, tuple(project or ()), is_refused_only=refused)
    request = replace(request, is_asking_again=ask_again)
    landing = LandingStore.from_settings(settings, S3Resource())
    with own_ledger(settings) as ledger:
        plan = plan_recovery(ledger, landing, settings, request, datetime.now(UTC))
    if dry_run:
        if as_json:
            write_json(render.plan_json(plan))
        else:
            render.print_plan(page(), plan)
        return EXIT_OK
    with terminal(verbose=verbose) as console:
        render.print_warnings(console, plan)
        api = ExportApi(settings, plainly(console))
        with (
            render.progress_on(console, plan) as progress,
            own_ledger(settings) as ledger,
        ):
            outcomes = Recovery(api, landing, settings, ledger.recoveries, progress).run(plan)
    if as_json:
        write_json(render.outcomes_json(outcomes))
    else:
        render.print_outcomes(page(), outcomes)
    days, short = whole_days(outcomes)
    if load and short:
        with terminal(verbose=verbose) as console:
            named = few(list(map(str, short)))
            plainly(console)(f"not loaded, because hours of them are not recovered: {named}")
    is_good = not load or _load(settings, days, as_json, verbose)
    return EXIT_OK if is_good and not short else EXIT_INCOMPLETE


def _load(settings: Settings, recovered: Sequence[Slice], as_json: bool, verbose: bool) -> bool:
    """Load the recovered days; returns whether every one of them is good afterwards."""
    if not recovered:
        return True
    with terminal(verbose=verbose) as console:
        failures = load_recovered(settings, recovered, console, verbose=verbose)
        print_failures(console, failures, verbose)
    statuses = recovered_statuses(settings, recovered)
    if not as_json:
        print_statuses(page(), statuses)
    return not failures and all(status.is_good for status in statuses)


def load_recovered(settings: Settings, recovered: Sequence[Slice], console: Console, *, verbose: bool) -> list[str]:
    """Run `tidemark load --source backfill` over these days; returns the failures that are not verdicts."""
    from pipeline_assets.cli.run import load_in_chunks  # noqa: PLC0415 - `status` starts without Dagster

    days = sorted({key.event_date for key in recovered})
    projects = tuple(dict.fromkeys(key.project_id for key in recovered))
    failures: list[str] = []
    for part in stretches(days, settings.days_per_run):
        failures += load_in_chunks(settings, LoadSource.BACKFILL, part, projects, {}, console, verbose=verbose)
    return failures


def recovered_statuses(settings: Settings, recovered: Sequence[Slice]) -> list[DayStatus]:
    """Return the recorded status of the recovered days."""
    with own_ledger(settings) as ledger:
        return recorded_statuses(ledger, set(recovered), sources=(Source.BACKFILL,))
