"""The health page: one file that needs only a browser, with charts as SVG of matplotlib. Imports no Dagster."""

from __future__ import annotations

import io
import math
import re
from calendar import monthrange
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipeline_assets.domain.days import describe_strays
from pipeline_assets.domain.deliveries import describe_quarantined, in_words
from pipeline_assets.domain.lateness import RELATIVE_ERROR, SHARES, days_text, seconds_text
from pipeline_assets.domain.machine import write_whole
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection import health
from pipeline_assets.inspection.pages import TEMPLATES, render
from pipeline_assets.inspection.questions import TABLES, AnswerKind, commands, ordered, questions
from resources.ledger.history import Revision
from resources.ledger.summaries import LOAD_KINDS

SERIES = ("#0a0b11", "#0a0b12", "#0a0b13")
_PAGE_COLOURS = {"#0a0b01": "var(--muted)", "#0a0b02": "var(--line)"}
_PAGE_COLOURS |= {colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)}
"""Placeholders, the first two of the style sheet -> the page's colours, which depend on the light or dark scheme."""
P = ParamSpec("P")
MOST_MARKED = 60
"""Up to this many points get markers, so that an isolated one is visible."""


def chart(draw: Callable[Concatenate[Axes, P], None]) -> Callable[Concatenate[str, str, P], Markup]:
    """Make a drawing function return an SVG, from a name unique on the page and a text for screen readers."""

    @wraps(draw)
    def drawn(name: str, label: str, /, *args: P.args, **options: P.kwargs) -> Markup:
        written = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": name}, TEMPLATES / "charts.mplstyle"):
            figure = Figure()
            draw(figure.subplots(), *args, **options)
            figure.savefig(written, format="svg", transparent=True)
        return _inlined(written.getvalue(), name, label)

    return drawn


@chart
def lines(axes: Axes, points: Sequence[Any], series: Sequence[Mapping[date, float]], *, is_area: bool = False) -> None:
    """Series over days, a missing day is a gap; the first is drawn last, to be visible where two are equal."""
    marker = "o" if len(points) <= MOST_MARKED else ""
    for colour, of in reversed([*zip(SERIES, series, strict=False)]):
        values = [of.get(point, math.nan) for point in points]
        axes.plot(points, values, color=colour, linewidth=1.6, marker=marker, markersize=3)
        if is_area:
            axes.fill_between(points, values, 0, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylim(0, 1.08 * max((value for of in series for value in of.values() if value > 0), default=1))
    _date_axis(axes, points)


@chart
def bars(axes: Axes, points: Sequence[Any], counts: Mapping[date, float], colour: str = SERIES[0]) -> None:
    """Counts over days."""
    heights = [counts.get(point, 0.0) for point in points]
    axes.bar(points, heights, width=0.8, color=colour, linewidth=0)
    axes.set_ylim(bottom=0, top=None if any(heights) else 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    _date_axis(axes, points)


@chart
def tail(axes: Axes, missed: Sequence[float], marks: Sequence[float], window: int) -> None:
    """The share of rows that a window of n days misses, for n from 0 on a logarithmic scale; `marks`: shares drawn as lines."""
    axes.step(range(len(missed)), [share or math.nan for share in missed], where="post", color=SERIES[0], linewidth=1.8)
    lowest = min([share for share in missed if share > 0] + list(marks))
    axes.set_yscale("log")
    axes.set_ylim(lowest / 3, 1)
    axes.set_xlim(0, max(len(missed) - 1, window + 1))
    for share in marks:
        axes.axhline(share, color=SERIES[2], linewidth=1, linestyle=(0, (4, 3)))
    axes.axvline(window, color=SERIES[1], linewidth=1.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("days from the event to its arrival")


def _date_axis(axes: Axes, points: Sequence[Any]) -> None:
    locator: Any = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]  # matplotlib has no types
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=True))  # type: ignore[no-untyped-call]  # as above
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if len(points) == 1:
        axes.set_xticks(points, [str(points[0])])


def short(value: float) -> str:
    """Return a number in a few characters: 950, 1.2k, 35M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _inlined(svg: str, name: str, label: str) -> Markup:
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None
    body = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index(">", svg.index("<svg")) + 1 :], flags=re.DOTALL
    )
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'xlink:href="#', f'href="#{name}-', body).replace("url(#", f"url(#{name}-")
    for colour, own in _PAGE_COLOURS.items():
        body = body.replace(colour, own)
    body = re.sub(r"\s*\n\s*", " ", re.sub(r"font-family: [^;\"]+;?", "", body))
    return Markup(f'<svg viewBox="{view[1]}" role="img" aria-label="{label}">{body.strip()}')  # noqa: S704 - it is drawn here


def drawn(report: health.HealthReport) -> dict[str, str]:
    """Chart -> its SVG, empty where there is nothing to draw; and the units of lag and backfill runtime."""
    days, volumes = report.span.newest().days, report.volumes
    rows, removed, late = (
        {day: getattr(of, name) for day, of in volumes.items()}
        for name in ("rows_a_day", "removed_per_1000", "late_per_1000")
    )
    twice: dict[date, float] = dict.fromkeys(volumes, 0.0)
    for one in report.duplicate_keys:
        if one.day in twice:
            twice[one.day] = max(twice[one.day], one.value)
    lags = {day: of.lags for day, of in volumes.items() if of.lags}
    size, lag_unit = (3600, "hours") if max(map(max, lags.values()), default=0) < 4 * 86_400 else (86_400, "days")
    lag = [
        {day: health.percentile(of, 0.5) / size for day, of in lags.items()},
        {day: max(of) / size for day, of in lags.items()},
    ]
    times = health.times_by_day(report.run_times, "backfill")
    step, unit = (1, "seconds") if max((most for _, most in times.values()), default=0) < 300 else (60, "minutes")
    backfills = [{day: pair[at] / step for day, pair in times.items()} for at in (0, 1)]
    changed = _summed((date.fromisoformat(of.published_at[:10]), 1) for of in report.revisions if of.published_at)
    # Runs may be far from the event days they load; at least four weeks.
    span = health.Span(min(*changed, max(changed) - timedelta(days=27)), max(changed)) if changed else report.span
    mismatches = _summed((of.day, of.value) for of in report.mismatches)
    refused = _summed((of.day, of.lines) for of in report.refused_lines)
    return {
        "rows": lines("rows", "rows a day", days, [rows], is_area=True),
        "duplicates": lines("duplicates", "duplicates per 1,000", days, [removed, twice]),
        "late": lines("late", "late rows per 1,000", days, [late]),
        "lag_unit": lag_unit,
        "lag": lines("lag", f"watermark lag in {lag_unit}", days, lag),
        "lateness": _lateness(report),
        "backfill_unit": unit,
        # Recoveries are rare, so the days between them are not gaps.
        "backfills": lines("backfills", f"backfill runtime in {unit}", [*times] or days, backfills),
        "mismatches": bars("mismatches", "mismatches", days, mismatches, SERIES[1]) if mismatches else "",
        "quarantine": bars("quarantine", "quarantined lines", days, refused),
        "revisions": bars("changes", "revisions", span.newest().days, changed),
    }


def _summed(values: Iterable[tuple[date, float]]) -> dict[date, float]:
    total: dict[date, float] = {}
    for day, value in values:
        total[day] = total.get(day, 0) + value
    return total


_MOST_TAIL_DAYS = 60


def _lateness(report: health.HealthReport) -> str:
    late = report.lateness[""]
    if not late.rows:
        return ""
    longest = max((late.window(SHARES[-1]) or 0) + 3, report.window_days + 2, 7)
    missed = [1 - late.caught_within(days) for days in range(min(longest, _MOST_TAIL_DAYS) + 1)]
    marks = [1 - share for share in SHARES]
    return tail("lateness", "share of rows missed by windows", missed, marks, report.window_days)


_BEHIND_DAYS = 2


class Tile(NamedTuple):
    """One main figure."""

    name: str
    value: str
    note: str
    is_bad: bool = False


def tiles(report: health.HealthReport) -> list[Tile]:
    """Return the main figures, first those that need an operator."""
    red, waiting = report.calendar.red if report.calendar is not None else [], report.waiting
    duplicates = max((one.value for one in report.duplicate_keys), default=0.0)
    mismatches = sum(one.value for one in report.mismatches)
    backfills = [one.seconds for one in report.run_times if one.kind == "backfill"]
    recent, recently = report.recent, f"of the last {health.RECENT_DAYS} days"
    windows = [days_text(report.lateness[""].window(share)) for share in SHARES]
    since = report.span.last - timedelta(days=health.RECENT_DAYS - 1)
    refused = [one for one in report.refused_lines if one.day >= since]
    lines, objects = sum(one.lines for one in refused), sum(one.objects for one in refused if one.is_whole)
    reasons = sum(health.lines_by_reason(refused).values(), Counter[str]())
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
        Tile(
            "revisions", f"{report.recent_revisions:,}", f"in {health.RECENT_DAYS} days; {len(report.revisions):,} ever"
        ),
    ]


def _newest(report: health.HealthReport) -> Tile:
    days = {project: one.day for project, one in report.newest.items()}
    if not days:
        return Tile("newest day", "none", "no rows are published")
    newest = min(days.values())
    behind = [project for project, day in days.items() if day == newest]
    age = (report.made_at.date() - newest).days
    who = "every project" if len(behind) == len(days) else f"least: {few(behind, 2)}"
    return Tile("newest day", str(newest), f"{days_text(age)} ago, {who}", age > _BEHIND_DAYS)


def _times(name: str, seconds: Sequence[float], of: str) -> Tile:
    half, most = (seconds_text(health.percentile(seconds, share)) for share in (0.5, 0.95))
    return Tile(name, half, f"p50; p95 {most}, {of}")


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


DETAILED_DAYS = 92


def months_of(calendar: health.Calendar) -> tuple[list[list[date]], list[list[date]]]:
    """The days of recent and of earlier months, newest first; of months before the first delivery only those with a red day."""
    recent = (calendar.last - timedelta(days=DETAILED_DAYS - 1)).replace(day=1)
    span = (calendar.first + timedelta(days=shift) for shift in range((calendar.last - calendar.first).days + 1))
    firsts = sorted({day.replace(day=1) for day in (*span, *(day for _, day in calendar.states))}, reverse=True)
    months = [[first.replace(day=day + 1) for day in range(monthrange(first.year, first.month)[1])] for first in firsts]
    return [days for days in months if days[0] >= recent], [days for days in months if days[0] < recent]


def tables_of(calendar: health.Calendar) -> list[tuple[str, str]]:
    """(table, name of its rows), in the order of the graph, then those that only the ledger knows."""
    known = {table for table, _ in calendar.states}
    listed = [*TABLES, *(one for one in health.OF_DIMENSIONS if one in known)]
    tables = [*listed, *sorted(known - {*TABLES, *health.OF_DIMENSIONS})]
    return [(table, table if table.endswith("/events") else table.rpartition("/")[2]) for table in tables]


def window_of(state: health.DayState) -> str:
    """The id of the day's window with reasons; a name may contain characters that an id may not."""
    return f"d{state.day.toordinal()}-{state.table.encode('utf-8', 'backslashreplace').hex()}"


def commands_of(state: health.DayState, early: frozenset[tuple[date, str]]) -> Sequence[str]:
    """The commands for each kind of fault of the day, for all its projects together."""
    found = [command for one in questions(state.faults, early) for command in one.commands]
    if state.absent and not found:
        return commands(AnswerKind.LOAD_AGAIN, Source.REGULAR, [state.table], [], state.day, state.day)
    return found


_MOST_REVISIONS = 15
_OF_AUDIT = ("raw_rows", "_duplicate", "superseded", "lag_seconds", "rows_with")


def page_of(report: health.HealthReport) -> str:
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


def write_page(report: health.HealthReport, path: Path) -> Path:
    """Write the page atomically and create its folder; returns the absolute path; raises UsageError."""
    return write_whole(path, page_of(report), makes_folder=True)


def revisions_of(report: health.HealthReport) -> tuple[list[Revision], list[Revision]]:
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
    ordered, commands_of, months_of, tables_of, window_of, revisions_of, numbers_of, health.lines_by_reason,
    health.percentile, tiles, describe_quarantined, describe_strays, in_words, days_text, seconds_text,
)  # fmt: skip
