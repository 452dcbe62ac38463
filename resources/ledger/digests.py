"""Replace digests of a former row hash by the current digests of the same content.

Contains: finding former digests and renaming them.
Add here: another column of the ledger that holds digests.
Does not contain: measuring content and deciding that it is the same (load/carry_over.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.input_state import InputDay
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source
from resources.ledger.rows import batch_day_row, with_renamed_digests
from resources.ledger.schema import BATCH_DAYS, HEADS, PUBLICATIONS, SLICES

DOUBTED = "doubted"
"""Replaces a hash of files; no set of files has this hash, not even the empty set."""
Opened = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class Renamed:
    """The former and the current digest of the same content."""

    former: Digest
    present: Digest


class DigestsOnRecord:
    """Reads and renames the digests of slices, batch days, publications and input states."""

    def __init__(self, read: Opened, write: Opened) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write = read, write

    def are_present(self, table: str) -> bool:
        """Whether every digest of the table's slices is known to be of the present version."""
        query = sa.select(HEADS.c.row_hash_version).where(HEADS.c.table_name == table)
        with self._read() as connection:
            return bool(connection.execute(query).scalar() == ROW_HASH_VERSION)

    def note_present(self, table: str) -> None:
        """Remember that no slice of the table has a former digest: only a ledger of before could bring one."""
        with self._write() as connection:
            connection.execute(
                HEADS.update().where(HEADS.c.table_name == table).values(row_hash_version=ROW_HASH_VERSION)
            )

    def former_slices(self, table: str) -> dict[Slice, Digest]:
        """Return slice -> digest of a table's slices whose digest is of another version; reads all rows of the table."""
        query = sa.select(SLICES.c.event_date, SLICES.c.project_id, SLICES.c.digest).where(
            SLICES.c.table_name == table, _is_former(SLICES.c.digest)
        )
        with self._read() as connection:
            return {Slice(day, project): Digest.parse(text) for day, project, text in connection.execute(query)}

    def batch_days(self, source: Source) -> dict[Slice, dict[date, BatchDay]]:
        """Return slice -> arrival day -> batch day, of those whose digest is of another version."""
        columns = (BATCH_DAYS.c.event_date, BATCH_DAYS.c.project_id, BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.digest)
        query = sa.select(*columns, BATCH_DAYS.c.lineage).where(
            BATCH_DAYS.c.source == source.value, _is_former(BATCH_DAYS.c.digest)
        )
        days: dict[Slice, dict[date, BatchDay]] = {}
        with self._read() as connection:
            for day, project, arrival, text, lineage in connection.execute(query):
                days.setdefault(Slice(day, project), {})[arrival] = BatchDay(Digest.parse(text), lineage)
        return days

    def rename(
        self,
        table: str,
        slices: Mapping[Slice, Renamed],
        batch_days: Mapping[tuple[BatchKey, date], tuple[Digest, BatchDay]],
    ) -> None:
        """Replace the former digests by the current ones, in one transaction.

        Rows that another run changed meanwhile have another digest and stay. The input states of slices built from these are
        renamed as well; otherwise all of them would look stale.
        """
        with self._write() as connection:
            for key, renamed in slices.items():
                at = {"table_name": table, "event_date": key.event_date, "project_id": key.project_id}
                for kept, name in ((SLICES, "digest"), (PUBLICATIONS, "digest_before"), (PUBLICATIONS, "digest_after")):
                    _replace(connection, kept, at, {name: str(renamed.former)}, {name: str(renamed.present)})
            for (batch, day), (former, present) in batch_days.items():
                at = {"source": batch.source.value, "project_id": batch.project_id, "arrival_date": batch.arrival_date}
                values = batch_day_row(day, present, {})
                _replace(connection, BATCH_DAYS, at | {"event_date": day}, {"digest": str(former)}, values)
            for kept, names in ((SLICES, ("input_state", "refused_state")), (PUBLICATIONS, ("input_state",))):
                _rename_inputs(connection, kept, names, table, slices)

    def doubt(self, table: str, slices: Collection[Slice]) -> None:
        """Make the next load find these slices different from what is on record, and the table's head too."""
        with self._write() as connection:
            for key in slices:
                at = {"table_name": table, "event_date": key.event_date, "project_id": key.project_id}
                _replace(connection, SLICES, at, {}, {"file_hash": DOUBTED})
            connection.execute(
                HEADS.update().where(HEADS.c.table_name == table).values(snapshot_id=-sa.func.abs(HEADS.c.snapshot_id))
            )


def _is_former(digest: sa.Column[str]) -> Any:
    # A digest that no version could measure (h0) belongs to none.
    return sa.and_(digest.not_like(f"h{ROW_HASH_VERSION}:%"), digest.not_like("h0:%"), digest != str(EMPTY))


def _replace(
    connection: Connection, kept: sa.Table, at: Mapping[str, Any], former: Mapping[str, str], values: Mapping[str, Any]
) -> None:
    where = [kept.c[name] == value for name, value in (*at.items(), *former.items())]
    connection.execute(kept.update().where(*where).values(**values))


def _rename_inputs(
    connection: Connection, kept: sa.Table, names: tuple[str, ...], table: str, slices: Mapping[Slice, Renamed]
) -> None:
    keys = list(kept.primary_key)
    query = sa.select(*keys, kept.c.project_id.label("of_project"), *(kept.c[name] for name in names))
    for row in connection.execute(query.where(kept.c.table_name != table)).mappings().all():
        changed = {}
        for name in names:
            renamed = with_renamed_digests(name, row[name], _renaming(table, row["of_project"], slices))
            if renamed is not None and renamed != row[name]:
                changed[name] = renamed
        if changed:
            connection.execute(kept.update().where(*(key == row[key.name] for key in keys)).values(**changed))


def _renaming(table: str, project_id: str, slices: Mapping[Slice, Renamed]) -> Callable[[InputDay, Digest], Digest]:
    """Return a function that renames a digest in an input state of a project."""

    def rename(named: InputDay, digest: Digest) -> Digest:
        renamed = slices.get(Slice(named.day, project_id)) if named.table == table else None
        return renamed.present if renamed is not None and digest == renamed.former else digest

    return rename
