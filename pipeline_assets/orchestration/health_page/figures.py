"""The charts of the page."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, timedelta

from pipeline_assets.domain.window import SHARES
from pipeline_assets.inspection.health.figures import Span, percentile, summed, times_by_point
from pipeline_assets.inspection.health.report import HealthReport
from pipeline_assets.orchestration.health_page.charts import Line, bars, lines, tail

_MOST_TAIL_DAYS = 60


def drawn(report: HealthReport) -> dict[str, str]:
    """Chart -> its SVG, empty where there is nothing to draw; and the units of lag and backfill runtime."""
    days, volumes = report.span.newest().days, report.volumes
    rows, removed, late = (
        Line({day: getattr(of, name) for day, of in volumes.items()})
        for name in ("rows_a_day", "removed_per_1000", "late_per_1000")
    )
    twice: dict[date, float] = dict.fromkeys(volumes, 0.0)
    for one in report.duplicate_keys:
        if one.day in twice:
            twice[one.day] = max(twice[one.day], one.value)
    lags = {day: of.lags for day, of in volumes.items() if of.lags}
    size, unit = (3600, "hours") if max((max(of) for of in lags.values()), default=0) < 4 * 86_400 else (86_400, "days")
    half = Line({day: percentile(of, 0.5) / size for day, of in lags.items()})
    most = Line({day: max(of) / size for day, of in lags.items()}, 1)
    mismatches = Line(summed((one.day, one.value) for one in report.mismatches), 1)
    refused = Line(summed((one.day, one.lines) for one in report.refused_lines))
    changed = summed((date.fromisoformat(one.published_at[:10]), 1) for one in report.revisions if one.published_at)
    changes = _span_of(changed, report.span).newest().days
    return {
        "rows": lines("rows", "rows a day", days, [rows], is_area=True),
        "duplicates": lines("duplicates", "duplicates per 1,000", days, [removed, Line(twice, 1)]),
        "late": lines("late", "late rows per 1,000", days, [late]),
        "lag_unit": unit,
        "lag": lines("lag", f"watermark lag in {unit}", days, [half, most]),
        "lateness": _lateness(report),
        **_backfills(report),
        "mismatches": bars("mismatches", "mismatches", days, mismatches) if report.mismatches else "",
        "quarantine": bars("quarantine", "quarantined lines", days, refused),
        "revisions": bars("changes", "revisions", changes, Line(changed)),
    }


def _lateness(report: HealthReport) -> str:
    late = report.lateness[""]
    if not late.rows:
        return ""
    longest = max((late.window(SHARES[-1]) or 0) + 3, report.window_days + 2, 7)
    missed = [1 - late.caught_within(days) for days in range(min(longest, _MOST_TAIL_DAYS) + 1)]
    marks = [1 - share for share in SHARES]
    return tail("lateness", "share of rows missed by windows", missed, marks, report.window_days)


def _backfills(report: HealthReport) -> dict[str, str]:
    span = _span_of([one.ended_at.date() for one in report.run_times], report.span)
    times = times_by_point(report.run_times, "backfill", span)
    size, unit = (1, "seconds") if max((most for _, most in times.values()), default=0) < 300 else (60, "minutes")
    half, most = (Line({point: pair[at] / size for point, pair in times.items()}, at) for at in (0, 1))
    # Recoveries are rare, so the days between them are not gaps. p50 is last, so that it is visible where both are equal.
    chart = lines("backfills", f"backfill runtime in {unit}", sorted(times) or span.newest().days, [most, half])
    return {"backfills": chart, "backfill_unit": unit, "backfill_step": "month" if span.is_by_month else "day"}


def _span_of(days: Collection[date], otherwise: Span) -> Span:
    """The days on which runs took place, which may be far from the event days they load; at least four weeks."""
    return Span(min(*days, max(days) - timedelta(days=27)), max(days)) if days else otherwise
