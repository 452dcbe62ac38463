"""Questions whose number of values grows with history are answered whatever a database takes in one statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import sqlalchemy as sa

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from resources.ledger.changes import BatchAsRead, Changes
from resources.ledger.store import Ledger

TABLE, PROJECT = "refined/events", "10001"
DAY = date(2026, 2, 2)
KEY = Slice(DAY, PROJECT)
BATCH = BatchKey(Source.REGULAR, PROJECT, DAY)
AS_BUILT, BEFORE_3_32 = 32_766, 999
"""Values that SQLite takes in a statement as its authors build it; a distribution may raise that, and a test sets it back."""
_DIGEST = Digest(1, 1, 1)


@contextmanager
def _a_ledger(folder: Path, limit: int) -> Iterator[Ledger]:
    with closing(Ledger(f"sqlite:///{folder}/ledger.db")) as ledger:

        def narrow(raw: sqlite3.Connection, _: object) -> None:
            raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, limit)

        sa.event.listen(ledger.engine, "connect", narrow)
        ledger.engine.dispose()
        yield ledger


def test_a_table_of_more_commits_than_one_statement_takes_is_settled(tmp_path: Path) -> None:
    many = AS_BUILT + 100
    publication = PublicationRecord(TABLE, KEY, 7, 6, EMPTY, _DIGEST, Cause.of(CauseKind.DELIVERY), "run")
    with _a_ledger(tmp_path, AS_BUILT) as ledger:
        ledger.record(Changes(publications=[publication, replace(publication, snapshot_id=many - 1)]), "run")

        assert ledger.recorded_snapshots(TABLE, range(many)) == {(KEY, 7), (KEY, many - 1)}
        assert ledger.recorded_snapshots(TABLE, []) == set()


def test_one_step_may_read_and_write_more_rows_than_one_statement_takes(tmp_path: Path) -> None:
    many = BEFORE_3_32 + 100
    days = [date(2020, 1, 1) + timedelta(days=shift) for shift in range(many)]
    slices = [Slice(day, PROJECT) for day in days]
    delivery = DeliveryRecord(BATCH, "", "e", 1, None, 1, 1, 0, 0, None, is_accepted=True)
    changes = Changes(
        deliveries=[replace(delivery, object_key=f"{PROJECT}/{number}") for number in range(many)],
        batches=[BatchRecord(BATCH, BatchVerdict.ACCEPTED)],
        batch_days={BATCH: {day: BatchDay(_DIGEST) for day in days}},
        slices=[SliceRecord(TABLE, key, Verdict.PUBLISHED, digest=_DIGEST) for key in slices],
        read_batches={BATCH: BatchAsRead({}, None)},
    )
    with _a_ledger(tmp_path, BEFORE_3_32) as ledger:
        ledger.record(changes, "run")

        assert len(ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY)) == many
        assert len(ledger.slices(TABLE, [PROJECT], days)) == many
        found = ledger.batch_days_of(Source.REGULAR, PROJECT, days)
        assert sum(len(of_day) for of_day in found.values()) == many
        ledger.interventions.hold({TABLE: slices}, "why", "run")
        assert len(ledger.interventions.holds(TABLE, [PROJECT])) == many
