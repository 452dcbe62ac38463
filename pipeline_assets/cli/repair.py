"""`tidemark reconcile --repair`: run proposed repairs, compare again, and propose the remaining ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from rich.console import Console

from pipeline_assets.cli.command import LoadSource, print_failures
from pipeline_assets.cli.render_reconcile import print_repairs
from pipeline_assets.cli.terminal import plainly, styled
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.hours import Hour, HourRange
from pipeline_assets.domain.repairs import Repair, RepairKind
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.operations.repair_plan import plan_repairs
from resources.landing.store import LandingStore
from resources.ledger.store import own_ledger

Lacking = Mapping[Slice, bool]
"""Slice with a difference -> whether published rows are missing."""


def proposed(
    settings: Settings, landing: LandingStore, open_slices: Lacking, tried: set[tuple[RepairKind, Slice]]
) -> list[Repair]:
    """Return the repairs that would close the open slices; writes nothing."""
    if not open_slices:
        return []
    with own_ledger(settings) as ledger:
        return plan_repairs(ledger, landing, settings, open_slices, datetime.now(UTC), tried)


def run_rounds(
    settings: Settings,
    landing: LandingStore,
    open_slices: Lacking,
    look: Callable[[], Lacking],
    console: Console,
    *,
    verbose: bool,
) -> list[Repair]:
    """Run repairs until everything agrees or none can be run; returns the repairs proposed at the end.

    `look` compares again. A round runs one kind of repair, and each kind runs once per day, so rounds are bounded.
    """
    tried: set[tuple[RepairKind, Slice]] = set()
    while True:
        repairs = proposed(settings, landing, open_slices, tried)
        able = [one for one in repairs if one.kind.is_run and one.obstacle is None]
        if not able:
            return repairs
        # The cheapest kind runs first and may make the others unnecessary.
        runnable = [one for one in able if one.kind is able[0].kind]
        print_repairs(console, runnable)
        for one in runnable:
            failures = _run(settings, landing, one, console, verbose=verbose)
            print_failures(console, failures, verbose)
            tried.update((one.kind, key) for key in one.slices)
        before, open_slices = len(open_slices), look()
        console.print(styled(f"looked again: {before - len(open_slices):,} of {before:,} days closed", "bold"))


def _run(settings: Settings, landing: LandingStore, one: Repair, console: Console, *, verbose: bool) -> list[str]:
    from pipeline_assets.cli.run import load_in_chunks  # noqa: PLC0415 - comparing starts without Dagster

    if one.kind is RepairKind.LOAD and one.source is not None:
        days = days_between(one.first, one.last)
        source = LoadSource(one.source.value)
        return load_in_chunks(settings, source, days, (one.project_id,), {}, console, verbose=verbose)
    hours = one.hours or HourRange(Hour(one.first, 0), Hour(one.last, 23))
    return _recover(settings, landing, one.project_id, hours, console, verbose=verbose)


def _recover(
    settings: Settings, landing: LandingStore, project: str, hours: HourRange, console: Console, *, verbose: bool
) -> list[str]:
    """Run `tidemark recover --load`; returns why hours were not recovered or days not loaded."""
    from pipeline_assets.cli.recover import load_recovered, recovered_statuses  # noqa: PLC0415 - comparing starts without an HTTP client
    from pipeline_assets.cli.render_recovery import progress_on  # noqa: PLC0415 - as above
    from pipeline_assets.operations.recover import Recovery, whole_days  # noqa: PLC0415 - as above
    from pipeline_assets.operations.recover_plan import RecoveryRequest, plan_recovery  # noqa: PLC0415 - as above
    from resources.export_api.client import ExportApi  # noqa: PLC0415 - as above

    with own_ledger(settings) as ledger:
        request = RecoveryRequest((project,), hours)
        plan = plan_recovery(ledger, landing, settings, request, datetime.now(UTC))
        with progress_on(console, plan) as progress:
            api = ExportApi(settings, plainly(console))
            outcomes = Recovery(api, landing, settings, ledger.recoveries, progress).run(plan)
    days, short = whole_days(outcomes)
    failures = list(dict.fromkeys(str(one.error) for one in outcomes if one.error is not None))
    failures += [f"{key}: not loaded, because hours of it are not recovered" for key in short]
    if days:
        failures += load_recovered(settings, days, console, verbose=verbose)
        bad = [status for status in recovered_statuses(settings, days) if not status.is_good]
        failures += [f"{one.day} {one.table} {one.verdict}: {'; '.join(one.reasons)}" for one in bad]
    return failures
