"""How to close a mismatch of a day: the rule that proposes runs from facts about the day."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from enum import StrEnum

from pipeline_assets.domain.hours import Hour, HourRange, hour_ranges
from pipeline_assets.domain.slices import Slice, Source

REASON = "REASON"
"""Placeholder in a command for the operator's reason."""


class RepairKind(StrEnum):
    """The kinds of proposals, in the order in which they are tried."""

    LOAD = "load"
    """Landing or raw holds data that is not built yet."""
    RECOVER = "recover hours"
    """Hours are lost, refused or never arrived; the vendor has them."""
    RECOVER_DAYS = "recover days"
    """No hour is known to be missing, but too little is published: ask the vendor for whole days."""
    WAIT = "wait"
    """The day is open: missing data may still be delivered."""
    REBUILD = "rebuild"
    """Another version of the code built the day; only an operator starts a rebuild."""
    DECIDE = "decide"
    """An operator has to decide or to investigate."""

    @property
    def is_run(self) -> bool:
        """Whether `--repair` runs it; a step that may undo a decision or rewrite history is only proposed."""
        return self in (RepairKind.LOAD, RepairKind.RECOVER, RepairKind.RECOVER_DAYS)

    @property
    def is_for_a_person(self) -> bool:
        """Whether an operator has to act."""
        return self in (RepairKind.REBUILD, RepairKind.DECIDE)


@dataclass(frozen=True)
class DayFacts:
    """The rule's input: the facts about one project's day that does not agree."""

    key: Slice
    is_lacking: bool
    """Whether too little is published."""
    unread: Mapping[Source, Set[date]] = field(default_factory=dict)
    """Source -> nearby arrival days with objects in landing that no load has read."""
    stale: str | None = None
    """Why the next load would build the day again; None where it would not."""
    lacking_hours: tuple[Hour, ...] = ()
    """Hours of this arrival day that are lost, refused or never arrived, and that the vendor has exported."""
    hours_to_ask: tuple[Hour, ...] = ()
    """Hours of this arrival day that the vendor can be asked for and was not asked for before."""
    open_until: datetime | None = None
    """The day's deadline, if it is still ahead: more deliveries may arrive until then."""
    holds: Mapping[str, str] = field(default_factory=dict)
    """Table -> why an operator holds the day."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Table -> why a change of the day was refused."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Key of an object near the day -> why an operator excluded it."""
    outdated: tuple[str, ...] = ()
    """Tables in which another version of the code built the day."""


@dataclass(frozen=True)
class Repair:
    """One proposal, for days of one project."""

    kind: RepairKind
    slices: tuple[Slice, ...]
    """The days that it is meant to repair."""
    reason: str
    first: date
    last: date
    """Range of the command: arrival days where objects are read, else event days."""
    source: Source | None = None
    table: str | None = None
    hours: HourRange | None = None
    object_key: str | None = None
    obstacle: str | None = None
    """Why this machine cannot run it."""

    @property
    def project_id(self) -> str:
        """The project of all its days."""
        return self.slices[0].project_id

    @property
    def command(self) -> str:
        """The command that the operator types."""
        span = ["--from", str(self.first), "--to", str(self.last), "--project", self.project_id]
        if self.kind is RepairKind.LOAD:
            return shlex.join(["tidemark", "load", "--source", str(self.source), *span])
        if self.kind is RepairKind.RECOVER and self.hours is not None:
            ends = ["--from", str(self.hours.first), "--to", str(self.hours.last)]
            return shlex.join(["tidemark", "recover", *ends, "--project", self.project_id, "--load"])
        if self.kind is RepairKind.RECOVER_DAYS:
            return shlex.join(["tidemark", "recover", *span, "--load"])
        if self.kind is RepairKind.REBUILD:
            return _with_reason(["tidemark", "rebuild", "start", "--table", str(self.table), *span, "--reason"])
        if self.object_key is not None:
            return _with_reason(["tidemark", "include", self.object_key, "--reason"])
        if self.table is not None and self.is_held:
            return _with_reason(["tidemark", "release", *span, "--table", self.table, "--reason"])
        if self.table is not None:
            return shlex.join(["tidemark", "diff", self.table, str(self.first), "--project", self.project_id])
        if self.kind is RepairKind.WAIT:
            return shlex.join(["tidemark", "reconcile", *span])
        return shlex.join(["tidemark", "reconcile", "--keys", "FILE", *span])

    @property
    def is_held(self) -> bool:
        """Whether an operator's hold is the reason."""
        return self.reason.startswith(_HELD)


_HELD = "held: "


def _with_reason(words: Sequence[str]) -> str:
    return f'{shlex.join(words)} "{REASON}"'


def repairs_of(facts: DayFacts, tried: Set[tuple[RepairKind, Slice]] = frozenset()) -> list[Repair]:
    """The proposals for one day: runs of the first kind that applies, then everything that needs an operator.

    `tried`: runs that did not close the mismatch; the rule then proposes the kinds after them.
    """
    found = [*_runs(facts, tried), *_decisions(facts)]
    if found:
        return found
    if facts.is_lacking:
        reason = (
            "all that landing and the vendor have of the day is loaded; keys of the outside system show what is left"
        )
    else:
        reason = "more is published than there should be; keys of the outside system show what"
    return [_of(facts, RepairKind.DECIDE, reason)]


def _runs(facts: DayFacts, tried: Set[tuple[RepairKind, Slice]]) -> list[Repair]:
    if facts.holds:
        # A load does not change held days.
        return []
    loads: list[Repair] = []
    if (RepairKind.LOAD, facts.key) not in tried:
        reason = "landing holds objects that no load has read"
        loads = [
            replace(_of(facts, RepairKind.LOAD, reason), first=day, last=day, source=source)
            for source, days in sorted(facts.unread.items())
            for day in sorted(days)
        ]
        if facts.stale is not None and not loads:
            loads = [replace(_of(facts, RepairKind.LOAD, f"is not built yet: {facts.stale}"), source=Source.REGULAR)]
        if facts.stale is not None or any(facts.key.event_date in days for days in facts.unread.values()):
            return loads
    # Deliveries of other arrival days may hold late events of this day: they are loaded first, but may not close the gap.
    return [*loads, *_recoveries(facts, tried)]


def _recoveries(facts: DayFacts, tried: Set[tuple[RepairKind, Slice]]) -> list[Repair]:
    if facts.open_until is not None:
        if not facts.lacking_hours and (not facts.is_lacking or facts.refused):
            return []
        until = facts.open_until.strftime("%Y-%m-%d %H:%M UTC")
        return [_of(facts, RepairKind.WAIT, f"the day is open until {until}; what lacks may still be delivered")]
    if facts.lacking_hours and (RepairKind.RECOVER, facts.key) not in tried:
        reason = "hours are lost, refused or never came"
        return [
            replace(_of(facts, RepairKind.RECOVER, reason), hours=hours)
            for hours in hour_ranges(facts.lacking_hours, 24)
        ]
    # Refused data has arrived already, and waits for an operator.
    can_ask = facts.is_lacking and facts.hours_to_ask and not facts.refused
    if can_ask and (RepairKind.RECOVER_DAYS, facts.key) not in tried:
        return [
            _of(facts, RepairKind.RECOVER_DAYS, "no hour is known to lack, but less is published than there should be")
        ]
    return []


def _decisions(facts: DayFacts) -> list[Repair]:
    held = [
        replace(_of(facts, RepairKind.DECIDE, f"{_HELD}{reason}"), table=name) for name, reason in facts.holds.items()
    ]
    refused = [
        replace(_of(facts, RepairKind.DECIDE, f"refused: {reason}"), table=name)
        for name, reason in facts.refused.items()
    ]
    excluded = [
        replace(_of(facts, RepairKind.DECIDE, f"excluded: {reason}"), object_key=key)
        for key, reason in facts.excluded.items()
    ]
    outdated = [
        replace(_of(facts, RepairKind.REBUILD, "another version of the code built it"), table=name)
        for name in facts.outdated
    ]
    return [*held, *refused, *excluded, *outdated]


def _of(facts: DayFacts, kind: RepairKind, reason: str) -> Repair:
    return Repair(kind, (facts.key,), reason, facts.key.event_date, facts.key.event_date)


def together(repairs: Iterable[Repair], most_days: int) -> list[Repair]:
    """Merge repairs of consecutive days into one, of at most `most_days` days; sorted in the order in which they are tried."""
    joined: list[Repair] = []
    for one in sorted(repairs, key=_place):
        last = joined[-1] if joined else None
        if last is not None and _kind_of(last) == _kind_of(one) and one.hours is None:
            is_same, is_next = one.first <= last.last, one.first - last.last == timedelta(days=1)
            if is_same or (is_next and (one.last - last.first).days < most_days):
                slices = tuple(dict.fromkeys((*last.slices, *one.slices)))
                joined[-1] = replace(last, slices=slices, last=max(last.last, one.last))
                continue
        joined.append(one)
    return joined


def _kind_of(one: Repair) -> tuple[str, ...]:
    order = list(RepairKind).index(one.kind)
    names = (one.source, one.table, one.object_key, one.reason, one.obstacle)
    return (str(order), one.project_id, *(str(name or "") for name in names))


def _place(one: Repair) -> tuple[object, ...]:
    return (*_kind_of(one), one.first, str(one.hours or ""))
