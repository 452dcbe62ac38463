"""A publish without Spark: catalog pointers, conditions on records, names of published snapshots, cuts."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain import errors
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import DeliveryRecord, Exclusion, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from pipeline_assets.tables.aggregates import ACTIVE_USERS, EVENT_COUNTS
from pipeline_assets.tables.events import QUARANTINE, REFINED_EVENTS
from pipeline_assets.tables.table import Table
from resources import publishing
from resources.iceberg import slice_changes
from resources.iceberg.catalog_at_rest import PUBLISHED_WITH
from resources.iceberg.metadata import LiveFiles
from resources.ledger.changes import BatchAsRead, Changes, require_inputs, require_not_held
from resources.ledger.schema import CUTS
from resources.ledger.store import Ledger
from resources.ledger.writing import LedgerWriting

CATALOG = "lake"
TABLES = (EVENT_COUNTS, ACTIVE_USERS)
DAY = date(2026, 2, 2)
KEY, NEXT, FAR = (Slice(DAY + timedelta(days=number), "10001") for number in (0, 1, 9))
REFINED, COUNTS, RAW = REFINED_EVENTS.key, EVENT_COUNTS.key, "raw/regular_events"
MINE = SliceRecord(REFINED, KEY, Verdict.PUBLISHED, digest=Digest(1, 1, 1), file_hash="mine")
_ICEBERG_TABLES = """
CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
iceberg_type VARCHAR(5), PRIMARY KEY (catalog_name, table_namespace, table_name))
"""
"""Iceberg's JdbcCatalog tables; tests/spark/test_iceberg_api.py compares."""


@pytest.fixture
def catalog(any_ledger: Ledger) -> Ledger:
    """A ledger in the database of a catalog that knows both tables, and a namesake in another catalog."""
    with any_ledger.transaction() as connection:
        connection.exec_driver_sql(_ICEBERG_TABLES)
        for name, table in [(CATALOG, one) for one in TABLES] + [("other", EVENT_COUNTS)]:
            namespace, _, own = table.identifier.rpartition(".")
            insert = sa.text("INSERT INTO iceberg_tables VALUES (:c, :n, :t, '1.json', '0.json', 'TABLE')")
            connection.execute(insert, {"c": name, "n": namespace, "t": own})
    return any_ledger


def _rows(ledger: Ledger) -> list[Any]:
    with ledger.transaction() as connection:
        query = "SELECT * FROM iceberg_tables ORDER BY catalog_name, table_namespace, table_name"
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def _prepared(table: Table, before: str = "1.json", after: str = "2.json") -> slice_changes.Prepared:
    return slice_changes.Prepared(table, slice_changes.Published(2, 1, {}), before, after)


def test_pointers_are_swapped_together_or_stay(catalog: Ledger) -> None:
    """Outcome: this catalog's rows name both files; a pointer elsewhere or a missing row is a conflict without a change."""
    with catalog.transaction() as connection:
        assert slice_changes.lock_pointers(connection, CATALOG, TABLES) == {table.key: "1.json" for table in TABLES}
        assert slice_changes.lock_pointers(connection, CATALOG, ()) == {}
        assert slice_changes.lock_pointers(connection, "other", TABLES) == {EVENT_COUNTS.key: "1.json"}
        slice_changes.swap_pointers(connection, CATALOG, [_prepared(table) for table in TABLES])
    rows = _rows(catalog)
    assert [row[3:5] for row in rows if row[0] == CATALOG] == [("2.json", "1.json")] * 2
    assert [row[3:5] for row in rows if row[0] == "other"] == [("1.json", "0.json")]

    moves = [_prepared(TABLES[0], "2.json", "3.json"), _prepared(TABLES[1], "1.json", "3.json")]
    for name in (CATALOG, "unknown"):
        with (
            pytest.raises(errors.PublishConflictError, match="another writer moved its pointer") as conflict,
            catalog.transaction() as connection,
        ):
            slice_changes.swap_pointers(connection, name, moves)
        assert conflict.value.subject == moves[name == CATALOG].table.key
        assert _rows(catalog) == rows


def test_another_writer_waits_for_the_end_of_the_transaction(catalog: Ledger) -> None:
    """Outcome: a second connection's comparison waits for the transaction, and finds its base gone."""
    moved: list[int] = []
    is_begun, update = threading.Event(), "UPDATE iceberg_tables SET metadata_location = 'theirs'"
    statement = sa.text(f"{update} WHERE catalog_name = 'lake' AND metadata_location = '1.json'")
    options: dict[str, Any] = {"connect_args": {"timeout": 30}} if "sqlite" in catalog.url else {}

    def other() -> None:
        engine = sa.create_engine(catalog.engine.url, **options)
        with engine.connect() as connection:
            is_begun.set()
            moved.append(connection.execute(statement).rowcount)
            connection.commit()
        engine.dispose()

    writer = threading.Thread(target=other)
    with catalog.transaction() as connection:
        slice_changes.lock_pointers(connection, CATALOG, TABLES)
        writer.start()
        assert is_begun.wait(30)
        # It cannot end however long one waits; a short while lets it begin to wait.
        writer.join(0.2)
        assert moved == []
        slice_changes.swap_pointers(connection, CATALOG, [_prepared(table) for table in TABLES])
        assert moved == []
    writer.join(30)
    assert moved == [0]
    assert [row[3] for row in _rows(catalog) if row[0] == CATALOG] == ["2.json"] * 2


def test_a_transaction_that_cannot_begin_is_told_as_ours(ledger: Ledger) -> None:
    with pytest.raises(errors.LedgerUnavailableError, match="out of reach"), ledger.transaction() as connection:
        slice_changes.lock_pointers(connection, CATALOG, TABLES)


PG = "postgresql://me:secret@host:5432/lake"


@pytest.mark.parametrize(("one", "other", "is_shared"), [
    (PG, PG, True),
    (PG, "postgresql+psycopg2://me:secret@host/lake", True),
    (PG, "postgresql://me:other@host:5432/lake", True),
    (PG, "postgresql://somebody:secret@host:5432/lake", False),
    ("postgresql:///lake", "postgresql://localhost:5432/lake", True),
    (PG, PG.replace("5432", "5433"), False),
    (PG, PG.replace("host", "standby"), False),
    (PG, f"{PG}2", False),
    (PG, f"{PG}?options=-csearch_path%3Dledger", False),
    (f"{PG}?options=-csearch_path%3Dx", f"{PG}?options=-csearch_path%3Dx", True),
    (f"{PG}?options=-csearch_path%3Dx", f"{PG}?options=-csearch_path%3Dy", False),
    (PG, "sqlite:////lake", False),
    ("sqlite:///a.db", "sqlite:///./b/../a.db", True),
    ("sqlite:///a.db", "sqlite:///b.db", False),
    ("sqlite://", "sqlite://", False),
    ("sqlite:///:memory:", "sqlite:///:memory:", False),
], ids=str)  # fmt: skip
def test_whether_catalog_and_ledger_share_a_database(one: str, other: str, is_shared: bool) -> None:
    assert slice_changes.share_a_database(one, other) is is_shared
    assert slice_changes.share_a_database(other, one) is is_shared


def test_a_link_to_a_database_is_the_database(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "catalog.db").touch()
    (tmp_path / "named.db").symlink_to(tmp_path / "real" / "catalog.db")
    urls = [f"sqlite:///{tmp_path}/{name}" for name in ("real/catalog.db", "link/catalog.db", "named.db")]
    assert all(slice_changes.share_a_database(one, other) for one in urls for other in urls)


def test_the_promise_follows_from_the_places(tmp_path: Path) -> None:
    settings = Settings(catalog_url=f"sqlite:///{tmp_path}/catalog.db")
    assert publishing.promise_of(settings) is publishing.Promise.ONE_TRANSACTION
    apart = settings.model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db"})
    assert publishing.promise_of(apart) is publishing.Promise.TABLE_BY_TABLE
    assert "TIDEMARK_LEDGER_URL" in publishing.promise_of(apart).sentence
    assert "one transaction" in publishing.promise_of(settings).sentence


def _publication(snapshot_id: int, parent_id: int, pins: dict[str, int] | None) -> PublicationRecord:
    cause = Cause.of(CauseKind.DELIVERY)
    return PublicationRecord(COUNTS, KEY, snapshot_id, parent_id, EMPTY, MINE.digest, cause, "own", pins=pins)


def test_records_name_what_readers_find() -> None:
    """Outcome: snapshots and parent are main's; pins change where they name a staged snapshot of a published table."""
    published = {COUNTS: slice_changes.Published(50, 40, {}), REFINED: slice_changes.Published(51, 41, {})}
    stand_ins = {COUNTS: frozenset({5}), REFINED: frozenset({6, 7}), RAW: frozenset({8})}
    pins = [{REFINED: 6, RAW: 8}, {REFINED: 7, COUNTS: 4}, {REFINED: 3}, None]
    step = Changes(slices=[MINE], publications=[_publication(5, 4, one) for one in pins], head=(COUNTS, 5, 4))
    named = publishing.naming_published(step, COUNTS, published, stand_ins)
    assert [(one.snapshot_id, one.parent_id) for one in named.publications] == [(50, 40)] * 4
    renamed = [{REFINED: 51, RAW: 8}, {REFINED: 51, COUNTS: 4}, {REFINED: 3}, None]
    assert [one.pins for one in named.publications] == renamed
    assert (named.head, named.slices) == ((COUNTS, 50, 40), step.slices)

    # A step without a publish of its own keeps snapshots and head; its inputs may be published.
    apart = publishing.naming_published(step, "aggregates/daily_revenue", published, stand_ins)
    assert (apart.head, [(one.snapshot_id, one.parent_id) for one in apart.publications]) == (step.head, [(5, 4)] * 4)
    assert (apart.publications[0].pins or {})[REFINED] == 51
    assert publishing.naming_published(replace(step, head=None), COUNTS, published, stand_ins).head is None


def test_a_cut_is_kept_for_each_publish_that_moved_a_table(ledger: Ledger) -> None:
    """Scenario: heads move, stay, are doubted. Outcome: a row for each new set of main's snapshots, in order, with the
    run; also for a doubted head and for quarantine, which has none; exact to the last digit."""
    large = 6_012_345_678_901_234_567

    def cut(run_id: str, *heads: tuple[str, int, int | None], quarantine: int | None = None) -> dict[str, int]:
        published = {name: number for name, number, _ in heads}
        published |= {QUARANTINE.key: quarantine} if quarantine is not None else {}
        with ledger.transaction() as connection:
            writing = LedgerWriting(connection)
            for head in heads:
                writing.record(Changes(head=head), run_id)
            return writing.record_cut(run_id, published)

    assert cut("first", (RAW, large, None), (REFINED, 2, None)) == {RAW: large, REFINED: 2}
    assert cut("nothing moved") == {RAW: large, REFINED: 2}
    # Another writer committed in between: the ledger doubts its head, and main shows the publish on top.
    assert cut("on theirs", (REFINED, 9, 8)) == {RAW: large, REFINED: 9}
    assert ledger.head(REFINED) == Head(2, is_trusted=False)
    assert cut("raw alone", (RAW, large + 1, large), quarantine=5) == {RAW: large + 1, REFINED: 9, QUARANTINE.key: 5}
    assert cut("second", (REFINED, 10, None)) == {RAW: large + 1, REFINED: 10, QUARANTINE.key: 5}
    with ledger.transaction() as connection:
        rows = connection.execute(sa.select(CUTS.c.run_id, CUTS.c.snapshots).order_by(CUTS.c.number)).all()
    assert [(run, snapshots.get(RAW), snapshots[REFINED]) for run, snapshots in rows] == [
        ("first", str(large), "2"),
        ("on theirs", str(large), "9"),
        ("raw alone", str(large + 1), "9"),
        ("second", str(large + 1), "10"),
    ]


class Recorded:
    """A companion of a publish that records its calls and may refuse."""

    def __init__(self, told: list[str]) -> None:
        self.told, self.is_taken = told, False

    def require(self, _: Connection) -> None:
        self.told.append("asked")
        if self.is_taken:
            raise errors.TakenOverError("rebuild 1", "another run works on it by now", "Look")

    def write(self, _: Connection) -> None:
        self.told.append("written")


class Changing:
    """A fake lakehouse that reports commits alone."""

    catalog_name = CATALOG

    def __init__(self, told: list[str]) -> None:
        self.told, self.changes, self.branches = told, self, SimpleNamespace(drop=lambda *_: None)

    def prepare(self, change: Any, _: str) -> slice_changes.Prepared:
        return _prepared(change.table)

    def discard(self, _: slice_changes.Prepared) -> None:
        self.told.append("discarded")

    def next_state(self, change: Any, _: str) -> Any:
        return SimpleNamespace(table=change.table, published=slice_changes.Published(2, 1, {}))

    def require_restorable(self, _: Any) -> None:
        pass

    def commit_together(self, states: Any) -> None:
        self.told += [f"committed {state.table.key}" for state in states]

    def commit(self, change: Any, *_: str) -> slice_changes.Published:
        self.told.append(f"committed {change.table.key}")
        return slice_changes.Published(2, 1, {})


def _request(alongside: Recorded | None = None, **more: Any) -> publishing.PublishRequest:
    former = LiveFiles({"former.parquet": None})
    changes = [slice_changes.SliceChange(table, 1, frozenset({KEY}), LiveFiles(), former) for table in TABLES]
    steps = [(table.key, Changes(slices=[replace(MINE, table=table.key)])) for table in TABLES]
    return publishing.PublishRequest("own", "own", changes, steps, alongside=alongside, **more)


def test_snapshots_that_are_shown_together_name_each_other_and_no_table_without_one() -> None:
    """An empty change makes no snapshot, so its table would look like one that lacks it."""
    request = _request()
    same = replace(request.tables[0], files=LiveFiles({"a": None}), former=LiveFiles({"a": None}))
    together = replace(request, tables=[same, *request.tables[1:]]).together
    assert {change.summary[PUBLISHED_WITH] for change in together.tables} == {TABLES[1].key}
    assert {one.summary[PUBLISHED_WITH] for one in request.together.tables} == {",".join(sorted(t.key for t in TABLES))}
    ids = {change.summary["tidemark.publish-id"] for change in together.tables}
    assert len(ids) == 1
    assert ids.isdisjoint(change.summary["tidemark.publish-id"] for change in request.together.tables)


COMMITS = [f"committed {table.key}" for table in TABLES]


@pytest.mark.parametrize(("publisher", "expected", "refused"), [
    (publishing.OneTransaction, ["asked", "written"], ["discarded"] * 2),
    (publishing.TablesTogether, ["asked", "written", *COMMITS], []),
    (publishing.TableByTable, ["asked", *COMMITS, "written"], []),
])  # fmt: skip
@pytest.mark.parametrize("any_ledger", ["sqlite"], indirect=True)
def test_what_else_a_publish_is_about_is_asked_before_a_table_changes(
    catalog: Ledger, publisher: Any, expected: list[str], refused: list[str]
) -> None:
    """Outcome: a companion that another run took over prevents publish and record; otherwise it is written last."""
    told: list[str] = []
    alongside = Recorded(told)
    alongside.is_taken = True
    with pytest.raises(errors.TakenOverError):
        publisher(Changing(told), catalog).publish(_request(alongside))
    assert told == ["asked", *refused]
    assert catalog.slices(COUNTS, None) == {}

    told.clear()
    alongside.is_taken = False
    publisher(Changing(told), catalog).publish(_request(alongside))
    assert told == expected
    assert catalog.slices(COUNTS, None)[KEY].file_hash == "mine"


@pytest.mark.parametrize("publisher", [publishing.OneTransaction, publishing.TablesTogether, publishing.TableByTable])
@pytest.mark.parametrize("any_ledger", ["sqlite"], indirect=True)
def test_what_moved_or_was_decided_meanwhile_changes_no_table(catalog: Ledger, publisher: Any) -> None:
    """Outcome: a moved input and an exclusion are conflicts before any table changes; the publish's own input is none."""
    told: list[str] = []
    with pytest.raises(errors.SliceConflictError, match="while slices were built from it"):
        publisher(Changing(told), catalog).publish(_request(rests_on={(REFINED, KEY): MINE.digest}))
    batch = BatchKey(Source.REGULAR, "10001", DAY)
    catalog.interventions.exclude([Exclusion(batch, "object", "e", "sha", "a test account")], "person")
    delivery = DeliveryRecord(batch, "object", "e", 1, "sha", 1, 1, 0, 0, None, is_accepted=True)
    loaded = Changes(deliveries=[delivery], read_batches={batch: BatchAsRead({}, None)})
    with pytest.raises(errors.SliceConflictError, match="an operator excluded object meanwhile"):
        publisher(Changing(told), catalog).publish(replace(_request(), steps=[*_request().steps, (COUNTS, loaded)]))
    assert [one for one in told if one != "discarded"] == []
    publisher(Changing(told), catalog).publish(_request(rests_on={(COUNTS, KEY): MINE.digest}))
    assert catalog.slices(COUNTS, None)[KEY].file_hash == "mine"


def _conflict(ledger: Ledger, ask: Any) -> frozenset[tuple[str, Slice]]:
    """The slices of the conflict, none where it passes. Refused publishes write nothing."""
    try:
        with ledger.transaction() as connection:
            ask(connection)
    except errors.SliceConflictError as conflict:
        return conflict.slices if str(min(conflict.slices)[1]) in conflict.subject else frozenset()
    return frozenset()


def test_inputs_must_be_what_slices_were_built_from(ledger: Ledger) -> None:
    ledger.record(Changes(slices=[MINE, replace(MINE, key=NEXT, digest=Digest(2, 2, 2))]), "own")

    def lost(**rests_on: tuple[Slice, Digest]) -> frozenset[tuple[str, Slice]]:
        inputs = {(REFINED, key): digest for key, digest in rests_on.values()}
        return _conflict(ledger, lambda connection: require_inputs(connection, inputs))

    assert lost() == frozenset()
    assert lost(a=(KEY, MINE.digest), b=(NEXT, Digest(2, 2, 2)), c=(FAR, EMPTY)) == frozenset()
    assert lost(a=(KEY, MINE.digest), b=(NEXT, Digest(3, 3, 3))) == {(REFINED, NEXT)}
    assert lost(a=(KEY, EMPTY), b=(FAR, MINE.digest)) == {(REFINED, KEY), (REFINED, FAR)}
    with pytest.raises(errors.SliceConflictError, match="run own published it"), ledger.transaction() as connection:
        require_inputs(connection, {(REFINED, KEY): EMPTY})
    with pytest.raises(errors.SliceConflictError, match="another run published it"), ledger.transaction() as connection:
        require_inputs(connection, {(REFINED, FAR): MINE.digest})


def test_nothing_is_published_that_a_person_holds(ledger: Ledger) -> None:
    ledger.interventions.hold({REFINED: [KEY, FAR]}, "why", "person")

    def lost(*slices: tuple[str, Slice]) -> frozenset[tuple[str, Slice]]:
        return _conflict(ledger, lambda connection: require_not_held(connection, slices))

    assert lost((COUNTS, KEY), (REFINED, NEXT)) == frozenset()
    assert lost((REFINED, KEY), (REFINED, NEXT), (COUNTS, KEY)) == {(REFINED, KEY)}
    ledger.interventions.release({REFINED: [KEY]}, "done", "person")
    assert lost((REFINED, KEY), (REFINED, FAR)) == {(REFINED, FAR)}


def test_a_derived_slice_that_another_run_published_is_a_conflict(ledger: Ledger) -> None:
    """Outcome: another run's row of a derived slice, or a hold, is a conflict; a row of raw is guarded by its batches."""
    read = replace(MINE, file_hash="next", digest=Digest(4, 4, 4))
    both = Changes(slices=[replace(read, key=NEXT), replace(read, read_hash="mine")])

    def strictly(changes: Changes, run_id: str) -> None:
        with ledger.transaction() as connection:
            LedgerWriting(connection).record(changes, run_id, is_strict=True)

    def lost(changes: Changes) -> frozenset[tuple[str, Slice]]:
        return _conflict(ledger, lambda connection: LedgerWriting(connection).record(changes, "own", is_strict=True))

    ledger.record(Changes(slices=[MINE]), "former")
    assert lost(both) == frozenset()
    assert {key: one.file_hash for key, one in ledger.slices(REFINED, None).items()} == {KEY: "next", NEXT: "next"}

    late = Changes(slices=[replace(read, key=FAR), replace(MINE, read_hash="mine")])
    assert lost(late) == {(REFINED, KEY)}
    with pytest.raises(errors.SliceConflictError, match="run own published it since it was read"):
        strictly(late, "late")
    assert FAR not in ledger.slices(REFINED, None)
    # Maintenance joins files: the row stays its publisher's, which did nothing since.
    ledger.record(Changes(rewritten={(REFINED, KEY): ("next", "joined")}), "maintenance")
    for stale in (replace(read, read_hash="next"), replace(read, read_hash="next", verdict=Verdict.REFUSED)):
        with pytest.raises(errors.SliceConflictError, match="maintenance wrote its files anew since it was read"):
            strictly(Changes(slices=[stale]), "late")
    ledger.record(Changes(rewritten={(REFINED, KEY): ("joined", "next")}), "maintenance")
    ledger.record(Changes(slices=[replace(MINE, table=RAW, file_hash="theirs")]), "other")
    assert lost(Changes(slices=[replace(MINE, table=RAW)])) == frozenset()
    assert ledger.slices(RAW, None)[KEY].file_hash == "theirs"

    waiting = replace(read, verdict=Verdict.WAITING, read_hash="next")
    ledger.interventions.hold({REFINED: [KEY]}, "why", "person")
    assert lost(Changes(slices=[waiting])) == {(REFINED, KEY)}
    assert ledger.slices(REFINED, None)[KEY].verdict is Verdict.PUBLISHED
    assert lost(Changes(slices=[replace(waiting, verdict=Verdict.HELD)])) == frozenset()
