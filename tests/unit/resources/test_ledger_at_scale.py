"""An index answers the questions of sensors, loads and pages over millions of rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.inspection.health import read_health
from pipeline_assets.load.staleness.finality import first_arrivals, last_arrival
from resources.ledger.changes import BatchAsRead, Changes
from resources.ledger.schema import METADATA
from resources.ledger.store import Ledger
from resources.ledger.writing import arrivals_since

PROJECTS = ("10001", "10002")
DAY = date(2026, 2, 2)
_NOON = datetime(2026, 2, 2, 12, tzinfo=UTC)
TABLES = ["refined/events", "aggregates/daily_revenue"]


def plans_of(ledger: Ledger, ask: Callable[[Ledger], object]) -> list[str]:
    """SQLite's plan for each statement of a question."""
    asked: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *rest: object) -> None:
        asked.append((statement, parameters))

    engine = ledger.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    ask(ledger)
    sa.event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        return [
            row[3]
            for statement, parameters in asked
            if statement.lstrip().startswith("SELECT")
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]


def of_whole_tables(plans: list[str]) -> list[str]:
    """Steps that read every row of a ledger table, rather than entries of a covering index."""
    tables = tuple(f"SCAN {name}" for name in METADATA.tables)
    return [step for step in plans if step.startswith(tables) and "COVERING INDEX" not in step]


def arrived_since(ledger: Ledger) -> object:
    """Asked by a publish that changes a final day, while others wait for its transaction."""
    batch = BatchKey(Source.REGULAR, PROJECTS[0], DAY)
    ledger.record(Changes(batch_days={batch: {DAY: BatchDay(Digest(1, 1, 1))}}), "run")
    with ledger.transaction() as connection:
        return arrivals_since(connection, {(TABLES[0], Slice(DAY, PROJECTS[0])): "2026-02-02"})


QUESTIONS: dict[str, tuple[Callable[[Ledger], object], str]] = {
    "first arrivals": (lambda ledger: first_arrivals(ledger, Settings(), PROJECTS, DAY), "tidemark_deliveries_by_day"),
    "last arrival": (lambda ledger: last_arrival(ledger, Source.REGULAR, PROJECTS, DAY), "tidemark_deliveries_by_day"),
    "days on record": (lambda ledger: ledger.event_days(TABLES), "COVERING INDEX"),
    "slices on record": (lambda ledger: ledger.slice_keys(TABLES, PROJECTS, DAY, DAY), "COVERING INDEX"),
    "verdicts of slices": (lambda ledger: ledger.summaries.slice_verdicts(PROJECTS), "tidemark_slices_by_verdict"),
    "verdicts of batches": (lambda ledger: ledger.summaries.batch_verdicts(PROJECTS), "tidemark_batches_by_verdict"),
    "red slices": (lambda ledger: ledger.summaries.slice_faults(PROJECTS), "tidemark_slices_by_verdict (verdict="),
    "open batches": (lambda ledger: ledger.summaries.batch_faults(PROJECTS), "tidemark_batches_by_verdict (verdict="),
    "refused lines": (lambda ledger: ledger.summaries.refused_lines(PROJECTS), "tidemark_deliveries_refused"),
    "revisions": (lambda ledger: ledger.revisions.all(TABLES, PROJECTS), "tidemark_publications_by_final (was_final="),
    "what arrived since a change": (arrived_since, "tidemark_deliveries_by_day (source=? AND project_id=? AND arrival_date=?"),
    "built again": (lambda ledger: ledger.checkup.built_again(PROJECTS), "COVERING INDEX"),
    "sizes": (lambda ledger: ledger.summaries.arrived(None, PROJECTS, DAY, DAY), "tidemark_deliveries_by_day (source="),
    "batches of days": (lambda ledger: ledger.batches(PROJECTS, DAY, DAY), "(source=? AND project_id=? AND arrival_date>"),
    "deliveries of days": (lambda ledger: ledger.deliveries(Source.REGULAR, PROJECTS, DAY, DAY), "(source=? AND project_id=?"),
    "days of batches": (lambda ledger: ledger.batch_days(Source.REGULAR, PROJECTS, DAY, DAY), "(source=? AND project_id=?"),
    "batches of a day":
        (lambda ledger: ledger.batch_days_of(Source.REGULAR, "10001", [DAY]), "(source=? AND project_id=? AND event_date=?"),
    "slices of days": (lambda ledger: ledger.slices(TABLES[0], PROJECTS, [DAY]), "(table_name=? AND event_date>"),
    "publications of days": (lambda ledger: ledger.publications(TABLES[0], PROJECTS, [DAY]), "(table_name=? AND event_date=?"),
    "first day": (lambda ledger: ledger.first_day(TABLES[0]), "(table_name=?"),
    "differences from golden totals":
        (lambda ledger: ledger.golden.record({}, PROJECTS, DAY, DAY, None), "tidemark_notices_by_day (table_name=? AND"),
}  # fmt: skip
"""Question -> its call, and the index that answers it."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_about_years_reads_what_it_asks_for(ledger: Ledger, name: str) -> None:
    ask, index = QUESTIONS[name]
    plans = plans_of(ledger, ask)
    assert any(index in step for step in plans), plans
    assert of_whole_tables(plans) == []


def test_what_a_table_took_last_is_told_by_its_newest_publication_alone(ledger: Ledger) -> None:
    """Outcome: publications are walked from the newest number on, without sorting."""
    cause = Cause.of(CauseKind.DELIVERY)
    publication = PublicationRecord(TABLES[0], KEY, 7, 6, EMPTY, EMPTY, cause, "run", seconds=2)
    ledger.record(Changes(publications=[publication]), "run")
    plans = plans_of(ledger, lambda of: of.checkup.seconds())
    assert ledger.checkup.seconds() == {TABLES[0]: 2}
    assert "SCAN tidemark_publications" in plans
    assert not [step for step in plans if "TEMP B-TREE" in step]


def test_nearest_arrivals_are_the_same_on_every_database(postgres: str, tmp_path: Path) -> None:
    """Outcome: each day leads to the next and the last, of one source or either, beyond one statement's projects too."""
    far, many = DAY + timedelta(days=400), dict.fromkeys(map(str, range(20_000, 20_600)), DAY)
    batches = [
        BatchRecord(BatchKey(source, project, day), verdict, deliveries=number)
        for source, project, day, verdict, number in (
            (Source.REGULAR, "10001", DAY, BatchVerdict.ACCEPTED, 2),
            (Source.REGULAR, "10001", far, BatchVerdict.MOVED, 1),
            (Source.REGULAR, "10001", DAY + timedelta(days=1), BatchVerdict.REFUSED, 0),
            (Source.BACKFILL, "10001", DAY + timedelta(days=2), BatchVerdict.ACCEPTED, 1),
            (Source.REGULAR, "10002", far, BatchVerdict.ACCEPTED, 1),
        )
    ]
    for url in (f"sqlite:///{tmp_path}/ledger.db", postgres.replace("postgresql:", "postgresql+psycopg2:")):
        with closing(Ledger(url)) as ledger:
            ledger.record(Changes(batches=batches), "run")
            from_start = dict.fromkeys(PROJECTS, date.min)
            assert ledger.nearest_arrivals(from_start) == {"10001": DAY, "10002": far}
            assert ledger.nearest_arrivals({**many, "10001": DAY}) == {"10001": DAY + timedelta(days=2)}
            assert ledger.nearest_arrivals({"10001": DAY}, Source.REGULAR) == {"10001": far}
            assert ledger.nearest_arrivals({"10002": far}) == {}
            before = ledger.nearest_arrivals({"10001": far, "10002": far}, Source.REGULAR, is_before=True)
            assert before == {"10001": DAY}
            assert (ledger.event_days(TABLES), ledger.checkup.seconds()) == ([], {})
            assert ledger.revisions.all(TABLES, PROJECTS) == ledger.summaries.refused_lines(PROJECTS) == []
            red = [(fault.day, fault.verdict) for fault in ledger.summaries.batch_faults(PROJECTS)]
            assert red == [(DAY + timedelta(days=1), "refused"), (far, "moved")]
            assert sum(projects for *_, projects in ledger.summaries.batch_verdicts(PROJECTS)) == len(batches)
            assert ledger.checkup.built_again(PROJECTS)[0] == 0


def test_the_texts_of_slices_are_read_once_for_the_page_of_health(ledger: Ledger) -> None:
    """Outcome: one statement reads both figures of published and refused slices; only batches are read for first days."""
    settings = Settings(projects=PROJECTS)
    asked = plans_of(ledger, lambda of: read_health(of, settings, now=_NOON))
    scans = of_whole_tables(asked)
    assert len([step for step in scans if "tidemark_slices" in step]) == 1, scans
    assert not [step for step in scans if "tidemark_publications" in step or "tidemark_deliveries" in step], scans


TABLE, PROJECT = "refined/events", "10001"
KEY = Slice(DAY, PROJECT)
BATCH = BatchKey(Source.REGULAR, PROJECT, DAY)
AS_BUILT, BEFORE_3_32 = 32_766, 999
"""SQLite's limit of values in a statement; a distribution may raise it, and a test sets it back."""
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
