"""The health page: one self-contained HTML file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pipeline_assets.domain.arrival_days import describe_strays
from pipeline_assets.domain.lateness import RELATIVE_ERROR, LatenessSketch
from pipeline_assets.domain.quarantine_reasons import describe_quarantined, in_words
from pipeline_assets.domain.window import SHARES, days_text
from pipeline_assets.inspection.health.answers import ordered
from pipeline_assets.inspection.health.figures import lines_by_reason, percentile
from pipeline_assets.inspection.health.report import HealthReport
from pipeline_assets.inspection.pages import render
from pipeline_assets.orchestration.health_page.calendar import commands_of, months_of, reasons_of, tables_of, window_of
from pipeline_assets.orchestration.health_page.figures import drawn
from pipeline_assets.orchestration.health_page.tiles import seconds_text, tiles
from resources.ledger.cuts import Revision
from resources.ledger.summaries import LOAD_KINDS
from resources.whole_file import write_whole

_MOST_REVISIONS = 15
_OF_AUDIT = ("raw_rows", "_duplicate", "superseded", "lag_seconds", "rows_with")
"""Parts of the names of audit figures, which are not measures of a table."""


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


def lateness_of(report: HealthReport, project: str) -> tuple[list[str], list[str]]:
    """What windows would catch, and how late rows were; two tables because a phone fits four columns."""
    late, times = report.lateness[project], report.late_times.get(project, LatenessSketch())
    windows = [days_text(late.window(share)) for share in SHARES]
    caught = f"{100 * late.caught_within(report.window_days):.4g} %"
    return [*windows, caught], [seconds_text(times.percentile(share)) for share in (0.5, 0.99, 1.0)]


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
    ordered, commands_of, months_of, reasons_of, tables_of, window_of, lateness_of, revisions_of, numbers_of, lines_by_reason,
    percentile, tiles, describe_quarantined, describe_strays, in_words, days_text, seconds_text,
)  # fmt: skip
"""The functions that the template calls."""
