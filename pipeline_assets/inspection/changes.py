"""What readers of the tables ask: changes since a given time, and cuts, consistent states of all tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.notices import Notice, NoticeKind, change_id, change_notice
from pipeline_assets.domain.places import is_rest_catalog
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.registry import EVERY_TABLE, downstream_of, measures_of
from resources.iceberg.catalog_at_rest import CatalogAtRest, TableAtRest
from resources.ledger.history import Cut
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


class Engine(StrEnum):
    """The engine that reads."""

    SPARK = "spark"
    PYICEBERG = "pyiceberg"
    DUCKDB = "duckdb"
    TRINO = "trino"


def newest_cut(ledger: Ledger) -> Cut:
    """The current state of all tables; raises LakehouseError before the first publish."""
    cut = ledger.cuts.newest()
    if cut is None:
        hint = "Load days: tidemark load --help; a load keeps which snapshots belong together"
        raise LakehouseError("snapshots", "no publish is on record yet", hint)
    return cut


def cut_at(ledger: Ledger, moment: datetime) -> Cut:
    """The state that readers saw at an aware time; raises UsageError for a time before the first publish."""
    cut = ledger.cuts.at(moment)
    if cut is not None:
        return cut
    first = ledger.cuts.first() or newest_cut(ledger)
    reason = "lies before the first publish whose snapshots are on record"
    hint = f"Name a time after {first.published_at[:19]} UTC"
    raise UsageError(f"--at {moment.isoformat(timespec='seconds')}", reason, hint)


def cut_of_run(ledger: Ledger, text: str) -> Cut:
    """The state after the last publish of a run; `text`: the run's id, or its beginning. Raises UsageError."""
    runs = ledger.cuts.runs(text) if text else []
    if text in runs:
        runs = [text]
    if not runs:
        hint = "`tidemark history TABLE --json` names the runs"
        raise UsageError(f"--run {text}", "no run of this id is on record", hint)
    if len(runs) > 1:
        raise UsageError(f"--run {text}", f"{len(runs)} runs begin so: {', '.join(runs[:3])}", "Name one of them whole")
    cut = ledger.cuts.of_run(runs[0])
    if cut is None:
        reason = "published nothing, or did before snapshots that belong together were on record"
        raise UsageError(f"--run {runs[0]}", reason, "--at TIME gives what readers saw at a time")
    return cut


def tables_at_rest(settings: Settings, cut: Cut) -> dict[str, TableAtRest]:
    """The cut's tables that the catalog knows, as they are now; raises LakehouseError for an expired snapshot."""
    by_key = {table.key: table for table in EVERY_TABLE}
    found: dict[str, TableAtRest] = {}
    with closing(CatalogAtRest(settings)) as catalog:
        for name, snapshot_id in cut.snapshots.items():
            # A user's own table may be out of the configuration.
            resting = catalog.table(by_key[name]) if name in by_key else None
            if resting is None:
                continue
            if snapshot_id not in resting.snapshot_ids:
                oldest = f"; its oldest is of {resting.oldest_at:%Y-%m-%d %H:%M} UTC" if resting.oldest_at else ""
                kept = f"(kept for {settings.rollback_days} days{oldest})"
                reason = (
                    f"the snapshot {snapshot_id} that was published by {cut.published_at[:16]} UTC has expired {kept}"
                )
                hint = "Name a later time, or build the days again from what the tables hold now"
                raise LakehouseError(name, reason, hint)
            found[name] = resting
    return found


def reading_lines(
    engine: Engine, settings: Settings, snapshots: Mapping[str, int], resting: Mapping[str, TableAtRest]
) -> list[str]:
    """Code lines that read these tables (table -> snapshot), without secrets; DuckDB needs tables with a known metadata file."""
    names = {key.replace("/", "."): number for key, number in snapshots.items()}
    catalog = settings.catalog_name
    if engine is Engine.SPARK:
        return [f'spark.sql("SELECT * FROM {catalog}.{name} VERSION AS OF {number}")' for name, number in names.items()]
    if engine is Engine.TRINO:
        return [f"SELECT * FROM {catalog}.{name} FOR VERSION AS OF {number};" for name, number in names.items()]
    if engine is Engine.PYICEBERG:
        kind, opens = ("rest", "RestCatalog") if is_rest_catalog(settings.catalog_url) else ("sql", "SqlCatalog")
        opened = f'catalog = {opens}("{catalog}", uri="{masked(settings.catalog_url)}")'
        rows = [f'catalog.load_table("{name}").scan(snapshot_id={number})' for name, number in names.items()]
        return [f"from pyiceberg.catalog.{kind} import {opens}", opened, *(f"{row}.to_arrow()" for row in rows)]
    lines = ["INSTALL iceberg; LOAD iceberg;"]
    for key, table in ((key, resting[key]) for key in snapshots if key in resting):
        place = re.sub(r"^file:(//)?", "", table.location).replace("'", "''")
        lines.append(f"SELECT * FROM iceberg_scan('{place}', snapshot_from_id = {snapshots[key]});")
    return lines
