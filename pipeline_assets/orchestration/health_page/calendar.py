"""The calendar of the page: days x tables, recent months by day and earlier ones by week, with reasons on a click."""

from __future__ import annotations

import re
from calendar import month_name, monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.domain.slices import Source, Verdict
from pipeline_assets.inspection.health.answers import AnswerKind, commands, is_early, kind_of, source_of
from pipeline_assets.inspection.health.calendar import OF_DIMENSIONS, TABLES, Calendar, DayState, worst
from resources.ledger.summaries import Fault

DETAILED_DAYS = 92
"""At least this many of the newest days are shown one by one."""
_OPTION = re.compile(r"(?<= )(--[a-z-]+)")
"""Options are wrapped in spans, because a browser breaks lines at hyphens."""
_MOST_REASONS, _MOST_PROJECTS, _LONGEST_REASON, _LONGEST_OF_WEEK = 5, 12, 400, 160
_CLASSES = {
    Verdict.PUBLISHED: "good",
    Verdict.UNCHANGED: "good",
    Verdict.REFUSED: "bad",
    Verdict.WAITING: "wait",
    Verdict.HELD: "held",
}
_SIGNS = {Verdict.REFUSED: "!", Verdict.HELD: "‖", Verdict.WAITING: "…"}
"""Signs that distinguish verdicts without colours."""
_MISSING = "nothing was delivered of the day"
LEGEND = (
    '<p class="small"><span class="key good"></span>published <span class="key bad"></span>! refused '
    '<span class="key held"></span>‖ held <span class="key wait"></span>… waiting <span class="key part"></span>'
    'a project is not loaded, or another day stands for it <span class="key"></span>nothing on record</p>'
)


@dataclass
class _Windows:
    """Collects the popovers with reasons, which are written after the calendar."""

    parts: list[str] = field(default_factory=list)

    def open_for(self, label: str, css: str, sign: str, content: str) -> str:
        """Return a day's button, and add its popover."""
        name = f"d{len(self.parts)}"
        self.parts.append(f'<div popover id="{name}"><h4>{label}</h4>{content}</div>')
        return f'<button class="{css}" popovertarget="{name}" aria-label="{label}">{sign}</button>'


def calendar_html(calendar: Calendar, early: frozenset[tuple[date, str]]) -> str:
    """Return the HTML: newest months first, by day; then half years, by week. A week has the colour of its worst day."""
    windows = _Windows()
    by_day = (calendar.last - timedelta(days=DETAILED_DAYS - 1)).replace(day=1)
    months = [_month(calendar, month, windows, early) for month in _months(max(by_day, calendar.first), calendar.last)]
    html = f'{LEGEND}<div class="months">{"".join(reversed(months))}</div>'
    weeks = sorted({_monday(day) for _, day in calendar.states if day < by_day})
    if weeks:
        halves: dict[tuple[int, bool], list[date]] = {}
        for week in weeks:
            halves.setdefault((week.year, week.month > 6), []).append(week)
        blocks = [_half(calendar, half, of_half, by_day, windows, early) for half, of_half in sorted(halves.items())]
        html += f'<h3>Before, by week</h3><div class="months">{"".join(reversed(blocks))}</div>'
    return html + "".join(windows.parts)


def _months(first: date, last: date) -> Iterator[date]:
    month = first.replace(day=1)
    while month <= last:
        yield month
        month = (month + timedelta(days=31)).replace(day=1)


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())


def _month(calendar: Calendar, month: date, windows: _Windows, early: frozenset[tuple[date, str]]) -> str:
    days = [month + timedelta(days=shift) for shift in range(monthrange(month.year, month.month)[1])]
    heads = "".join(f"<em>{day.day if day.day % 7 == 1 else ''}</em>" for day in days)
    rows = "".join(
        f"<b>{_name(table)}</b>{''.join(_day(calendar, table, day, windows, early) for day in days)}"
        for table in _tables(calendar)
    )
    return _block(f"{month_name[month.month]} {month.year}", len(days), heads + rows)


def _block(title: str, columns: int, cells: str) -> str:
    return f'<section><h3>{title}</h3><div class="days" style="--columns:{columns}"><b></b>{cells}</div></section>'


def _day(calendar: Calendar, table: str, day: date, windows: _Windows, early: frozenset[tuple[date, str]]) -> str:
    if not calendar.first <= day <= calendar.last and (table, day) not in calendar.states:
        return '<i class="blank"></i>'
    state = calendar.state(table, day)
    if state is None:
        return "<i></i>"
    if state.is_whole:
        return f'<i class="good" title="{day}"></i>'
    css = "part" if state.verdict.is_good else _CLASSES[state.verdict]
    label = f"{day} {as_html(table)}: {_told(state)}"
    return windows.open_for(label, css, _SIGNS.get(state.verdict, ""), _reasons(state, early))


def _told(state: DayState) -> str:
    if state.is_missing:
        return _MISSING
    return "not loaded for every project" if state.verdict.is_good else state.verdict.value


def _reasons(state: DayState, early: frozenset[tuple[date, str]]) -> str:
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for fault in state.faults:
        by_reason.setdefault((fault.verdict, fault.reason, fault.hint), []).append(fault.project_id)
    listed = [
        f"<li><b>{_projects(projects)}</b> {as_html(verdict)}: {as_html(reason, _LONGEST_REASON)}"
        f'<br><span class="quiet">{as_html(hint, _LONGEST_REASON)}</span></li>'
        for (verdict, reason, hint), projects in list(by_reason.items())[:_MOST_REASONS]
    ]
    if len(by_reason) > _MOST_REASONS:
        status = f"tidemark status --from {state.day} --to {state.day}"
        listed.append(f"<li>and {len(by_reason) - _MOST_REASONS:,} more reasons: <code>{status}</code></li>")
    if state.is_missing:
        policy = "no snapshot was delivered; the latest before it stands for the day (<code>missing_snapshot</code>)"
        listed.append(f"<li>{policy}</li>")
    if state.absent:
        listed.append(f"<li>{state.absent} of {state.absent + state.projects} projects are not loaded</li>")
    told = "".join(command_html(command) for answer in _answers(state, early) for command in answer)
    return f"<ul>{''.join(listed)}</ul>{told}"


def command_html(command: str) -> str:
    """Return a command that one click selects completely."""
    words = _OPTION.sub(r"<span>\1</span>", as_html(command))
    return f'<code class="command">{words}</code>'


def _answers(state: DayState, early: frozenset[tuple[date, str]]) -> list[tuple[str, ...]]:
    """The commands for each kind of fault of the day, for all its projects together."""
    by_kind: dict[tuple[AnswerKind, Source], list[Fault]] = {}
    for fault in state.faults:
        if not is_early(fault, early):
            by_kind.setdefault((kind_of(fault), source_of(fault)), []).append(fault)
    answers = [
        commands(kind, source, [state.table], _of(faults), state.day, state.day)
        for (kind, source), faults in by_kind.items()
    ]
    if state.absent and not answers:
        answers.append(commands(AnswerKind.LOAD_AGAIN, Source.REGULAR, [state.table], [], state.day, state.day))
    return answers


def _of(faults: Sequence[Fault]) -> list[str]:
    return sorted({fault.project_id for fault in faults}, key=lambda name: (len(name), name))


def _projects(projects: Sequence[str]) -> str:
    more = f" and {len(projects) - _MOST_PROJECTS} more" if len(projects) > _MOST_PROJECTS else ""
    return as_html(", ".join(projects[:_MOST_PROJECTS]) + more)


def _half(
    calendar: Calendar,
    half: tuple[int, bool],
    weeks: Sequence[date],
    end: date,
    windows: _Windows,
    early: frozenset[tuple[date, str]],
) -> str:
    """One half year by week, always with 27 columns so that half years align."""
    year, is_second = half
    first = _monday(date(year, 7 if is_second else 1, 1))
    columns = [first + timedelta(weeks=number) for number in range(28)]
    columns = [week for week in columns if (week.year, week.month > 6) == half]
    heads = "".join(f"<em>{month_name[week.month][:3] if week.day <= 7 else ''}</em>" for week in columns)
    known = set(weeks)
    rows = "".join(
        f"<b>{_name(table)}</b>"
        + "".join(
            _week(calendar, table, week, end, windows, early) if week in known else '<i class="blank"></i>'
            for week in columns
        )
        for table in _tables(calendar)
    )
    return _block(f"{year}, {'July to December' if is_second else 'January to June'}", len(columns), heads + rows)


def _week(
    calendar: Calendar, table: str, week: date, end: date, windows: _Windows, early: frozenset[tuple[date, str]]
) -> str:
    states = [state for state in calendar.week(table, week) if state.day < end]
    verdict = worst(state.verdict for state in states)
    if verdict is None:
        return "<i></i>"
    bad = [state for state in states if not state.is_whole]
    if not bad:
        return f'<i class="good" title="week of {week}"></i>'
    css = "part" if verdict.is_good else _CLASSES[verdict]
    listed = "".join(_of_week(state, early) for state in bad)
    label = f"week of {week} {as_html(table)}: {len(bad)} of 7 days"
    return windows.open_for(label, css, _SIGNS.get(verdict, ""), f"<ul>{listed}</ul>")


def _of_week(state: DayState, early: frozenset[tuple[date, str]]) -> str:
    first = state.faults[0] if state.faults else None
    reason = f": {as_html(first.reason, _LONGEST_OF_WEEK)}" if first is not None else ""
    projects = f" <b>{_projects(_of(state.faults))}</b>" if first else ""
    absent = f"; {state.absent} projects are not loaded" if state.absent else ""
    told = "".join(command_html(answer[-1]) for answer in _answers(state, early))
    return f"<li>{state.day} {_told(state)}{projects}{reason}{absent}{told}</li>"


def _tables(calendar: Calendar) -> list[str]:
    """Tables in the order of the graph, then those that only the ledger knows."""
    known = {table for table, _ in calendar.states}
    dimensions = [table for table in OF_DIMENSIONS if table in known]
    return [*TABLES, *dimensions, *sorted(known - {*TABLES, *OF_DIMENSIONS})]


def _name(table: str) -> str:
    """The table's short name for a row head; `events` alone would be ambiguous."""
    name = table.rsplit("/", 1)[-1]
    return as_html(table if name == "events" else name)
