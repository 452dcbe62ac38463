"""`tidemark reconcile`: compare published data with other systems, and propose repairs of the differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout, suppress
from datetime import UTC, date, datetime
from typing import Any

import typer
from dagster_aws.s3 import S3Resource

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, app
from pipeline_assets.cli.run import open_runtime
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import requested_range
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.golden import GoldenComparison, GoldenMeasure, plain, signed
from pipeline_assets.domain.repairs import Repair, RepairKind
from pipeline_assets.domain.requests import ReconcileCommand, Table
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.key_list import read_key_list
from pipeline_assets.inspection import key_comparison as comparison
from pipeline_assets.load import golden
from pipeline_assets.operations.recover_plan import plan_repairs
from pipeline_assets.transforms.digests import STATES
from resources.landing.store import LandingStore
from resources.ledger.store import own_ledger

_MOST_LINES, _MOST_DAYS = 40, 60


def reconcile(request: ReconcileCommand) -> int:
    """Compare, run repairs if requested, and print the differences with proposed repairs."""
    settings = load_settings()
    chosen = settings.require_projects(tuple(request.projects))
    today = str(datetime.now(UTC).date())
    days = requested_range(request.first or str(settings.calendar_start), request.last or today, settings)
    landing = LandingStore.from_settings(settings, S3Resource())
    look = _look(request, settings, chosen, days, landing)
    found, console, tried = look(), ui.PlainConsole(stderr=True, soft_wrap=True), set[tuple[RepairKind, Slice]]()
    while True:
        with own_ledger(settings) as ledger:
            now = datetime.now(UTC)
            repairs = plan_repairs(ledger, landing, settings, found.lacking, now, tried) if found.lacking else []
        able = [one for one in repairs if request.repair and one.is_runnable]
        if not able:
            break
        if not tried and not request.as_json:
            ui.show(ui.page(), *compared(found))
        # The cheapest kind may make the others unnecessary. Each runs once for a day, so rounds are bounded.
        chosen_repairs = [one for one in able if one.kind is able[0].kind]
        ui.show(console, *proposed(chosen_repairs))
        for one in chosen_repairs:
            _run(one)
            tried.update((one.kind, key) for key in one.slices)
        before, found = len(found.lacking), look()
        ui.show(console, ui.styled(f"looked again: {before - len(found.lacking):,} of {before:,} days closed", "bold"))
    body = keys_json(found) if isinstance(found, comparison.KeyComparison) else _golden_json(found)
    listed = [
        ui.members(one, "reason", "command", "obstacle", "kind", is_run="kind.is_run", days="slices") for one in repairs
    ]
    ui.answer(request, {**body, "repairs": listed}, [*compared(found), *proposed(repairs)])
    return EXIT_OK if found.is_good else EXIT_INCOMPLETE


def _look(
    request: ReconcileCommand, settings: Settings, chosen: tuple[str, ...], days: Sequence[date], landing: LandingStore
) -> Callable[[], golden.Reconciliation | comparison.KeyComparison]:
    """A function that compares, also again after repairs; raises UsageError for options that exclude each other."""
    keys, against = request.keys, request.against
    if keys is not None and against is not None:
        raise UsageError("--keys, --against", "name two things to compare with", "Give one of them")
    if keys is None and against is None:
        if request.table is not None:
            hint = "Golden totals name their tables themselves; give --keys FILE or --against TABLE"
            reason = "says whose keys are compared, and there is nothing beside"
            raise UsageError(f"--table {request.table}", reason, hint)

        def totals() -> golden.Reconciliation:
            with own_ledger(settings) as ledger:
                return golden.reconcile(ledger, landing, settings, chosen, days[0], days[-1])

        return totals
    if not (request.first and request.last):
        raise UsageError("reconcile", "names no range, and would read every event there is", "Give --from and --to")
    table = comparison.event_table(request.table or "refined/events")
    other = comparison.event_table(against) if against is not None else table
    of = comparison.KeyRange(chosen, days[0], days[-1])
    listed = None
    if keys is not None:
        try:
            with keys.open(encoding="utf-8", errors="replace") as lines:
                listed = read_key_list(str(keys), lines)
        except OSError as error:
            raise UsageError(str(keys), f"cannot be read: {error.strerror}", "Name a file") from None

    def each_key() -> comparison.KeyComparison:
        with ui.terminal() as console, open_runtime(settings, ui.plainly(console)) as runtime:
            if listed is not None:
                return comparison.compare_with_list(runtime, table, of, str(keys), listed, request.samples)
            return comparison.compare_tables(runtime, table, other, of, request.samples)

    return each_key


def _run(one: Repair) -> None:
    """Run a repair's command in this process with its output on standard error; its exit code is ignored."""
    command = typer.main.get_command(app)
    with (
        redirect_stdout(sys.stderr),
        suppress(typer.Exit),
        command.make_context("tidemark", [*one.arguments]) as context,
    ):
        command.invoke(context)


def compared(found: golden.Reconciliation | comparison.KeyComparison) -> ui.Parts:
    """Yield the differences."""
    yield from compared_keys(found) if isinstance(found, comparison.KeyComparison) else _compared_totals(found)


def _compared_totals(found: golden.Reconciliation) -> ui.Parts:
    by_measure: dict[GoldenMeasure, list[GoldenComparison]] = {}
    for one in found.comparisons:
        by_measure.setdefault(one.total.measure, []).append(one)
    rows = []
    for measure, listed in sorted(by_measure.items()):
        bad = sum(not one.is_good for one in listed)
        largest = max((one.relative for one in listed if one.relative is not None), default=None)
        counts = len(listed), len(listed) - bad, ui.styled(f"{bad:,}", "bold red" if bad else "")
        rows.append((measure, *counts, "" if largest is None else f"{largest:.4%}"))
    yield Table(("measure", "totals", "agree", "mismatches", "largest difference"), rows)
    for one in found.mismatches[:_MOST_LINES]:
        place = f" {one.total.key} {one.total.measure.table}: {one} [{one.total.origin}]"
        yield ui.line(ui.styled(one.agreement.value, "bold red"), place)
    yield ui.more(len(found.mismatches) - _MOST_LINES, "mismatches; --json has them all")
    yield from _faults(found.faults)
    span, days = f"{found.first} to {found.last}", len({one.total.key for one in found.comparisons})
    result = f"{len(found.mismatches):,} of them do not agree" if found.mismatches else "all agree"
    told = f"{len(found.comparisons):,} golden totals of {days:,} days and projects ({span}): {result}"
    yield told if found.comparisons else f"there is nothing to compare: no golden totals of {span}"


def compared_keys(found: comparison.KeyComparison) -> ui.Parts:
    """Yield a row per day that differs, samples of each kind, then the sum."""
    rows = []
    for project, day in _days(found):
        counts = [found.counts.get((project, day, state), 0) for state in STATES]
        if any(counts[1:]):
            rows.append((project, day or "no day", *counts))
    yield Table(("project", "day", *STATES), rows[:_MOST_DAYS])
    yield ui.more(len(rows) - _MOST_DAYS, "days; --json has them all")
    for state, names in found.samples.items():
        yield from (ui.line(ui.styled(state, "bold red"), f" {name}") for name in names)
        yield ui.more(found.total(state) - len(names), f"keys {state}")
    yield from _faults(found.faults)
    yield ui.more(found.faulty_lines - len(found.faults), "lines that name no key")
    if found.outside:
        yield f"{found.outside:,} lines are of other days or projects"
    if found.nameless:
        yield f"{found.nameless:,} rows of {found.here} have no such id, and were not compared"
    sums = ", ".join(f"{found.total(state):,} {state}" for state in STATES)
    yield f"keys of {found.here} (here) and {found.there} (there), {found.range.first} to {found.range.last}: {sums}"


def _days(found: comparison.KeyComparison) -> list[tuple[str, date | None]]:
    return sorted({(project, day) for project, day, _ in found.counts}, key=lambda day: (day[0], str(day[1] or "")))


def _faults(faults: Iterable[object]) -> ui.Parts:
    yield from (ui.line(ui.styled("not compared", "yellow"), f": {fault}") for fault in faults)


def proposed(repairs: Sequence[Repair]) -> ui.Parts:
    """Yield a paragraph per repair: kind, days, reason and command."""
    for one in repairs:
        who = " (for an operator)" if one.kind.is_for_a_person else ""
        kind = ui.styled(f"{one.kind.value}{who}", "cyan" if one.is_runnable else "yellow")
        days = f"{len(one.slices):,} day{'s' if len(one.slices) > 1 else ''} of {one.project_id}"
        yield ui.line(kind, f", {days}: {one.reason}")
        yield f"  {one.command}"
        if one.obstacle is not None:
            yield ui.line("  ", ui.styled("cannot be run", "bold red"), f": {one.obstacle}")


def _golden_json(found: golden.Reconciliation) -> dict[str, Any]:
    """Numbers are text, because JSON numbers cannot hold every decimal."""
    place = {"day": "total.key.event_date", "project": "total.key.project_id"}
    totals = [
        ui.members(one, "relative", "agreement", **place, source="total.source", origin="total.origin")
        | {"measure": str(one.total.measure), "golden": plain(one.total.value)}
        | {"published": None if one.published is None else plain(one.published)}
        | {"difference": None if one.difference is None else signed(one.difference)}
        for one in found.comparisons
    ]
    return ui.members(found, "is_good", "first", "last") | {"totals": totals, "faults": list(map(str, found.faults))}


def keys_json(found: comparison.KeyComparison) -> dict[str, Any]:
    """The comparison of keys for `--json`."""
    counts = {"rows_without_id": "nameless", "lines_outside": "outside"}
    days = [
        {"project": project, "day": day, **{state: found.counts.get((project, day, state), 0) for state in STATES}}
        for project, day in _days(found)
    ]
    return ui.members(found, "here", "there", "samples", "faulty_lines", "faults", is_equal="is_good", **counts) | {
        **ui.members(found.range, "first", "last"),
        "totals": {state: found.total(state) for state in STATES},
        "days": days,
    }
