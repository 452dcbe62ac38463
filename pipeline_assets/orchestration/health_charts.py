"""Charts of the health page: SVG of matplotlib, inlined in the page and in its colours. It imports no Dagster."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipeline_assets.domain.lateness import SHARES
from pipeline_assets.inspection.health import HealthReport, Span, percentile, times_by_day
from pipeline_assets.inspection.pages import TEMPLATES

SERIES = ("#0a0b11", "#0a0b12", "#0a0b13")
_PAGE_COLOURS = {
    "#0a0b01": "var(--muted)",
    "#0a0b02": "var(--line)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)},
}
"""Placeholders, the first two of the style sheet -> the page's colours, which depend on the light or dark scheme."""
P = ParamSpec("P")
MOST_MARKED = 60
"""Up to this many points get markers, so that an isolated one is visible."""


@dataclass(frozen=True)
class Line:
    """One series over days; a missing day is nan."""

    values: Mapping[date, float]
    series: int = 0


def _chart(draw: Callable[Concatenate[Axes, P], None]) -> Callable[Concatenate[str, str, P], Markup]:
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


@_chart
def lines(axes: Axes, points: Sequence[date], series: Sequence[Line], *, is_area: bool = False) -> None:
    """Series over days."""
    for line in series:
        values = [line.values.get(point, math.nan) for point in points]
        marker = "o" if len(points) <= MOST_MARKED else ""
        axes.plot(points, values, color=SERIES[line.series], linewidth=1.6, marker=marker, markersize=3)  # type: ignore[arg-type]  # dates
        if is_area:
            axes.fill_between(points, values, 0, color=SERIES[line.series], alpha=0.15, linewidth=0)  # type: ignore[arg-type]  # dates
    axes.set_ylim(0, 1.08 * max((value for line in series for value in line.values.values() if value > 0), default=1))
    _date_axis(axes, points)


@_chart
def bars(axes: Axes, points: Sequence[date], line: Line) -> None:
    """Counts over days."""
    heights = [line.values.get(point, 0.0) for point in points]
    axes.bar(points, heights, width=0.8, color=SERIES[line.series], linewidth=0)  # type: ignore[arg-type]  # dates
    axes.set_ylim(bottom=0, top=None if any(heights) else 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    _date_axis(axes, points)


@_chart
def columns(axes: Axes, names: Sequence[str], series: Sequence[Sequence[float]]) -> None:
    """Grouped columns; each of `series` has one value per name."""
    width = 0.8 / len(series)
    for number, values in enumerate(series):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(names))]
        drawn = axes.bar(places, values, width=0.94 * width, color=SERIES[number], linewidth=0)
        axes.bar_label(drawn, labels=[short(value) for value in values], padding=2)
    axes.set_ylim(0, 1.15 * max((max(values, default=0) for values in series), default=0) or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xticks(range(len(names)), names)


@_chart
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


def _date_axis(axes: Axes, points: Sequence[date]) -> None:
    locator: Any = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]  # matplotlib has no types
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=True))  # type: ignore[no-untyped-call]  # as above
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if len(points) == 1:
        axes.set_xticks(points, [str(points[0])])  # type: ignore[arg-type]  # dates


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
    changed = _summed((date.fromisoformat(of.published_at[:10]), 1) for of in report.revisions if of.published_at)
    mismatches = _summed((of.day, of.value) for of in report.mismatches)
    refused = _summed((of.day, of.lines) for of in report.refused_lines)
    return {
        "rows": lines("rows", "rows a day", days, [rows], is_area=True),
        "duplicates": lines("duplicates", "duplicates per 1,000", days, [removed, Line(twice, 1)]),
        "late": lines("late", "late rows per 1,000", days, [late]),
        "lag_unit": unit,
        "lag": lines("lag", f"watermark lag in {unit}", days, [half, most]),
        "lateness": _lateness(report),
        **_backfills(report),
        "mismatches": bars("mismatches", "mismatches", days, Line(mismatches, 1)) if mismatches else "",
        "quarantine": bars("quarantine", "quarantined lines", days, Line(refused)),
        "revisions": bars("changes", "revisions", _span_of(changed, report.span), Line(changed)),
    }


def _summed(values: Iterable[tuple[date, float]]) -> dict[date, float]:
    total: dict[date, float] = {}
    for day, value in values:
        total[day] = total.get(day, 0) + value
    return total


def _lateness(report: HealthReport) -> str:
    late = report.lateness[""]
    if not late.rows:
        return ""
    longest = max((late.window(SHARES[-1]) or 0) + 3, report.window_days + 2, 7)
    missed = [1 - late.caught_within(days) for days in range(min(longest, _MOST_TAIL_DAYS) + 1)]
    marks = [1 - share for share in SHARES]
    return tail("lateness", "share of rows missed by windows", missed, marks, report.window_days)


def _backfills(report: HealthReport) -> dict[str, str]:
    times = times_by_day(report.run_times, "backfill")
    size, unit = (1, "seconds") if max((most for _, most in times.values()), default=0) < 300 else (60, "minutes")
    half, most = (Line({point: pair[at] / size for point, pair in times.items()}, at) for at in (0, 1))
    # Recoveries are rare, so the days between them are not gaps. p50 is last, to be visible where both are equal.
    days = sorted(times) or report.span.newest().days
    return {
        "backfills": lines("backfills", f"backfill runtime in {unit}", days, [most, half]),
        "backfill_unit": unit,
    }


def _span_of(days: Collection[date], otherwise: Span) -> list[date]:
    """Runs may be far from the event days they load; at least four weeks."""
    span = Span(min(*days, max(days) - timedelta(days=27)), max(days)) if days else otherwise
    return span.newest().days
