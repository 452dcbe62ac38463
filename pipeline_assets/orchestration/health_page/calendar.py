"""The calendar of the page: days x tables, whose reasons and commands are one click away."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Sequence
from datetime import date, timedelta

from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.health.answers import TABLES, AnswerKind, commands, questions
from pipeline_assets.inspection.health.figures import OF_DIMENSIONS, Calendar, DayState

DETAILED_DAYS = 92
"""At least this many of the newest days are shown unfolded."""


def months_of(calendar: Calendar) -> tuple[list[list[date]], list[list[date]]]:
    """The days of recent and of earlier months, newest first; of months before the first delivery only those with a red day."""
    recent = (calendar.last - timedelta(days=DETAILED_DAYS - 1)).replace(day=1)
    span = (calendar.first + timedelta(days=shift) for shift in range((calendar.last - calendar.first).days + 1))
    firsts = sorted({day.replace(day=1) for day in (*span, *(day for _, day in calendar.states))}, reverse=True)
    months = [[first.replace(day=day + 1) for day in range(monthrange(first.year, first.month)[1])] for first in firsts]
    return [days for days in months if days[0] >= recent], [days for days in months if days[0] < recent]


def tables_of(calendar: Calendar) -> list[tuple[str, str]]:
    """(table, name of its rows), in the order of the graph, then those that only the ledger knows."""
    known = {table for table, _ in calendar.states}
    tables = [*TABLES, *(one for one in OF_DIMENSIONS if one in known), *sorted(known - {*TABLES, *OF_DIMENSIONS})]
    # `events` alone would be ambiguous.
    return [(table, table if table.endswith("/events") else table.rpartition("/")[2]) for table in tables]


def window_of(state: DayState) -> str:
    """The id of the day's window with reasons; a name may hold anything, an id may not."""
    return f"d{state.day.toordinal()}-{state.table.encode('utf-8', 'backslashreplace').hex()}"


def reasons_of(state: DayState) -> list[tuple[tuple[str, str, str], list[str]]]:
    """((verdict, reason, hint), projects) of the day."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for fault in state.faults:
        found.setdefault((fault.verdict, fault.reason, fault.hint), []).append(fault.project_id)
    return list(found.items())


def commands_of(state: DayState, early: frozenset[tuple[date, str]]) -> Sequence[str]:
    """The commands for each kind of fault of the day, for all its projects together."""
    found = [command for one in questions(state.faults, early) for command in one.commands]
    if state.absent and not found:
        return commands(AnswerKind.LOAD_AGAIN, Source.REGULAR, [state.table], [], state.day, state.day)
    return found
