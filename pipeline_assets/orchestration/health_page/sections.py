"""The charts of the page, each with a sentence that explains it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import islice

from pipeline_assets.domain.lateness import RELATIVE_ERROR, LatenessSketch
from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.domain.quarantine_reasons import describe_quarantined, in_words
from pipeline_assets.domain.window import SHARES
from pipeline_assets.inspection.health.figures import (
    LOAD_KINDS,
    RefusedByReason,
    Span,
    Volume,
    days_of_revisions,
    lines_by_reason,
    percentile,
    summed,
    times_by_point,
)
from pipeline_assets.inspection.health.report import HealthReport
from pipeline_assets.orchestration.health_page.charts import Line, bars, lines, tail
from pipeline_assets.orchestration.health_page.tiles import days_text, seconds_text
from resources.ledger.summaries import CheckFigure

_MOST_TAIL_DAYS = 60
_MOST_LISTED = 10


def charts_html(report: HealthReport) -> str:
    """Return all charts in order."""
    drawn = (
        _rows(report),
        _duplicates(report),
        _late(report),
        _lag(report),
        _lateness(report),
        _backfills(report),
        _mismatches(report),
        _refused(report),
        _revisions(report),
    )
    return f'<div class="charts">{"".join(drawn)}</div>'


def _figure(title: str, said: str, chart: str, below: str = "") -> str:
    return f'<figure><figcaption><h3>{title}</h3><p class="small quiet">{said}</p></figcaption>{chart}{below}</figure>'


def _key(series: int) -> str:
    return f'<span class="key s{series}"></span>'


def _each(span: Span) -> str:
    return "day" if span.step == 1 else "week"


def _line(volumes: Iterable[tuple[date, Volume]], value: str) -> dict[date, float]:
    return {point: getattr(volume, value) for point, volume in volumes}


def _rows(report: HealthReport) -> str:
    values = _line(report.volumes.items(), "rows_a_day")
    each = "" if report.span.step == 1 else " Mean of each week."
    chart = lines("rows", "rows a day", report.span.points, [Line(values)], is_area=True)
    return _figure("Rows a day", f"refined/events, all projects.{each}", chart)


def _duplicates(report: HealthReport) -> str:
    values = _line(report.volumes.items(), "removed_per_1000")
    by_point: dict[date, float] = dict.fromkeys(report.volumes, 0.0)
    for one in report.duplicate_keys:
        if (point := report.span.point(one.day)) in by_point:
            by_point[point] = max(by_point[point], one.value)
    said = f"{_key(1)}raw rows that were removed as duplicates {_key(2)}keys that are still twice"
    chart = lines("duplicates", "duplicates per 1,000", report.span.points, [Line(values), Line(by_point, 1)])
    listed = _listed(report.duplicate_keys)
    return _figure("Duplicate keys per 1,000", said, chart, listed)


def _late(report: HealthReport) -> str:
    values = _line(report.volumes.items(), "late_per_1000")
    chart = lines("late", "late rows per 1,000", report.span.points, [Line(values)])
    return _figure("Late rows per 1,000", "Rows that were uploaded on a later day than their own.", chart)


def _lag(report: HealthReport) -> str:
    lags = {point: volume.lags for point, volume in report.volumes.items() if volume.lags}
    size, unit = (3600, "hours") if max((max(of) for of in lags.values()), default=0) < 4 * 86_400 else (86_400, "days")
    half = {point: percentile(of, 0.5) / size for point, of in lags.items()}
    most = {point: max(of) / size for point, of in lags.items()}
    said = (
        f"From the newest event of a day to its newest upload, in {unit}: "
        f"{_key(1)}half of the projects {_key(2)}the slowest"
    )
    return _figure(
        "Watermark lag", said, lines("lag", f"watermark lag in {unit}", report.span.points, [Line(half), Line(most, 1)])
    )


def _lateness(report: HealthReport) -> str:
    late = report.lateness[""]
    title = "Lateness"
    if not late.rows:
        return _figure(title, "No arrival is on record.", "")
    longest = max((late.window(SHARES[-1]) or 0) + 3, report.window_days + 2, 7)
    missed = [1 - late.caught_within(days) for days in range(min(longest, _MOST_TAIL_DAYS) + 1)]
    lost = 100 * (1 - late.caught_within(report.window_days))
    said = (
        f"Share of rows that a window of so many days misses, of regular deliveries since {report.arrivals_since}. "
        f"{_key(2)}the window that is set: {days_text(report.window_days)}, which misses {lost:.2g} %."
    )
    marks = [1 - share for share in SHARES]
    chart = tail("lateness", "share of rows missed by windows", missed, marks, report.window_days)
    note = (
        '<p class="small quiet">Windows are exact: rows are counted by the day of the event and of the arrival. Times are at '
        f"most {100 * RELATIVE_ERROR:g} % off.</p>"
    )
    warned = "".join(f'<p class="small warn">{as_html(told)}</p>' for told in report.too_narrow)
    return _figure(title, said, chart, warned + _windows(report) + note)


def _windows(report: HealthReport) -> str:
    """What windows would catch, and how late rows were, as two tables because a phone fits four columns."""

    def windows(project: str) -> list[str]:
        late = report.lateness[project]
        return [
            *(days_text(late.window(share)) for share in SHARES),
            f"{100 * late.caught_within(report.window_days):.4g} %",
        ]

    def times(project: str) -> list[str]:
        sketch = report.late_times.get(project, LatenessSketch())
        return [_time(sketch.percentile(share)) for share in (0.5, 0.99, 1.0)]

    projects = sorted((name for name in report.lateness if name), key=int)
    drawn = (
        (("window for", "99 %", "99.9 %", "caught now"), windows),
        (("time to arrive", "p50", "p99", "latest"), times),
    )

    def tables(names: Sequence[str]) -> str:
        return "".join(
            _table(heads, [(name or "all projects", *cells_of(name)) for name in names]) for heads, cells_of in drawn
        )

    by_project = f'<details><summary class="small">by project</summary>{tables(projects)}</details>'
    return f"{tables([''])}{by_project}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows."""

    def row(cells: Sequence[str], tag: str) -> str:
        rest = "".join(f'<{tag} class="n">{cell}</{tag}>' for cell in cells[1:])
        return f"<tr><{tag}>{as_html(cells[0])}</{tag}>{rest}</tr>"

    return f"<table>{row(heads, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else seconds_text(seconds)


def _backfills(report: HealthReport) -> str:
    span = _span_of([one.day for one in report.run_times], report.span)
    times = times_by_point(report.run_times, LOAD_KINDS["backfill"], span)
    size, unit = (1, "seconds") if max((most for _, most in times.values()), default=0) < 300 else (60, "minutes")
    # Draw p50 last, so that it is visible where both are equal.
    series = [
        Line({point: most / size for point, (_, most) in times.items()}, 1),
        Line({point: half / size for point, (half, _) in times.items()}),
    ]
    said = (
        f"Loads of recovery exports, in {unit} by {'month' if span.is_by_month else 'day'}: {_key(1)}p50 {_key(2)}p95"
    )
    # Recoveries are rare, so the days between them are not gaps.
    chart = lines("backfills", f"backfill runtime in {unit}", sorted(times) or span.points, series)
    return _figure("Backfill runtime", said, chart, _load_times(report))


def _load_times(report: HealthReport) -> str:
    rows = ""
    for kind in LOAD_KINDS.values():
        seconds = [one.seconds for one in report.run_times if one.kind == kind]
        told = "".join(f'<td class="n">{seconds_text(percentile(seconds, share))}</td>' for share in (0.5, 0.95))
        rows += f'<tr><td>{kind}</td><td class="n">{len(seconds):,}</td>{told}</tr>'
    head = '<tr><th>loads</th><th class="n">runs</th><th class="n">p50</th><th class="n">p95</th></tr>'
    note = '<p class="small quiet">Of runs that went through all their tables; the ledger has no times of those that died.</p>'
    return f"<table>{head}{rows}</table>{note}"


def _mismatches(report: HealthReport) -> str:
    values = summed(((one.day, one.value) for one in report.mismatches), report.span)
    said = "Rows that do not add up between layers, and sums that differ."
    if not report.mismatches:
        return _figure("Mismatch count", said, '<p class="fine">0: everything on record adds up.</p>')
    chart = bars("mismatches", "mismatches", report.span.points, Line(values, 1))
    return _figure("Mismatch count", said, chart, _listed(report.mismatches))


def _listed(figures: Sequence[CheckFigure]) -> str:
    newest = sorted(figures, key=lambda one: one.day, reverse=True)
    rows = "".join(
        f"<tr><td>{one.day}</td><td>{as_html(one.table)}</td><td>{as_html(one.project_id)}</td>"
        f'<td class="n">{one.value:,.4g}</td></tr>'
        for one in newest[:_MOST_LISTED]
    )
    more = f'<p class="small quiet">and {len(figures) - _MOST_LISTED:,} more</p>' if len(figures) > _MOST_LISTED else ""
    return f"<table>{rows}</table>{more}" if figures else ""


def _refused(report: HealthReport) -> str:
    values = summed(((one.day, float(one.lines)) for one in report.refused_lines), report.span)
    chart = bars("quarantine", "quarantined lines", report.span.points, Line(values))
    rows = "".join(
        f"<tr><td>{_refusal(one)}</td>"
        f'<td class="n">{one.objects:,}</td><td class="n">{one.lines:,}</td><td class="n">{one.last}</td></tr>'
        for one in report.refused_by_reason
    )
    head = '<tr><th>reason</th><th class="n">objects</th><th class="n">lines</th><th class="n">last</th></tr>'
    note = (
        '<p class="small quiet">Objects are refused whole, or hold lines of that reason; the lines themselves are in '
        "<code>raw.quarantine</code>.</p>"
    )
    said = f"Refused lines of each arrival {_each(report.span)}, all projects."
    told = "".join(
        f"<p>{as_html(describe_quarantined(reasons.total(), f'the deliveries of {day}', reasons))}</p>"
        for day, reasons in islice(lines_by_reason(report.refused_lines).items(), _MOST_LISTED)
    )
    below = f"{told}<table>{head}{rows}</table>{note}" if rows else ""
    below += f'<p class="small">{as_html(report.unreadable)}.</p>' if report.unreadable else ""
    return _figure("Quarantine", said, chart, below)


def _refusal(one: RefusedByReason) -> str:
    if one.reason is None:
        return "single lines, recorded without their reasons"
    told = f"{as_html(in_words(one.reason))} (<code>{as_html(one.reason)}</code>)"
    return f"{'whole objects' if one.is_whole else 'single lines'}, {told}"


def _revisions(report: HealthReport) -> str:
    days = days_of_revisions(report.revisions)
    span = _span_of([day for day, _ in days], report.span)
    chart = bars("changes", "revisions", span.points, Line(summed(days, span)))
    return _figure("Revisions", f"How often a number of a final day changed, by {_each(span)} of the change.", chart)


def _span_of(days: list[date], otherwise: Span) -> Span:
    """The days on which runs took place, which may be far from the event days they load; at least four weeks."""
    return Span(min(*days, max(days) - timedelta(days=27)), max(days)) if days else otherwise
