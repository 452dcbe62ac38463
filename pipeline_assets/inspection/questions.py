"""Questions for the operator: red days, grouped so that one command answers each group, open rebuilds, receivers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from pipeline_assets.config import notify_secret
from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.errors import recover_refused
from pipeline_assets.domain.masking import receiver_id, receiver_place
from pipeline_assets.domain.notices import SEND_AGAIN, SEND_NOW
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.records import HOURS_UNFINISHED, MISSING
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, BatchVerdict, Source, Verdict
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import ASSET_TABLES, DERIVED
from pipeline_assets.tables.table import is_dimension
from resources.ledger.store import Ledger
from resources.ledger.summaries import Fault

TABLES = tuple(table.key for table in ASSET_TABLES)
_DERIVED = {table.key for table in DERIVED}
_SOURCES = frozenset(source.value for source in Source)


class AnswerKind(StrEnum):
    """The answer that a red day needs."""

    ACCEPT_CHANGE = "a closed day would change"
    ACCEPT_MISSING = "deliveries are missing"
    LOAD_AGAIN = "a delivery or a check failed"
    RELEASE = "held by an operator"
    REBUILD = "a rebuild is open"
    """Continue it, read its report and swap it in, or abandon it."""
    FOLLOW = "follows by itself"
    """It waits for another red day or the next load."""


@dataclass(frozen=True)
class Question:
    """Red days of the same kind, or the days of a rebuild, that one answer settles."""

    kind: AnswerKind
    tables: tuple[str, ...]
    projects: tuple[str, ...]
    first: date
    last: date
    reason: str
    """The reason of its first day; the calendar shows all."""
    more_reasons: int
    hint: str
    commands: tuple[str, ...]

    @property
    def follows(self) -> bool:
        """Whether it settles itself once another one is settled."""
        return self.kind is AnswerKind.FOLLOW


def table_of(place: str) -> str:
    """The key of the table; the raw table for the source of a batch."""
    return RAW_TABLES[Source(place)].key if place in _SOURCES else place


def kind_of(fault: Fault) -> AnswerKind:
    """The kind of answer that a red or waiting day needs."""
    if fault.verdict == Verdict.HELD.value:
        return AnswerKind.RELEASE
    if fault.verdict == BatchVerdict.ACCEPTED.value:
        return AnswerKind.ACCEPT_MISSING
    if fault.verdict != Verdict.REFUSED.value:
        return AnswerKind.FOLLOW
    failed = [one for one in fault.evaluations if not one.is_passed and one.check.is_blocking]
    if fault.place in _SOURCES:
        is_missing = not fault.deliveries or any(one.figures.get(MISSING) for one in failed)
        return AnswerKind.ACCEPT_MISSING if is_missing else AnswerKind.LOAD_AGAIN
    is_change = bool(failed) and failed[0].check in (Check.CHANGE_IS_EXPLAINED, Check.COUNT_IS_EXPECTED)
    return AnswerKind.ACCEPT_CHANGE if is_change else AnswerKind.LOAD_AGAIN


def is_early(fault: Fault, early: frozenset[tuple[date, str]]) -> bool:
    """Whether the day only waits for deliveries whose deadline is still ahead."""
    return fault.verdict == Verdict.WAITING.value and (fault.day, fault.project_id) in early


def early_days(batches: Sequence[Fault]) -> frozenset[tuple[date, str]]:
    """(day, project) pairs that wait for their first delivery before the deadline, without a refusal or a running recovery."""
    waiting = frozenset((one.day, one.project_id) for one in batches if one.verdict == BatchVerdict.WAITING.value)
    return waiting - {
        (one.day, one.project_id)
        for one in batches
        if one.verdict == BatchVerdict.REFUSED.value or any(of.figures.get(HOURS_UNFINISHED) for of in one.evaluations)
    }


def commands(
    kind: AnswerKind, source: Source, tables: Sequence[str], projects: Sequence[str], first: date, last: date
) -> tuple[str, ...]:
    """The commands that answer such days, in the order in which the operator types them."""
    named = _each("--project", (project for project in projects if project != ALL_PROJECTS))
    span = ["--from", str(first), "--to", str(last), *named]
    is_of_dimensions = all(map(is_dimension, tables))
    load = ["tidemark", "load", "--source", "dimensions" if is_of_dimensions else source.value, *span]
    if kind is AnswerKind.ACCEPT_CHANGE:
        # `diff` cannot compare a dimension, which is built from no other table.
        look = () if is_of_dimensions else (shlex.join(["tidemark", "diff", tables[0], str(first), *named]),)
        return (*look, _with_reason([*load, "--accept-changes"]))
    if kind is AnswerKind.ACCEPT_MISSING:
        return shlex.join(load), recover_refused(first, last, projects), _with_reason([*load, "--accept-missing"])
    if kind is AnswerKind.RELEASE:
        chosen = _each("--table", tables) if set(tables) != _DERIVED else ()
        return (_with_reason(["tidemark", "release", *span, *chosen, "--reason"]),)
    return (shlex.join(load),)


def _with_reason(words: Sequence[str]) -> str:
    return f'{shlex.join(words)} "REASON"'


def ordered(projects: Iterable[str]) -> list[str]:
    """Each project once, by number."""
    return sorted(set(projects), key=lambda name: (len(name), name))


def in_graph(table: str) -> tuple[int, str]:
    """The sort key of tables: in the order of the graph, then those that only the ledger knows."""
    return (TABLES.index(table) if table in TABLES else len(TABLES), table)


def questions(faults: Iterable[Fault], early: frozenset[tuple[date, str]]) -> list[Question]:
    """Group the faults that are not early; one question covers days without a gap, of all projects with the same need."""
    needs: dict[tuple[AnswerKind, Source, str], dict[date, list[Fault]]] = {}
    for fault in (one for one in faults if not is_early(one, early)):
        source = Source(fault.place) if fault.place in _SOURCES else Source.REGULAR
        need = (kind_of(fault), source, fault.project_id)
        needs.setdefault(need, {}).setdefault(fault.day, []).append(fault)
    alike: dict[tuple[AnswerKind, Source, tuple[str, ...], date, date], list[Fault]] = {}
    for (kind, source, _), by_day in needs.items():
        of_tables: dict[tuple[str, ...], list[date]] = {}
        for day in sorted(by_day):
            tables = tuple(sorted({table_of(fault.place) for fault in by_day[day]}, key=in_graph))
            of_tables.setdefault(tables, []).append(day)
        for tables, chosen in of_tables.items():
            for stretch in stretches(chosen, len(chosen)):
                of_stretch = [fault for day in stretch for fault in by_day[day]]
                alike.setdefault((kind, source, tables, stretch[0], stretch[-1]), []).extend(of_stretch)
    made = []
    for (kind, source, tables, first, last), listed in alike.items():
        projects, more = tuple(ordered(one.project_id for one in listed)), len({one.reason for one in listed}) - 1
        told = listed[0].reason, more, listed[0].hint, commands(kind, source, tables, projects, first, last)
        made.append(Question(kind, tables, projects, first, last, *told))
    order = list(AnswerKind)
    return sorted(made, key=lambda one: (one.follows, -one.last.toordinal(), order.index(one.kind), one.projects))


_OF_REBUILDS = {
    RebuildState.BUILDING: (
        "Slices of it are still to be computed; if its run is dead, the same start goes on with it", ("abandon",)
    ),
    RebuildState.READY: ("Look at the report; then swap it in, or abandon it", ("show", "swap", "abandon")),
    RebuildState.SWAPPING: (
        "Its swap was interrupted, before or after it was published; complete it, or take it back", ("swap", "undo")
    ),
}  # fmt: skip
"""State of a rebuild -> the operator's next step, and its subcommands."""


def rebuild_question(one: RebuildRecord) -> Question:
    """The question of an open rebuild."""
    hint, answers = _OF_REBUILDS[one.state]
    told = [f"tidemark rebuild {answer} {one.number}" for answer in answers]
    if one.state is RebuildState.BUILDING:
        span = ["--from", str(one.first), "--to", str(one.last)]
        places = [*_each("--table", one.tables), *_each("--project", one.projects)]
        told.insert(0, _with_reason(["tidemark", "rebuild", "start", *span, *places, "--reason"]))
    reason = f"rebuild {one.number} is {one.state.value}: {one.reason}"
    return Question(AnswerKind.REBUILD, one.tables, one.projects, one.first, one.last, reason, 0, hint, tuple(told))


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


@dataclass(frozen=True)
class ReceiverTrouble:
    """One receiver that missed notices, or that cannot verify their sender."""

    place: str
    reason: str
    hint: str
    command: str = ""

    def __str__(self) -> str:
        """One line."""
        command = f" (`{self.command}`)" if self.command else ""
        return f"notices to {self.place}: {self.reason}. {self.hint}{command}"


def receiver_troubles(ledger: Ledger, settings: Settings) -> list[ReceiverTrouble]:
    """The problems of the configured receivers, in their order, then unsigned notices. Raises LedgerError."""
    receivers, refused = ledger.outbox.receivers(), ledger.set_aside.all()
    found: list[ReceiverTrouble] = []
    for url in settings.notify_urls:
        receiver = receivers.get(receiver_id(url))
        if receiver is None:
            continue
        if receiver.failed_at is not None and receiver.waiting:
            last = f"the last {receiver.failed_at:%Y-%m-%d %H:%M} UTC: {receiver.error}"
            reason = f"waiting: {receiver.waiting:,}; failed attempts: {receiver.failures:,}, {last}"
            hint = "Mend the receiver or correct TIDEMARK_NOTIFY_URLS; then send them"
            found.append(ReceiverTrouble(receiver_place(url), reason, hint, SEND_NOW))
        aside = [one for one in refused if one.receiver_id == receiver.id]
        if aside:
            count = sum(one.notices for one in aside)
            reason = f"set aside: {count:,}, since {aside[0].set_aside_at:%Y-%m-%d %H:%M} UTC: {aside[-1].error}"
            hint = "Find out why the receiver refuses them for good; then send them again"
            found.append(ReceiverTrouble(receiver_place(url), reason, hint, SEND_AGAIN))
    return found + unsigned_notices(settings)


def unsigned_notices(settings: Settings) -> list[ReceiverTrouble]:
    """The problem of configured receivers without a signing secret, where there is one."""
    if not settings.notify_urls or notify_secret() is not None:
        return []
    place = ", ".join(map(receiver_place, settings.notify_urls))
    reason = "they go unsigned, so that a receiver cannot tell them from a stranger's"
    return [ReceiverTrouble(place, reason, "Set TIDEMARK_NOTIFY_SECRET, and give it to the receivers")]
