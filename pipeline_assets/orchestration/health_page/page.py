"""The health page: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.inspection.health.report import HealthReport
from pipeline_assets.orchestration.health_page.calendar import calendar_html
from pipeline_assets.orchestration.health_page.lists import questions_html, revisions_html
from pipeline_assets.orchestration.health_page.sections import charts_html
from pipeline_assets.orchestration.health_page.style import POLICY, STYLE
from pipeline_assets.orchestration.health_page.tiles import tiles_html
from resources.whole_file import write_whole

_HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'


def page_of(report: HealthReport) -> str:
    """Return the whole page, including style sheet and charts."""
    made = report.made_at.strftime("%Y-%m-%d %H:%M UTC")
    many = f"{len(report.projects)} projects" if len(report.projects) > 1 else f"project {as_html(report.projects[0])}"
    inside = f"{_HEAD}{POLICY}<title>Tidemark: health of {many}</title><style>{STYLE}</style>"
    head = f'<!doctype html>\n<html lang="en"><head>{inside}</head>'
    told = f"by the ledger, as of {made}{_days(report)}; {as_html(report.promise.sentence)}"
    title = f'<header><h1>Health of {many}</h1><p class="quiet small">{told}</p></header>'
    return f"{head}<body>{title}{_body(report)}</body></html>\n"


def _days(report: HealthReport) -> str:
    return f"; event days {report.span.first} to {report.span.last}" if report.calendar is not None else ""


def _body(report: HealthReport) -> str:
    if report.calendar is None:
        return (
            "<p>Nothing is on record yet. The first load fills this page:</p>"
            '<code class="command">tidemark load --source regular --from DAY --to DAY</code>'
        )
    return (
        f"<main>{tiles_html(report)}"
        f'<section id="waits"><h2>What waits for a person</h2>{questions_html(report)}</section>'
        f'<section id="days"><h2>Days</h2>{calendar_html(report.calendar, report.early)}</section>'
        f'<section id="figures"><h2>Figures</h2>{charts_html(report)}</section>'
        f'<section id="revisions"><h2>Revisions of published numbers</h2>{revisions_html(report)}</section></main>'
    )


def write_page(report: HealthReport, path: Path) -> Path:
    """Write the page atomically and create its folder; returns the absolute path; raises UsageError."""
    return write_whole(path, page_of(report), makes_folder=True)
