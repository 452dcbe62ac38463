"""The lists of the page: what waits for an operator, and which published numbers changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from pipeline_assets.domain.arrival_days import describe_strays
from pipeline_assets.domain.golden import GoldenFault
from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.inspection.health.answers import REASON, AnswerKind, Question
from pipeline_assets.inspection.health.report import HealthReport
from pipeline_assets.inspection.receivers import ReceiverTrouble
from pipeline_assets.orchestration.health_page.calendar import command_html
from resources.ledger.revisions import Revision

_OPEN, _MOST = 4, 120
"""Number of questions that are shown unfolded, and in total; the calendar has every day."""
_MOST_PROJECTS, _LONGEST_REASON, _MOST_REVISIONS = 12, 400, 15
_MOST_FAULTS = 20
_CLASSES = {AnswerKind.RELEASE: " held", AnswerKind.FOLLOW: " wait"}
_OF_AUDIT = ("raw_rows", "_duplicate", "superseded", "lag_seconds", "rows_with")
"""Parts of the names of audit figures, which are not measures of a table."""


def questions_html(report: HealthReport) -> str:
    """Return the questions for an operator, the newest unfolded, then the faults that resolve by themselves."""
    asked, following = report.for_a_person, report.following
    parts = []
    if asked:
        parts.append(
            f'<p class="quiet small">A click selects a command. {REASON} stands for the reason that you give; '
            "it stays on record.</p>"
        )
        parts.append(f'<div class="questions">{"".join(map(_question, asked[:_OPEN]))}</div>')
        parts.append(_folded(f"{len(asked) - _OPEN:,} more", asked[_OPEN:]))
    elif not report.troubles and not report.golden_faults:
        parts.append('<p class="fine">Nothing.</p>')
    if report.troubles:
        parts.append(f'<div class="questions">{"".join(map(_trouble, report.troubles))}</div>')
    if report.golden_faults:
        parts.append(_golden_faults(report.golden_faults))
    parts.append(_folded(f"{len(following):,} more follow by themselves", following))
    if report.strays:
        parts.append(f"<p>In landing: {as_html(describe_strays(report.strays))}.</p>")
    if report.early:
        many = len({day for day, _ in report.early})
        parts.append(f'<p class="quiet">{many} days wait for deliveries whose deadline lies ahead.</p>')
    return "".join(parts)


def _folded(title: str, listed: Sequence[Question]) -> str:
    if not listed:
        return ""
    shown = "".join(map(_question, listed[:_MOST]))
    if len(listed) > _MOST:
        left = listed[_MOST:]
        first, last = min(one.first for one in left), max(one.last for one in left)
        shown += (
            f"<div><p>and {len(left):,} more:</p>{command_html(f'tidemark status --from {first} --to {last}')}</div>"
        )
    return f'<details><summary>{title}</summary><div class="questions">{shown}</div></details>'


def _question(one: Question) -> str:
    days = str(one.first) if one.days == 1 else f"{one.first} to {one.last}"
    listed = ", ".join(one.projects[:_MOST_PROJECTS])
    more = f" and {len(one.projects) - _MOST_PROJECTS} more" if len(one.projects) > _MOST_PROJECTS else ""
    others = f' <span class="quiet">(and {one.more_reasons:,} other reasons)</span>' if one.more_reasons else ""
    return (
        f'<div class="question{_CLASSES.get(one.kind, "")}"><h4>{days} · {as_html(", ".join(one.tables))}</h4>'
        f'<p class="small quiet">{as_html(one.kind.value)} · project {as_html(listed)}{more}</p>'
        f"<p>{as_html(one.reason, _LONGEST_REASON)}{others}</p>"
        f'<p class="quiet small">{as_html(one.hint, _LONGEST_REASON)}</p>'
        f"{''.join(map(command_html, one.commands))}</div>"
    )


def _trouble(one: ReceiverTrouble) -> str:
    return (
        f'<div class="question"><h4>notices to {as_html(one.place, _LONGEST_REASON)}</h4>'
        f"<p>{as_html(one.reason, _LONGEST_REASON)}</p>"
        f'<p class="quiet small">{as_html(one.hint)}</p>{command_html(one.command) if one.command else ""}</div>'
    )


def _golden_faults(faults: Sequence[GoldenFault]) -> str:
    """Each fault separately, because an operator has to correct each."""
    shown = [
        f"<li>{as_html(one.origin, _LONGEST_REASON)}: {as_html(one.reason, _LONGEST_REASON)}."
        f' <span class="quiet small">{as_html(one.hint, _LONGEST_REASON)}</span></li>'
        for one in faults[:_MOST_FAULTS]
    ]
    more = f"<p>and {len(faults) - _MOST_FAULTS:,} more</p>" if len(faults) > _MOST_FAULTS else ""
    return (
        f'<div class="questions"><div class="question"><h4>golden totals: {len(faults):,} not compared</h4>'
        f"<ul>{''.join(shown)}</ul>{more}{command_html('tidemark reconcile')}</div></div>"
    )


def revisions_html(report: HealthReport) -> str:
    """Return the revisions of final days, newest first, with measures, cause and run."""
    revisions = report.revisions
    if not revisions:
        return '<p class="fine">No number of a final day has changed.</p>'
    causes = Counter(one.cause for one in revisions).most_common(3)
    told = "; ".join(f"{as_html(cause)} {count:,}" for cause, count in causes)
    listed = [one for one in revisions if one.measures or one.rows_before != one.rows_after]
    shown = list(islice((one for one in listed), _MOST_REVISIONS))
    rest = [one for one in listed[_MOST_REVISIONS:] if one.measures]
    more = ""
    if rest:
        more = f"<details><summary>{len(rest)} more</summary>{_table(rest)}</details>"
    return (
        f"<p>{len(revisions):,} times a number of a final day was changed: {told}.</p>{_table(shown)}{more}"
        f'<p class="quiet small">Every change of a table is listed by</p>{command_html("tidemark history refined/events")}'
    )


def _table(revisions: Sequence[Revision]) -> str:
    head = "<thead><tr><th>changed</th><th>day</th><th>table</th><th>numbers</th><th>why</th><th>run</th></tr></thead>"
    return f'<table class="cards">{head}<tbody>{"".join(map(_revision, revisions))}</tbody></table>'


def _revision(one: Revision) -> str:
    reason = (
        f'<br><span class="quiet">{as_html(one.accepted_reason, _LONGEST_REASON)}</span>' if one.accepted_reason else ""
    )
    return (
        f'<tr><td data-name="changed">{as_html(one.published_at[:16].replace("T", " "))}</td>'
        f'<td data-name="day">{one.day}<br><span class="quiet">{as_html(one.project_id)}</span></td>'
        f'<td data-name="table">{as_html(one.table)}</td><td data-name="numbers">{_numbers(one)}</td>'
        f'<td data-name="why">{as_html(one.cause, _LONGEST_REASON)}{reason}</td>'
        f'<td data-name="run"><code title="{as_html(one.run_id or "")}">{as_html((one.run_id or "–")[:8])}</code></td></tr>'
    )


def _numbers(one: Revision) -> str:
    measures = {name: pair for name, pair in one.measures.items() if not any(part in name for part in _OF_AUDIT)}
    told = {"rows": (float(one.rows_before), float(one.rows_after)), **measures}
    changed = {name: pair for name, pair in told.items() if pair[0] != pair[1]}
    if not changed:
        return '<span class="quiet">content, no total</span>'
    return "<br>".join(
        f"{as_html(name)} {_value(before)} → {_value(after)}" for name, (before, after) in changed.items()
    )


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:,.12g}"
