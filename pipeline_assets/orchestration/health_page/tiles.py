"""The first screen of the page: the main figures, each with its meaning."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pipeline_assets.domain.quarantine_reasons import in_words
from pipeline_assets.domain.window import SHARES, days_text
from pipeline_assets.inspection.health.figures import lines_by_reason, percentile
from pipeline_assets.inspection.health.report import RECENT_DAYS, HealthReport

_BEHIND_DAYS = 2
"""A newest day older than this is marked as bad."""


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
        Tile("waits for a person", f"{waiting:,}", "decisions or deliveries" if waiting else "nothing", waiting > 0),
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
