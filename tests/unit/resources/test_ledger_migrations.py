"""A ledger written by an older version is brought to the present schema with every row it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LedgerError
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.records import BatchDay, DeliveryRecord
from pipeline_assets.domain.slices import Digest, Slice, Source
from resources.ledger.changes import Changes
from resources.ledger.schema import (
    BATCHES,
    CUTS,
    DELIVERIES,
    GOLDEN_FAULTS,
    GOLDEN_RESULTS,
    METADATA,
    REBUILT_SLICES,
    RECEIVERS,
    RECOVERIES,
    SCHEMA_VERSION,
    SET_ASIDE,
)
from resources.ledger.store import Ledger
from resources.ledger.writing import LedgerWriting
from tests.support.ledgers import record_run

PROJECT = "10001"
DAY, BEFORE = date(2026, 2, 2), date(2026, 2, 1)
BATCH = BatchKey(Source.REGULAR, PROJECT, DAY)
GOOD, BROKEN = (f"10001/10001_2026-02-02_{hour}#1.json.gz" for hour in (1, 2))
RECOVERED = "10001-backfill/10001_2026-02-02_2#1.json.gz"
SNAPSHOT = 6012345678901234567

VERSION_1 = f"""
CREATE TABLE tidemark_schema (version INTEGER NOT NULL);
CREATE TABLE tidemark_heads (table_name VARCHAR NOT NULL PRIMARY KEY, snapshot_id BIGINT NOT NULL);
CREATE TABLE tidemark_deliveries (
    source VARCHAR NOT NULL, object_key VARCHAR NOT NULL, project_id VARCHAR NOT NULL, arrival_date DATE NOT NULL,
    etag VARCHAR NOT NULL, size_bytes BIGINT, sha256 VARCHAR, lines BIGINT, rows BIGINT, quarantined BIGINT,
    blank BIGINT, error VARCHAR, is_accepted BOOLEAN NOT NULL, run_id VARCHAR, recorded_at VARCHAR,
    PRIMARY KEY (source, object_key));
CREATE INDEX tidemark_deliveries_by_day ON tidemark_deliveries (source, project_id, arrival_date);
CREATE TABLE tidemark_batches (
    source VARCHAR NOT NULL, project_id VARCHAR NOT NULL, arrival_date DATE NOT NULL, verdict VARCHAR NOT NULL,
    reason VARCHAR, cure VARCHAR, input_state VARCHAR, deliveries INTEGER, hours_delivered INTEGER,
    hours_marked INTEGER, is_closed BOOLEAN, evaluations JSON, run_id VARCHAR, recorded_at VARCHAR,
    PRIMARY KEY (source, project_id, arrival_date));
CREATE TABLE tidemark_batch_days (
    source VARCHAR NOT NULL, project_id VARCHAR NOT NULL, arrival_date DATE NOT NULL, event_date DATE NOT NULL,
    digest VARCHAR NOT NULL, PRIMARY KEY (source, project_id, arrival_date, event_date));
CREATE INDEX tidemark_batch_days_by_event ON tidemark_batch_days (source, project_id, event_date);
CREATE TABLE tidemark_slices (
    table_name VARCHAR NOT NULL, event_date DATE NOT NULL, project_id VARCHAR NOT NULL, verdict VARCHAR NOT NULL,
    reason VARCHAR, cure VARCHAR, is_final BOOLEAN NOT NULL, digest VARCHAR NOT NULL, file_hash VARCHAR,
    input_state JSON, code_version VARCHAR, refused_state JSON, figures JSON, evaluations JSON,
    refused_evaluations JSON, run_id VARCHAR, recorded_at VARCHAR,
    PRIMARY KEY (table_name, event_date, project_id));
CREATE TABLE tidemark_publications (
    id {{id}}, table_name VARCHAR NOT NULL, event_date DATE NOT NULL, project_id VARCHAR NOT NULL,
    snapshot_id BIGINT NOT NULL, parent_id BIGINT, digest_before VARCHAR, digest_after VARCHAR, cause VARCHAR,
    accepted_reason VARCHAR, input_state JSON, code_version VARCHAR, run_id VARCHAR, seconds FLOAT,
    published_at VARCHAR, UNIQUE (table_name, event_date, project_id, snapshot_id));
CREATE TABLE tidemark_runs (
    run_id VARCHAR NOT NULL PRIMARY KEY, tables JSON, first_day DATE, last_day DATE, started_at VARCHAR,
    finished_at VARCHAR, verdicts JSON, snapshots JSON);
CREATE TABLE tidemark_exclusions (
    id {{id}}, object_key VARCHAR, etag VARCHAR, reason VARCHAR, excluded_at VARCHAR, lifted_at VARCHAR);
CREATE TABLE tidemark_holds (
    table_name VARCHAR NOT NULL, event_date DATE NOT NULL, project_id VARCHAR NOT NULL, reason VARCHAR,
    held_at VARCHAR, PRIMARY KEY (table_name, event_date, project_id));
INSERT INTO tidemark_schema VALUES (1);
INSERT INTO tidemark_heads VALUES ('raw/regular_events', {SNAPSHOT});
INSERT INTO tidemark_deliveries VALUES
    ('regular', '{GOOD}', '10001', '2026-02-02', '"e1"', 8000000000, 'ab', 12, 10, 1, 1, NULL, TRUE, 'run-1', 't1'),
    ('regular', '{BROKEN}', '10001', '2026-02-02', '"e2"', 7, NULL, 0, 0, 0, 0, 'truncated_gzip', FALSE, 'run-1', 't1'),
    ('backfill', '{RECOVERED}', '10001', '2026-02-02', '"it''s"', 9, 'cd', 5, 5, 0, 0, NULL, TRUE, 'run-2', NULL);
INSERT INTO tidemark_batches VALUES
    ('regular', '10001', '2026-02-02', 'refused', 'why', 'cure', 'state', 2, 2, 24, TRUE, '[]', 'run-1', 't1');
INSERT INTO tidemark_batch_days VALUES
    ('regular', '10001', '2026-02-02', '2026-02-01', '2:a:b'), ('regular', '10001', '2026-02-02', '2026-02-02', '8:c:d');
INSERT INTO tidemark_slices VALUES
    ('refined/events', '2026-02-02', '10001', 'unchanged', NULL, NULL, TRUE, '8:c:d', 'files', '{{"raw": "8:c:d"}}',
     'code', NULL, '{{"rows": 8}}', '[]', '[]', 'run-1', 't1');
INSERT INTO tidemark_publications
    (table_name, event_date, project_id, snapshot_id, parent_id, digest_before, digest_after, cause, run_id, seconds)
    VALUES ('refined/events', '2026-02-02', '10001', {SNAPSHOT}, 1, '0:0:0', '8:c:d', 'delivery', 'run-1', 1.5);
INSERT INTO tidemark_holds VALUES ('refined/events', '2026-02-01', '10001', 'rolled back', 't1');
"""
"""The tables as the first version created them, with a row of each kind."""


Rows = dict[str, list[str]]
"""Table -> its rows as text, in no order that matters."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger may be."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    found: str = request.getfixturevalue("postgres")
    return found.replace("postgresql:", "postgresql+psycopg2:")


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """A transaction beside the ledger's own."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def a_version_1_ledger(url: str) -> None:
    """Make it, in place of what was there."""
    if url.startswith("sqlite"):
        for path in Path(url.removeprefix("sqlite:///")).parent.glob("ledger.db*"):
            path.unlink()
    with connected(url) as connection:
        number = "INTEGER PRIMARY KEY"
        if connection.dialect.name == "postgresql":
            number = "SERIAL PRIMARY KEY"
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        for statement in VERSION_1.replace("{id}", number).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)


def rows_of(url: str, new: Mapping[str, Mapping[str, Any]] | None = None) -> Rows:
    """What the database holds, with `new` columns of tables added."""
    with connected(url) as connection:
        return {
            name: sorted(
                repr(sorted({**_absent_columns(name, new), **row, **(new or {}).get(name, {})}.items()))
                for row in connection.exec_driver_sql(f"SELECT * FROM {name}").mappings()
            )
            for name in sa.inspect(connection).get_table_names()
        }


def _absent_columns(name: str, new: Mapping[str, Any] | None) -> dict[str, None]:
    """Columns that the present schema has; a row of before has null in those it lacked."""
    return {} if new is None else dict.fromkeys(METADATA.tables[name].columns.keys())


def rows_in_present_schema(url: str) -> Rows:
    """What a version 1 ledger is to hold once it is opened."""
    new: dict[str, Mapping[str, Any]] = {"tidemark_holds": {"id": 1}, "tidemark_schema": {"version": SCHEMA_VERSION}}
    return {table.name: [] for table in METADATA.sorted_tables} | rows_of(url, new)


def open_ledger(url: str) -> None:
    """Open it as the first question does."""
    with closing(Ledger(url)) as ledger:
        assert ledger.engine


def test_an_older_ledger_keeps_every_row_and_opening_it_again_changes_nothing(url: str) -> None:
    a_version_1_ledger(url)
    expected = rows_in_present_schema(url)
    for _ in range(2):
        open_ledger(url)
        assert rows_of(url) == expected


def test_an_older_ledger_gets_the_columns_keys_and_indexes_of_a_new_one(url: str) -> None:
    a_version_1_ledger(url)
    with closing(Ledger(url)) as ledger:
        inspector = sa.inspect(ledger.engine)
        for table in METADATA.sorted_tables:
            assert {column["name"] for column in inspector.get_columns(table.name)} == set(table.columns.keys())
            key = inspector.get_pk_constraint(table.name)["constrained_columns"]
            assert set(key) == {column.name for column in table.primary_key}
            assert {index.name for index in table.indexes} <= {one["name"] for one in inspector.get_indexes(table.name)}


def test_an_older_ledger_answers_and_takes_rows_as_a_new_one(url: str) -> None:
    """A refused version now stands beside the accepted one, and what was recorded is read with its types."""
    a_version_1_ledger(url)
    with closing(Ledger(url)) as ledger:
        accepted = ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY)
        assert accepted == {
            GOOD: DeliveryRecord(BATCH, GOOD, '"e1"', 8_000_000_000, "ab", 12, 10, 1, 1, None, is_accepted=True)
        }
        refused = ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY, is_accepted=False)
        assert refused[BROKEN].error == "truncated_gzip"
        recovered = ledger.deliveries(Source.BACKFILL, [PROJECT], DAY, DAY)
        assert recovered[RECOVERED].etag == '"it\'s"'
        days = {BEFORE: BatchDay(Digest(2, 10, 11, version=1)), DAY: BatchDay(Digest(8, 12, 13, version=1))}
        assert ledger.batch_days(Source.REGULAR, [PROJECT], DAY, DAY) == {BATCH: days}
        assert ledger.slices("refined/events", [PROJECT])[Slice(DAY, PROJECT)].is_final
        assert [publication.snapshot_id for publication in ledger.publications()] == [SNAPSHOT]
        assert ledger.interventions.holds("refined/events", [PROJECT]) == {Slice(BEFORE, PROJECT): "rolled back"}
        # Runs of before tell nothing of skew.
        record_run(ledger, "run-0", finished_at="2026-02-02T01:00:00+00:00")
        record_run(ledger, "run-1", finished_at="2026-02-03T01:00:00+00:00", skew=[{"step": "read"}])
        assert ledger.skew_of_runs(2) == {"run-1": [{"step": "read"}], "run-0": []}

        publication = ledger.publications()[0]
        ledger.record(Changes(publications=[replace(publication, parent_id=7), publication]), "run-3")
        assert [record.parent_id for record in ledger.publications()] == [publication.parent_id, 7]

        broken_again = replace(accepted[GOOD], etag='"e3"', is_accepted=False, code_version="new")
        ledger.record(Changes(deliveries=[broken_again]), "run-3")
        assert ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY) == accepted
        found = ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY, is_accepted=False)
        assert found == {**refused, GOOD: broken_again}


def test_a_ledger_of_version_6_gets_what_came_since_and_keeps_its_rows(url: str) -> None:
    """Columns of tables that it has, and tables that it lacks."""
    new_tables = [SET_ASIDE, RECOVERIES]
    new_columns = {
        RECEIVERS: ("refused_body", "refusals"),
        DELIVERIES: ("line_reasons",),
        REBUILT_SLICES: ("reported",),
    }
    open_ledger(url)
    with connected(url) as connection:
        connection.execute(RECEIVERS.insert(), {"id": "r", "place": "https://hook.example/***", "sent_number": 3})
    expected = rows_of(url)
    with connected(url) as connection:
        for table in new_tables:
            connection.exec_driver_sql(f"DROP TABLE {table.name}")
        for table, columns in new_columns.items():
            for column in columns:
                connection.exec_driver_sql(f"ALTER TABLE {table.name} DROP COLUMN {column}")
        connection.exec_driver_sql("UPDATE tidemark_schema SET version = 6")
    open_ledger(url)
    assert rows_of(url) == expected


def test_a_ledger_of_version_8_gets_what_came_since_and_keeps_its_rows(url: str) -> None:
    """Tables that it lacks."""
    open_ledger(url)
    with connected(url) as connection:
        connection.execute(RECEIVERS.insert(), {"id": "r", "place": "https://hook.example/***", "sent_number": 3})
    expected = rows_of(url)
    with connected(url) as connection:
        for table in (GOLDEN_FAULTS, GOLDEN_RESULTS):
            connection.exec_driver_sql(f"DROP TABLE {table.name}")
        connection.exec_driver_sql("UPDATE tidemark_schema SET version = 8")
    open_ledger(url)
    assert rows_of(url) == expected


def test_a_ledger_of_version_9_gets_the_indexes_that_came_since_and_keeps_its_rows(url: str) -> None:
    new = (
        "deliveries_refused",
        "batches_by_verdict",
        "slices_by_verdict",
        "publications_by_final",
    )
    open_ledger(url)
    with connected(url) as connection:
        record = {"source": "regular", "project_id": PROJECT, "arrival_date": DAY, "verdict": "accepted"}
        connection.execute(BATCHES.insert(), record)
    expected = rows_of(url)
    with connected(url) as connection:
        for name in new:
            connection.exec_driver_sql(f"DROP INDEX tidemark_{name}")
        connection.exec_driver_sql("UPDATE tidemark_schema SET version = 9")
    open_ledger(url)
    assert rows_of(url) == expected
    with connected(url) as connection:
        inspector = sa.inspect(connection)
        found = {one["name"] for table in METADATA.tables for one in inspector.get_indexes(table)}
    assert {f"tidemark_{name}" for name in new} <= found


@pytest.mark.parametrize("version", [6, 7, 8])
def test_what_a_recent_version_loaded_has_no_sketch_and_the_next_load_gives_it_one(url: str, version: int) -> None:
    a_version_1_ledger(url)
    open_ledger(url)
    with connected(url) as connection:
        connection.exec_driver_sql("ALTER TABLE tidemark_batch_days DROP COLUMN lateness")
        connection.exec_driver_sql(f"UPDATE tidemark_schema SET version = {version}")
    sketch = LatenessSketch({7: 8}, 0, 20, 21)
    with closing(Ledger(url)) as ledger:
        before = ledger.batch_days(Source.REGULAR, [PROJECT], DAY, DAY)
        assert [found for *_, found in ledger.arrival_summaries.lateness(Source.REGULAR, [PROJECT], DAY, DAY)] == [
            None,
            None,
        ]
        measured = {day: replace(part, lateness=sketch) for day, part in before[BATCH].items()}
        ledger.record(Changes(batch_days={BATCH: measured}), "run-3")
        assert ledger.batch_days(Source.REGULAR, [PROJECT], DAY, DAY) == before
        assert [found for *_, found in ledger.arrival_summaries.lateness(Source.REGULAR, [PROJECT], DAY, DAY)] == [
            sketch
        ] * 2


def test_a_ledger_of_version_8_keeps_its_rows_and_its_next_publish_is_the_first_cut(url: str) -> None:
    a_version_1_ledger(url)
    open_ledger(url)
    expected = rows_of(url)
    with connected(url) as connection:
        connection.exec_driver_sql(f"DROP TABLE {CUTS.name}")
        connection.exec_driver_sql("UPDATE tidemark_schema SET version = 8")
    open_ledger(url)
    assert rows_of(url) == expected
    with closing(Ledger(url)) as ledger:
        for _ in range(2):
            with ledger.transaction() as connection:
                assert LedgerWriting(connection).record_cut("run-9", {}) == {"raw/regular_events": SNAPSHOT}
    with connected(url) as connection:
        cuts = connection.execute(sa.select(CUTS.c.number, CUTS.c.run_id, CUTS.c.snapshots)).all()
        names = {one["name"] for one in sa.inspect(connection).get_indexes(CUTS.name)}
    assert cuts == [(1, "run-9", {"raw/regular_events": str(SNAPSHOT)})]
    assert names == {index.name for index in CUTS.indexes}


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_before_write(number: int) -> Iterator[None]:
    """Ends the process, as it were, before its so manyth writing statement."""
    left = number

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal left
        if statement.lstrip().startswith(("CREATE", "DROP", "ALTER", "INSERT", "UPDATE", "DELETE")):
            left -= 1
            if left < 0:
                raise Killed

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)


def test_a_migration_that_is_killed_loses_nothing(url: str) -> None:
    """Scenario: the process dies before the k-th statement of the migration, for every k. Outcome: opened again, the
    ledger is of the present version and holds every row."""
    a_version_1_ledger(url)
    expected = rows_in_present_schema(url)
    lost = []
    for number in range(50):
        a_version_1_ledger(url)
        try:
            with killed_before_write(number):
                open_ledger(url)
        except Killed:
            pass
        else:
            break
        try:
            open_ledger(url)
        except LedgerError as error:
            lost.append(f"{number}: {error}")
            continue
        found = rows_of(url)
        lost += [f"{number}: {name}" for name in expected if found.get(name) != expected[name]]
    assert number > 3
    assert lost == []


def test_a_ledger_newer_than_the_code_is_refused_and_left_alone(url: str) -> None:
    open_ledger(url)
    with connected(url) as connection:
        connection.exec_driver_sql(f"UPDATE tidemark_schema SET version = {SCHEMA_VERSION + 1}")
        connection.exec_driver_sql("DROP TABLE tidemark_holds")
    before = rows_of(url)
    with pytest.raises(LedgerError) as refusal:
        open_ledger(url)
    assert refusal.value.subject == sa.make_url(url).render_as_string(hide_password=True)
    versions = f"(schema {SCHEMA_VERSION + 1}; this one knows {SCHEMA_VERSION})"
    assert refusal.value.reason == f"was written by a newer Tidemark {versions}, and nothing was touched"
    assert "pip install --upgrade tidemark-pipeline" in refusal.value.hint
    assert rows_of(url) == before


def test_a_new_ledger_has_the_present_version(url: str) -> None:
    open_ledger(url)
    with connected(url) as connection:
        assert connection.exec_driver_sql("SELECT version FROM tidemark_schema").all() == [(SCHEMA_VERSION,)]
