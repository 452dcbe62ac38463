"""Changes since a given time, from the ledger alone: changes of final days, refusals and their ends, and copies to refresh."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline_assets.domain.notices import Arrivals, Notice, NoticeKind, change_id, change_notice
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.tables.registry import downstream_of, measures_of
from resources.ledger.outbox import RecordedPublication
from resources.ledger.store import Ledger

_OF_REFUSALS = (NoticeKind.REFUSAL, NoticeKind.REFUSAL_END)


@dataclass(frozen=True)
class Refusal:
    """A day that was refused, and how that ended."""

    refused: Notice | None
    """None where the refusal predates notices."""
    ended: Notice | None
    """None while the refusal is in force."""

    @property
    def notice(self) -> Notice:
        """A notice that names the day: of the refusal, or else of its end."""
        found = self.refused or self.ended
        assert found is not None
        return found

    def to_json(self) -> dict[str, Any]:
        """The JSON form for `--json`."""
        refused, ended = self.refused, self.ended
        return {
            "table": self.notice.table,
            "day": self.notice.key.event_date.isoformat(),
            "project": self.notice.key.project_id,
            "refused": refused.to_json() if refused is not None else None,
            "ended": ended.to_json() if ended is not None else None,
        }


@dataclass(frozen=True)
class StaleCopy:
    """A slice that changed since, so that a reader's copy from that time is outdated."""

    table: str
    key: Slice
    rows_then: int
    rows_now: int
    was_final: bool
    """Whether it changed while it was final; changes of provisional days are expected."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form for `--json`."""
        return {
            "table": self.table,
            "day": self.key.event_date.isoformat(),
            "project": self.key.project_id,
            "rows_then": self.rows_then,
            "rows_now": self.rows_now,
            "was_final": self.was_final,
        }


@dataclass(frozen=True)
class ChangesSince:
    """The changes since a time, oldest first."""

    since: datetime
    changes: tuple[Notice, ...]
    """Changes of published final days."""
    refusals: tuple[Refusal, ...]
    """Refusals that began or ended."""
    refresh: tuple[StaleCopy, ...] | None = None
    """Outdated copies of a table and its downstream tables, in their order; None where no table was requested."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form for `--json`."""
        found: dict[str, Any] = {
            "since": self.since.isoformat(),
            "changes": [notice.to_json() for notice in self.changes],
            "refusals": [refusal.to_json() for refusal in self.refusals],
        }
        return found if self.refresh is None else found | {"refresh": [one.to_json() for one in self.refresh]}


def changes_since(ledger: Ledger, since: datetime, table: str | None = None) -> ChangesSince:
    """The changes since an aware time; for `table`, only its own and those of its downstream tables."""
    published = ledger.outbox.published_since(since)
    notices = ledger.outbox.recorded_since(since)
    tables = None if table is None else [table, *(one.key for one in downstream_of(table))]
    changes = _changes(ledger, published, [one for one in notices if one.kind is NoticeKind.CHANGE])
    refusals = _refusals(ledger, [one for one in notices if one.kind in _OF_REFUSALS])
    if tables is None:
        return ChangesSince(since, tuple(changes), tuple(refusals))
    return ChangesSince(
        since,
        tuple(one for one in changes if one.table in tables),
        tuple(one for one in refusals if one.notice.table in tables),
        tuple(stale_copies(published, tables)),
    )


def _changes(ledger: Ledger, published: Sequence[RecordedPublication], notices: Sequence[Notice]) -> list[Notice]:
    """The recorded notices, and notices derived from publications that have none on record (any more)."""
    found = {notice.id: notice for notice in notices}
    bare = [one for one in published if one.was_final and one.record.digest_before != one.record.digest_after]
    told = {change_id(one.record): one for one in bare}
    # A change recorded after the given time may have its notice before it, and the other way round.
    known = {notice.id: notice for notice in ledger.outbox.of_ids(told.keys() - found.keys())}
    unknown = [one for name, one in told.items() if name not in found and name not in known]
    derived = {notice.id: notice for notice in _derived(ledger, unknown)}
    return sorted({**known, **derived, **found}.values(), key=lambda notice: (notice.at, notice.table, notice.key))


def _derived(ledger: Ledger, published: Sequence[RecordedPublication]) -> Iterator[Notice]:
    """Notices made from publications; the measures before come from the slice's previous publication."""
    for table in dict.fromkeys(one.record.table for one in published):
        wanted = {one.record.number for one in published if one.record.table == table}
        before: dict[Slice, Mapping[str, float]] = {}
        for record in ledger.publications(table):
            figures = record.figures or {"rows": record.digest_after.rows}
            if record.number in wanted:
                yield change_notice(record, figures, before.get(record.key, {}), measures_of(table), Arrivals())
            before[record.key] = figures


def _refusals(ledger: Ledger, notices: Sequence[Notice]) -> list[Refusal]:
    """Pair refusals with their ends; if a day was refused repeatedly, its end closes all of these refusals."""
    known = {notice.id for notice in notices}
    earlier = ledger.outbox.of_ids({one.refusal_id for one in notices if one.refusal_id is not None} - known)
    found: dict[str, Refusal] = {}
    standing: dict[tuple[str, Slice], list[Notice]] = {}
    for notice in (*earlier, *notices):
        place = notice.table, notice.key
        if notice.kind is NoticeKind.REFUSAL:
            standing.setdefault(place, []).append(notice)
            found[notice.id] = Refusal(notice, None)
        elif place in standing:
            found |= {one.id: Refusal(one, notice) for one in standing.pop(place)}
        else:
            found[notice.id] = Refusal(None, notice)
    return sorted(found.values(), key=lambda one: (one.notice.at, one.notice.table, one.notice.key))


def stale_copies(published: Sequence[RecordedPublication], tables: Collection[str]) -> Iterator[StaleCopy]:
    """The slices of these tables whose content differs from before the publications, by table and day."""
    then: dict[tuple[str, Slice], Digest] = {}
    now: dict[tuple[str, Slice], Digest] = {}
    final: set[tuple[str, Slice]] = set()
    for one in published:
        place = one.record.table, one.record.key
        then.setdefault(place, one.record.digest_before)
        now[place] = one.record.digest_after
        if one.was_final:
            final.add(place)
    for table in tables:
        for place in sorted(place for place in now if place[0] == table and then[place] != now[place]):
            yield StaleCopy(table, place[1], then[place].rows, now[place].rows, place in final)
