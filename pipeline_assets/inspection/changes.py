"""Changes since a given time, from the ledger alone: changes of final days, refusals and their ends, and copies to refresh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline_assets.domain.notices import Notice, NoticeKind, change_id, change_notice
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.registry import downstream_of, measures_of
from resources.ledger.store import Ledger

Publication = tuple[PublicationRecord, bool]
"""A publication, and whether its slice was final before."""
_OF_REFUSALS = (NoticeKind.REFUSAL, NoticeKind.REFUSAL_END)


@dataclass(frozen=True)
class Refusal:
    """A day that was refused, and how that ended."""

    refused: Notice | None
    ended: Notice | None

    @property
    def notice(self) -> Notice:
        """A notice that names the day: of the refusal, or else of its end."""
        found = self.refused or self.ended
        assert found is not None
        return found


@dataclass(frozen=True)
class StaleCopy:
    """A slice that changed since, so that a reader's copy from that time is outdated."""

    table: str
    key: Slice
    rows_then: int
    rows_now: int
    was_final: bool
    """Changes of provisional days are expected."""


@dataclass(frozen=True)
class ChangesSince:
    """The changes since a time, oldest first."""

    since: datetime
    changes: tuple[Notice, ...]
    refusals: tuple[Refusal, ...]
    refresh: tuple[StaleCopy, ...] | None = None
    """Outdated copies of a table and its downstream tables, in their order; None where no table was requested."""


def changes_since(ledger: Ledger, since: datetime, table: str | None = None) -> ChangesSince:
    """The changes since an aware time; for `table`, only its own and those of its downstream tables."""
    published, notices = ledger.outbox.published_since(since), ledger.outbox.recorded_since(since)
    refresh = None
    if table is not None:
        tables = [table, *(one.key for one in downstream_of(table))]
        published = [one for one in published if one[0].table in tables]
        notices = [one for one in notices if one.table in tables]
        refresh = tuple(_stale_copies(published, tables))
    return ChangesSince(since, _changes(ledger, published, notices), _refusals(ledger, notices), refresh)


def _changes(ledger: Ledger, published: Sequence[Publication], notices: Sequence[Notice]) -> tuple[Notice, ...]:
    found = {notice.id: notice for notice in notices if notice.kind is NoticeKind.CHANGE}
    changed = [one for one, was_final in published if was_final and one.digest_before != one.digest_after]
    bare = {change_id(record): record for record in changed}
    # A change and its notice may lie on different sides of the given time.
    found |= {notice.id: notice for notice in ledger.outbox.of_ids(bare.keys() - found.keys())}
    found |= {notice.id: notice for notice in _derived(ledger, [bare[name] for name in bare if name not in found])}
    return tuple(sorted(found.values(), key=lambda notice: (notice.at, notice.table, notice.key)))


def _derived(ledger: Ledger, published: Sequence[PublicationRecord]) -> Iterator[Notice]:
    """Notices made from publications; the measures before come from the slice's previous publication."""
    wanted = {one.number for one in published}
    for table in dict.fromkeys(one.table for one in published):
        before: dict[Slice, Mapping[str, float]] = {}
        for record in ledger.publications(table):
            figures = record.figures or {"rows": record.digest_after.rows}
            if record.number in wanted:
                yield change_notice(record, figures, before.get(record.key, {}), measures_of(table))
            before[record.key] = figures


def _refusals(ledger: Ledger, notices: Sequence[Notice]) -> tuple[Refusal, ...]:
    recorded = {notice.id: notice for notice in notices if notice.kind in _OF_REFUSALS}
    began = {one.refusal_id for one in recorded.values() if one.refusal_id is not None}
    found: dict[str, Refusal] = {}
    standing: dict[tuple[str, Slice], list[Notice]] = {}
    for notice in (*ledger.outbox.of_ids(began - recorded.keys()), *recorded.values()):
        place = notice.table, notice.key
        if notice.kind is NoticeKind.REFUSAL:
            standing.setdefault(place, []).append(notice)
            found[notice.id] = Refusal(notice, None)
        elif place in standing:
            found |= {one.id: Refusal(one, notice) for one in standing.pop(place)}
        else:
            found[notice.id] = Refusal(None, notice)
    return tuple(sorted(found.values(), key=lambda one: (one.notice.at, one.notice.table, one.notice.key)))


def _stale_copies(published: Sequence[Publication], tables: Sequence[str]) -> Iterator[StaleCopy]:
    changes: dict[tuple[str, Slice], list[Publication]] = {}
    for one in published:
        changes.setdefault((one[0].table, one[0].key), []).append(one)
    for place in sorted(changes, key=lambda place: (tables.index(place[0]), place[1])):
        then, now = changes[place][0][0].digest_before, changes[place][-1][0].digest_after
        if then != now:
            yield StaleCopy(*place, then.rows, now.rows, any(was_final for _, was_final in changes[place]))
