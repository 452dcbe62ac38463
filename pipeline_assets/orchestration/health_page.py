"""The health page: one file that needs only a browser. The command line writes it without importing Dagster."""

from __future__ import annotations

import math
from calendar import monthrange
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from pipeline_assets.domain.days import describe_strays
from pipeline_assets.domain.deliveries import describe_quarantined, in_words
from pipeline_assets.domain.lateness import RELATIVE_ERROR, SHARES, days_text
from pipeline_assets.domain.machine import write_whole
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.health import (
    OF_DIMENSIONS,
    RECENT_DAYS,
    Calendar,
    DayState,
    HealthReport,
    lines_by_reason,
    percentile,
)
from pipeline_assets.inspection.pages import render
from pipeline_assets.inspection.questions import TABLES, AnswerKind, commands, ordered, questions
from pipeline_assets.orchestration.health_charts import drawn
from resources.ledger.history import Revision
from resources.ledger.summaries import LOAD_KINDS

_BEHIND_DAYS = 2


@dataclass(frozen=True)
class Tile:
    """One main figure."""

    name: str
    value: str
    note: str
    is_bad: bool = False


def tiles(report: HealthReport) -> list[Tile]:
    """Return the main figures, first those that need an operator."""
    red, waiting = report.calendar.red if report.calendar is not None else [], report.waiting
    duplicates = max((one.value for one in report.duplicate_keys), default=0.0)
    mismatches = sum(one.value for one in report.mismatches)
    backfills = [one.seconds for one in report.run_times if one.kind == "backfill"]
    recent, recently = report.recent, f"of the last {RECENT_DAYS} days"
    windows = [days_text(report.lateness[""].window(share)) for share in SHARES]
    since = report.span.last - timedelta(days=RECENT_DAYS - 1)
    refused = [one for one in report.refused_lines if one.day >= since]
    lines, objects = sum(one.lines for one in refused), sum(one.objects for one in refused if one.is_whole)
    reasons = sum(lines_by_reason(refused).values(), Counter[str]())
    mostly = "".join(f"; mostly {in_words(reason)}" for reason, _ in reasons.most_common(1))
    removed = f"keys; of raw rows {_number(recent.removed_per_1000)} were removed"
    wider = f"for 99.9 %: {windows[1]}; set: {days_text(report.window_days)}"
    of_red = f"{len(red):,} refused or held, counting each table" if red else "none refused, none held"
    return [
        Tile("red days", f"{len({one.day for one in red}):,}", of_red, bool(red)),
        Tile("waits for an operator", f"{waiting:,}", "decisions or deliveries" if waiting else "nothing", waiting > 0),
        _newest(report),
        Tile("rows a day", _number(recent.rows_a_day), f"refined, mean {recently}"),
        Tile("duplicates per 1,000", f"{duplicates:.3g}", removed, duplicates > 0),
        Tile("mismatches", f"{mismatches:,.0f}", "rows or sums that do not agree", mismatches > 0),
        _times("watermark lag", recent.lags, recently),
        _times("backfill runtime", backfills, f"{len(backfills):,} runs"),
        Tile("window for 99 %", windows[0], wider, bool(report.too_narrow)),
        Tile("late rows per 1,000", _number(recent.late_per_1000), f"uploaded after their day, {recently}"),
        Tile("quarantined", f"{lines:,}", f"lines, and {objects:,} whole objects, {recently}{mostly}"),
        Tile("revisions", f"{report.recent_revisions:,}", f"in {RECENT_DAYS} days; {len(report.revisions):,} ever"),
    ]


def _newest(report: HealthReport) -> Tile:
    days = {project: one.day for project, one in report.newest.items()}
    if not days:
        return Tile("newest day", "none", "no rows are published")
    newest = min(days.values())
    behind = [project for project, day in days.items() if day == newest]
    age = (report.made_at.date() - newest).days
    who = "every project"
    if len(behind) < len(days):
        who = f"least: {', '.join(behind[:2])}" + (f" and {len(behind) - 2} more" if len(behind) > 2 else "")
    return Tile("newest day", str(newest), f"{days_text(age)} ago, {who}", age > _BEHIND_DAYS)


def _times(name: str, seconds: Sequence[float], of: str) -> Tile:
    half, most = (seconds_text(percentile(seconds, share)) for share in (0.5, 0.95))
    return Tile(name, half, f"p50; p95 {most}, {of}")


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def seconds_text(seconds: float | None) -> str:
    """Return a duration in the best unit: `45 s`, `12 min`, `3.5 h`, `2.1 d`; a dash for none."""
    if seconds is None or math.isnan(seconds):
        return "–"
    for unit, size, least in (("d", 86_400, 4 * 86_400), ("h", 3_600, 3 * 3_600), ("min", 60, 180)):
        if seconds >= least:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


DETAILED_DAYS = 92


def months_of(calendar: Calendar) -> tuple[list[list[date]], list[list[date]]]:
    """The days of recent and of earlier months, newest first; of months before the first delivery only those with a red day."""
    recent = (calendar.last - timedelta(days=DETAILED_DAYS - 1)).replace(day=1)
    span = (calendar.first + timedelta(days=shift) for shift in range((calendar.last - calendar.first).days + 1))
    firsts = sorted({day.replace(day=1) for day in (*span, *(day for _, day in calendar.states))}, reverse=True)
    months = [[first.replace(day=day + 1) for day in range(monthrange(first.year, first.month)[1])] for first in firsts]
    return [days for days in months if days[0] >= recent], [days for days in months if days[0] < recent]


def tables_of(calendar: Calendar) -> list[tuple[str, str]]:
    """(table, name of its rows), in the order of the graph, then those that only the ledger knows."""
    known = {table for table, _ in calendar.states}
    tables = [*TABLES, *(one for one in OF_DIMENSIONS if one in known), *sorted(known - {*TABLES, *OF_DIMENSIONS})]
    return [(table, table if table.endswith("/events") else table.rpartition("/")[2]) for table in tables]


def window_of(state: DayState) -> str:
    """The id of the day's window with reasons; a name may contain characters that an id may not."""
    return f"d{state.day.toordinal()}-{state.table.encode('utf-8', 'backslashreplace').hex()}"


def commands_of(state: DayState, early: frozenset[tuple[date, str]]) -> Sequence[str]:
    """The commands for each kind of fault of the day, for all its projects together."""
    found = [command for one in questions(state.faults, early) for command in one.commands]
    if state.absent and not found:
        return commands(AnswerKind.LOAD_AGAIN, Source.REGULAR, [state.table], [], state.day, state.day)
    return found


_MOST_REVISIONS = 15
_OF_AUDIT = ("raw_rows", "_duplicate", "superseded", "lag_seconds", "rows_with")


def page_of(report: HealthReport) -> str:
    """Return the whole page, including style sheet and charts."""
    return render(
        "health.html",
        report=report,
        drawn=drawn(report) if report.calendar is not None else {},
        causes=Counter(one.cause for one in report.revisions).most_common(3),
        relative_error=RELATIVE_ERROR,
        load_kinds=LOAD_KINDS,
        **{helper.__name__: helper for helper in _HELPERS},
    )


def write_page(report: HealthReport, path: Path) -> Path:
    """Write the page atomically and create its folder; returns the absolute path; raises UsageError."""
    return write_whole(path, page_of(report), makes_folder=True)


def revisions_of(report: HealthReport) -> tuple[list[Revision], list[Revision]]:
    """The newest revisions that changed a number, and the further ones."""
    listed = [one for one in report.revisions if one.measures or one.rows_before != one.rows_after]
    return listed[:_MOST_REVISIONS], [one for one in listed[_MOST_REVISIONS:] if one.measures]


def numbers_of(one: Revision) -> list[tuple[str, list[str]]]:
    """(measure, [before, after]) of the measures that changed."""
    measures = {name: pair for name, pair in one.measures.items() if not any(part in name for part in _OF_AUDIT)}
    pairs = {"rows": (float(one.rows_before), float(one.rows_after)), **measures}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return [(name, ["–" if of is None else f"{of:,.12g}" for of in pair]) for name, pair in changed.items()]


_HELPERS = (
    ordered, commands_of, months_of, tables_of, window_of, revisions_of, numbers_of, lines_by_reason,
    percentile, tiles, describe_quarantined, describe_strays, in_words, days_text, seconds_text,
)  # fmt: skip
