"""The health page: one self-contained HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pipeline_assets.domain.arrival_days import describe_strays
from pipeline_assets.domain.lateness import RELATIVE_ERROR, LatenessSketch
from pipeline_assets.domain.quarantine_reasons import describe_quarantined, in_words
from pipeline_assets.domain.window import SHARES
from pipeline_assets.inspection.health.figures import LOAD_KINDS, lines_by_reason, percentile
from pipeline_assets.inspection.health.report import HealthReport
from pipeline_assets.inspection.pages import render
from pipeline_assets.orchestration.health_page import calendar
from pipeline_assets.orchestration.health_page.figures import drawn
from pipeline_assets.orchestration.health_page.tiles import days_text, seconds_text, tiles
from resources.ledger.cuts import Revision
from resources.whole_file import write_whole

_MOST_DAYS, _MOST_REVISIONS = 10, 15
_OF_AUDIT = ("raw_rows", "_duplicate", "superseded", "lag_seconds", "rows_with")
"""Parts of the names of audit figures, which are not measures of a table."""


def page_of(report: HealthReport) -> str:
    """Return the whole page, including style sheet and charts."""
    is_empty = report.calendar is None
    return render(
        "health.html",
        report=report,
        tiles=[] if is_empty else tiles(report),
        drawn={} if is_empty else drawn(report),
        relative_error=RELATIVE_ERROR,
        **{helper.__name__: helper for helper in (*_HELPERS, *calendar.HELPERS)},
    )


def write_page(report: HealthReport, path: Path) -> Path:
    """Write the page atomically and create its folder; returns the absolute path; raises UsageError."""
    return write_whole(path, page_of(report), makes_folder=True)


def lateness_tables(report: HealthReport, projects: Sequence[str]) -> list[list[list[str]]]:
    """What windows would catch, and how late rows were; two tables because a phone fits four columns."""

    def windows(project: str) -> list[str]:
        late = report.lateness[project]
        caught = f"{100 * late.caught_within(report.window_days):.4g} %"
        return [*(days_text(late.window(share)) for share in SHARES), caught]

    def times(project: str) -> list[str]:
        sketch = report.late_times.get(project, LatenessSketch())
        return [seconds_text(sketch.percentile(share)) for share in (0.5, 0.99, 1.0)]

    named = sorted(projects, key=lambda name: int(name or 0))
    return [[[name or "all projects", *cells_of(name)] for name in named] for cells_of in (windows, times)]


def load_times(report: HealthReport) -> list[list[str]]:
    """Number of runs and percentiles of their times, by kind of load."""
    times = {kind: [one.seconds for one in report.run_times if one.kind == kind] for kind in LOAD_KINDS.values()}
    return [
        [kind, f"{len(of):,}", *(seconds_text(percentile(of, share)) for share in (0.5, 0.95))]
        for kind, of in times.items()
    ]


def quarantined_days(report: HealthReport) -> list[str]:
    """A sentence for each of the newest days with quarantined lines."""
    by_day = islice(lines_by_reason(report.refused_lines).items(), _MOST_DAYS)
    return [describe_quarantined(reasons.total(), f"the deliveries of {day}", reasons) for day, reasons in by_day]


def causes_of(report: HealthReport) -> list[tuple[str, int]]:
    """The most frequent causes of revisions."""
    return Counter(one.cause for one in report.revisions).most_common(3)


def revisions_of(report: HealthReport) -> tuple[list[Revision], list[Revision]]:
    """The newest revisions that changed a number, and the further ones."""
    listed = [one for one in report.revisions if one.measures or one.rows_before != one.rows_after]
    return listed[:_MOST_REVISIONS], [one for one in listed[_MOST_REVISIONS:] if one.measures]


def numbers_of(one: Revision) -> list[tuple[str, str, str]]:
    """(measure, before, after) of the measures that changed."""
    measures = {name: pair for name, pair in one.measures.items() if not any(part in name for part in _OF_AUDIT)}
    pairs = {"rows": (float(one.rows_before), float(one.rows_after)), **measures}
    told = {
        name: ["–" if of is None else f"{of:,.12g}" for of in pair]
        for name, pair in pairs.items()
        if pair[0] != pair[1]
    }
    return [(name, before, after) for name, (before, after) in told.items()]


_HELPERS = (
    lateness_tables, load_times, quarantined_days, causes_of, revisions_of, numbers_of, days_text, in_words, describe_strays,
)  # fmt: skip
"""The functions that the template calls."""
