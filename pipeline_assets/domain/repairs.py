"""How to close a difference of published days: the rule that proposes commands from facts about a day."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from enum import StrEnum

from pipeline_assets.domain.days import Hour, hour_ranges
from pipeline_assets.domain.slices import Slice, Source

_FIRST, _LAST, _PROJECT, _REASON = "{first}", "{last}", "{project}", "--reason"
"""Placeholders of a command, and the option whose value the operator writes."""
_SPAN = ("--from", _FIRST, "--to", _LAST, "--project", _PROJECT)


class RepairKind(StrEnum):
    """Kinds of proposals, in the order in which they are tried."""

    LOAD = "load"
    RECOVER = "recover hours"
    RECOVER_DAYS = "recover days"
    """Too little is published, but no hour is known to be missing: ask the vendor for whole days."""
    WAIT = "wait"
    REBUILD = "rebuild"
    DECIDE = "decide"

    @property
    def is_run(self) -> bool:
        """Whether `--repair` runs it; steps that may undo a decision or rewrite history are only proposed."""
        return self in (RepairKind.LOAD, RepairKind.RECOVER, RepairKind.RECOVER_DAYS)

    @property
    def is_for_a_person(self) -> bool:
        """Whether an operator has to act."""
        return self in (RepairKind.REBUILD, RepairKind.DECIDE)


Tried = Set[tuple[RepairKind, Slice]]
"""Repairs that ran and did not close the difference."""


@dataclass(frozen=True)
class DayFacts:
    """The facts about one project's day that does not agree."""

    key: Slice
    is_lacking: bool
    unread: Mapping[Source, Set[date]] = field(default_factory=dict)
    """Source -> nearby arrival days with objects that no load has read."""
    stale: str | None = None
    """Why the next load would build the day again."""
    lacking_hours: tuple[Hour, ...] = ()
    """Hours of this arrival day that are lost, refused or never arrived, and that the vendor has exported."""
    hours_to_ask: tuple[Hour, ...] = ()
    """Hours of this arrival day that the vendor was not asked for before."""
    open_until: datetime | None = None
    """The day's deadline, if it is still ahead."""
    holds: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Both: table -> reason."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Key of an object near the day -> why an operator excluded it."""
    outdated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repair:
    """One proposal: a command for days of one project."""

    kind: RepairKind
    slices: tuple[Slice, ...]
    reason: str
    words: tuple[str, ...]
    first: date
    last: date
    """Range of arrival days where objects are read, else of event days."""
    obstacle: str | None = None

    @property
    def project_id(self) -> str:
        """The project of all its days."""
        return self.slices[0].project_id

    @property
    def is_runnable(self) -> bool:
        """Whether `--repair` runs it on this machine."""
        return self.kind.is_run and self.obstacle is None

    @property
    def arguments(self) -> list[str]:
        """The command's words after `tidemark`."""
        values = {_FIRST: str(self.first), _LAST: str(self.last), _PROJECT: self.project_id}
        return [values.get(word, word) for word in self.words]

    @property
    def command(self) -> str:
        """The command that the operator types."""
        return shlex.join(["tidemark", *self.arguments]) + (' "REASON"' if self.words[-1] == _REASON else "")


def repairs_of(facts: DayFacts, tried: Tried = frozenset()) -> list[Repair]:
    """The proposals for one day: runs of the first applicable kind not `tried`, then all that need an operator."""
    found = [*_runs(facts, tried), *_decisions(facts)]
    if found:
        return found
    reason = "more is published than there should be; keys of the outside system show what"
    if facts.is_lacking:
        loaded = "all that landing and the vendor have of the day is loaded"
        reason = f"{loaded}; keys of the outside system show what is left"
    return [_of(facts, RepairKind.DECIDE, reason, "reconcile", "--keys", "FILE", *_SPAN)]


def _of(facts: DayFacts, kind: RepairKind, reason: str, *words: str, arrival: date | None = None) -> Repair:
    day = arrival or facts.key.event_date
    return Repair(kind, (facts.key,), reason, words, day, day)


def _runs(facts: DayFacts, tried: Tried) -> Iterator[Repair]:
    if facts.holds:
        return
    if (RepairKind.LOAD, facts.key) not in tried:
        unread = [(source, day) for source, days in sorted(facts.unread.items()) for day in sorted(days)]
        reason = "landing holds objects that no load has read"
        for source, day in unread:
            yield _of(facts, RepairKind.LOAD, reason, "load", "--source", source.value, *_SPAN, arrival=day)
        if facts.stale is not None and not unread:
            words = ("load", "--source", Source.REGULAR.value, *_SPAN)
            yield _of(facts, RepairKind.LOAD, f"is not built yet: {facts.stale}", *words)
        # Deliveries of other arrival days may hold late events of this day; loading them may not close the gap.
        if facts.stale is not None or any(day == facts.key.event_date for _, day in unread):
            return
    # Refused data has arrived already, and waits for an operator.
    can_ask = facts.is_lacking and not facts.refused
    if facts.open_until is not None:
        if facts.lacking_hours or can_ask:
            reason = f"the day is open until {facts.open_until:%Y-%m-%d %H:%M} UTC; what lacks may still be delivered"
            yield _of(facts, RepairKind.WAIT, reason, "reconcile", *_SPAN)
    elif facts.lacking_hours and (RepairKind.RECOVER, facts.key) not in tried:
        for one in hour_ranges(facts.lacking_hours, 24):
            span = ("--from", str(one.first), "--to", str(one.last), "--project", _PROJECT)
            yield _of(facts, RepairKind.RECOVER, "hours are lost, refused or never came", "recover", *span, "--load")
    elif can_ask and facts.hours_to_ask and (RepairKind.RECOVER_DAYS, facts.key) not in tried:
        reason = "no hour is known to lack, but less is published than there should be"
        yield _of(facts, RepairKind.RECOVER_DAYS, reason, "recover", *_SPAN, "--load")


def _decisions(facts: DayFacts) -> Iterator[Repair]:
    decide = RepairKind.DECIDE
    for table, reason in facts.holds.items():
        yield _of(facts, decide, f"held: {reason}", "release", *_SPAN, "--table", table, _REASON)
    for table, reason in facts.refused.items():
        yield _of(facts, decide, f"refused: {reason}", "diff", table, _FIRST, "--project", _PROJECT)
    for key, reason in facts.excluded.items():
        yield _of(facts, decide, f"excluded: {reason}", "include", key, _REASON)
    for table in facts.outdated:
        words = ("rebuild", "start", "--table", table, *_SPAN, _REASON)
        yield _of(facts, RepairKind.REBUILD, "another version of the code built it", *words)


def together(repairs: Iterable[Repair], most_days: int) -> list[Repair]:
    """Merge repairs of consecutive days into ones of at most `most_days`, sorted in the order of trying."""

    def place(one: Repair) -> tuple[object, ...]:
        return list(RepairKind).index(one.kind), one.project_id, one.words, one.reason

    joined: list[Repair] = []
    for one in sorted(repairs, key=lambda one: (*place(one), one.first)):
        last = joined[-1] if joined and place(joined[-1]) == place(one) else None
        is_next = last is not None and one.first - last.last == timedelta(days=1)
        if last is not None and (one.first <= last.last or (is_next and (one.last - last.first).days < most_days)):
            slices = tuple(dict.fromkeys((*last.slices, *one.slices)))
            joined[-1] = replace(last, slices=slices, last=max(last.last, one.last))
        else:
            joined.append(one)
    return joined
