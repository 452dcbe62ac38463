"""A publish of several tables and the ledger's rows: all of it or nothing, whoever else writes and wherever it ends."""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.errors import LakehouseError, LedgerUnavailableError, SliceConflictError
from pipeline_assets.domain.records import Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from pipeline_assets.tables.aggregates import ACTIVE_USERS, EVENT_COUNTS
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, watch
from resources.iceberg.catalog_at_rest import PUBLISHED_WITH
from resources.iceberg.lake_identity import attachable
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.metadata import JavaTables, LiveFiles
from resources.iceberg.slice_changes import SliceChange
from resources.iceberg.upkeep import Upkeep
from resources.ledger.changes import Changes
from resources.ledger.schema import RUNS
from resources.ledger.store import Ledger
from resources.publishing import Promise, PublishRequest, promise_of, publisher_of
from resources.spark.session import configure_catalog
from tests.support.builders import PROJECT

pytestmark = pytest.mark.slow
BOTH = (EVENT_COUNTS, ACTIVE_USERS)
_VALUES: Mapping[str, Any] = {"string": "a", "bigint": 1, "int": 1, "double": 1.0, "boolean": True}


class Stop(Exception):  # noqa: N818 - no error, but an end
    """Raised at a point of the publish."""


@dataclass
class Lake:
    """Two tables and a ledger in one database; each test uses its own days."""

    settings: Settings
    lakehouse: Lakehouse
    ledger: Ledger
    days: Iterator[date] = field(
        default_factory=lambda: (date(2026, 1, 1) + timedelta(days=number) for number in itertools.count())
    )

    def a_slice(self) -> Slice:
        return Slice(next(self.days), PROJECT)

    def staged(self, table: Table, key: Slice, rows: int, *, base_id: int | None = None) -> tuple[SliceChange, int]:
        """Stage so many rows in a slice; the change and its snapshot."""
        lakehouse, spark = self.lakehouse, self.lakehouse.spark
        values = {column.name: _VALUES.get(column.type) for column in table.columns}
        values |= {table.day_column: key.event_date, "project_id": key.project_id}
        schema = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
        frame = spark.createDataFrame([tuple(values.values())] * rows, schema).coalesce(1)
        staged = lakehouse.stage(
            table,
            lakehouse.head(table) if base_id is None else base_id,
            f"attempt_{uuid.uuid4().hex[:8]}",
            lambda target: lakehouse.replace_slices(table, target, [key], frame),
        )
        change = lakehouse.changes.of(table, staged.base_id, staged.snapshot_id, [key], [staged.branch])
        return change, staged.snapshot_id

    def request(self, key: Slice, rows: int, **more: Any) -> PublishRequest:
        """So many rows in this slice of both tables, staged and recorded as a load does."""
        changes, steps, stand_ins = [], [], {}
        pins: dict[str, int] = {}
        for table in BOTH:
            change, snapshot_id = self.staged(table, key, rows)
            step = self.step(change, snapshot_id, rows, pins)
            changes.append(change)
            steps.append((table.key, step))
            stand_ins[table.key] = frozenset({snapshot_id})
            pins = {table.key: snapshot_id}
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        return PublishRequest(run_id, run_id, changes, steps, stand_ins, **more)

    def step(self, change: SliceChange, snapshot_id: int, rows: int, pins: Mapping[str, int]) -> Changes:
        table, (key,) = change.table.key, change.slices
        before = self.ledger.slices(table, None).get(key)
        digest = Digest(rows, rows, rows)
        record = SliceRecord(
            table,
            key,
            Verdict.PUBLISHED,
            digest=digest,
            file_hash=change.files_by_slice[key].file_hash,
            read_hash=before.file_hash if before is not None else None,
        )
        published = PublicationRecord(
            table,
            key,
            snapshot_id,
            change.base_id,
            before.digest if before is not None else EMPTY,
            digest,
            Cause.of(CauseKind.DELIVERY),
            "run",
            pins=dict(pins),
        )
        return Changes(slices=[record], publications=[published], head=(table, snapshot_id, change.base_id))

    def publish(self, request: PublishRequest) -> Mapping[str, Any]:
        return publisher_of(self.settings, self.lakehouse, self.ledger).publish(request)

    def foreign(self, table: Table, key: Slice, rows: int, run_id: str = "theirs") -> None:
        """Another process's commit, through Iceberg's own catalog."""
        change, _ = self.staged(table, key, rows)
        self.lakehouse.changes.commit(replace(change, branches=()), "foreign", run_id)
        self.lakehouse.branches.drop(table, change.branches)

    def rows(self, key: Slice) -> list[int]:
        where = f"project_id = '{key.project_id}' AND {{}} = DATE '{key.event_date}'"
        return [
            self.lakehouse.spark.table(self.lakehouse.identifier(table)).where(where.format(table.day_column)).count()
            for table in BOTH
        ]

    def everything(self) -> dict[str, list[Any]]:
        """Catalog and ledger to the last row, which is everything: metadata files never change."""
        with closing(sqlite3.connect(self.settings.catalog_url.removeprefix("sqlite:///"))) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: sorted(map(repr, database.execute(f"SELECT * FROM {name}"))) for name in names}

    def pointer(self, table: Table) -> tuple[str, str]:
        namespace, _, name = table.identifier.rpartition(".")
        query = (
            "SELECT metadata_location, previous_metadata_location FROM iceberg_tables"
            " WHERE table_namespace = ? AND table_name = ?"
        )
        with closing(sqlite3.connect(self.settings.catalog_url.removeprefix("sqlite:///"))) as database:
            found: tuple[str, str] = database.execute(query, (namespace, name)).fetchone()
        return found

    def unknown(self) -> set[str]:
        """Metadata files outside of every table's history, which an attach after a lost catalog might take."""
        upkeep = Upkeep(self.lakehouse.spark, self.settings.catalog_name)
        return {one.name for table in BOTH for one in upkeep.below(table).unknown}

    def refs(self, table: Table) -> set[str]:
        return {str(name) for name in self.lakehouse.tables.load(table).refs()}


@contextmanager
def a_lake(spark: Any, folder: Path, promise: Promise, **places: Any) -> Iterator[Lake]:
    """Empty tables below a folder, and a ledger that knows them; `places`: of catalog and ledger."""
    settings = Settings(
        landing_url=str(folder / "landing"),
        warehouse_url=str(folder / "warehouse"),
        catalog_name=f"lake_{uuid.uuid4().hex[:8]}",
        projects=(PROJECT,),
        calendar_start=date(2026, 1, 1),
        **places,
    )
    assert promise_of(settings) is promise
    configure_catalog(spark, settings)
    lakehouse = Lakehouse(spark, settings.catalog_name)
    for table in BOTH:
        lakehouse.ensure(table)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        for table in BOTH:
            ledger.record(Changes(head=(table.key, lakehouse.head(table), None)), "first")
        yield Lake(settings, lakehouse, ledger)


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("one_transaction")
    with a_lake(spark, folder, Promise.ONE_TRANSACTION, catalog_url=f"sqlite:///{folder}/catalog.db") as made:
        yield made


@contextmanager
def at(point: Failpoint, qualifier: str, act: Callable[[], Any]) -> Iterator[list[str]]:
    """Run once when this point is reached; gives whether it was."""
    reached: list[str] = []

    def watcher(found: Failpoint, of: str) -> None:
        if (found, of) == (point, qualifier) and not reached:
            reached.append(of)
            act()

    watch(watcher)
    try:
        yield reached
    finally:
        watch()


def after_apply(act: Callable[[], Any]) -> Any:
    """Both tables are prepared, and the transaction has not begun."""
    return at(Failpoint.AFTER_APPLY, BOTH[-1].key, act)


def _stop() -> None:
    raise Stop


def test_both_tables_and_the_ledger_change_at_the_same_moment(lake: Lake) -> None:
    """Scenario: readers look before and after the end of a publish; Iceberg commits on top, old snapshots expire.
    Outcome: the old state, then the new one for Spark, PyIceberg and the ledger; pointers and metadata log agree."""
    from pyiceberg.catalog.sql import SqlCatalog

    key = lake.a_slice()
    request = lake.request(key, 3)
    before = {table.key: lake.pointer(table)[0] for table in BOTH}
    heads = {table.key: lake.lakehouse.head(table) for table in BOTH}
    seen: list[Any] = []
    with at(Failpoint.IN_TRANSACTION, "", lambda: seen.append((lake.rows(key), lake.everything()))):
        at_rest = lake.everything()
        published = lake.publish(replace(request, run={"finished_at": "2026-02-02T01:00:00+00:00"}))
    assert seen == [([0, 0], at_rest)]

    assert lake.rows(key) == [3, 3]
    with closing(SqlCatalog(lake.settings.catalog_name, uri=lake.settings.catalog_url)) as catalog:
        for table in BOTH:
            assert catalog.load_table(table.identifier).scan().to_arrow().num_rows == 3
    for table in BOTH:
        main, (present, previous) = published[table.key], lake.pointer(table)
        assert (main.snapshot_id, main.parent_id) == (lake.lakehouse.head(table), heads[table.key])
        assert previous == before[table.key]
        metadata = lake.lakehouse.tables.load(table).operations().current()
        assert [str(entry.file()) for entry in metadata.previousFiles()][-1] == previous
        numbers = [int(location.rpartition("/")[2].partition("-")[0]) for location in (previous, present)]
        assert numbers[1] == numbers[0] + 1
        assert lake.refs(table) == {"main"}
        assert lake.ledger.head(table.key) == Head(main.snapshot_id)
        (recorded,) = lake.ledger.publications(table.key, [PROJECT], [key.event_date])
        assert (recorded.snapshot_id, recorded.parent_id) == (main.snapshot_id, main.parent_id)
    # The second table was built from the first one's staged state; the record names the published one.
    assert recorded.pins == {BOTH[0].key: published[BOTH[0].key].snapshot_id}
    snapshots = {table.key: published[table.key].snapshot_id for table in BOTH}
    with lake.ledger.transaction() as connection:
        of_run = sa.select(RUNS.c.snapshots).where(RUNS.c.run_id == request.run_id)
        assert connection.execute(of_run).scalar_one() == snapshots
    (cut,) = [row for row in lake.everything()["tidemark_cuts"] if request.run_id in row]
    assert all(f'"{name}": "{number}"' in cut for name, number in snapshots.items())

    other = lake.a_slice()
    lake.foreign(BOTH[0], other, 1)
    upkeep = Upkeep(lake.lakehouse.spark, lake.settings.catalog_name)
    for table in BOTH:
        old = [one for one in lake.lakehouse.snapshot_ids(table) if one != lake.lakehouse.head(table)]
        upkeep.expire(table, old)
        assert lake.lakehouse.snapshot_ids(table) == {lake.lakehouse.head(table)}
    assert (lake.rows(key), lake.rows(other)) == ([3, 3], [1, 0])


@contextmanager
def commit_ends(lake: Lake, end: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    dialect = lake.ledger.engine.dialect
    whole = dialect.do_commit

    def once(connection: Any) -> None:
        dialect.do_commit = whole
        end(lambda: whole(connection))

    dialect.do_commit = once  # type: ignore[method-assign]  # the fault is put into the driver
    try:
        yield
    finally:
        dialect.do_commit = whole


def lost_before(_commit: Callable[[], None]) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def lost_after(commit: Callable[[], None]) -> None:
    commit()
    raise sqlite3.OperationalError("disk I/O error")


def test_whatever_keeps_it_from_its_end_leaves_all_as_it_was(lake: Lake) -> None:
    """Scenario: a publish is stopped, its commit fails, a slice is held after it was prepared, an input moves.
    Outcome: nothing changes, the conflict names its slice; then the same publish succeeds, also with a lost answer."""
    key = lake.a_slice()
    request = lake.request(key, 2)
    at_rest = lake.everything()

    with at(Failpoint.IN_TRANSACTION, "", _stop), pytest.raises(Stop):
        lake.publish(request)
    assert lake.everything() == at_rest
    with commit_ends(lake, lost_before), pytest.raises(LedgerUnavailableError):
        lake.publish(request)
    assert lake.everything() == at_rest

    # A dead process's files stay for maintenance; those known not to be committed go.
    left = lake.unknown()
    assert len(left) == 2

    built_from = {("refined/events", key): Digest(9, 9, 9)}
    with pytest.raises(SliceConflictError, match="another run published it") as conflict:
        lake.publish(replace(request, rests_on=built_from))
    assert conflict.value.slices == {("refined/events", key)}
    assert lake.everything() == at_rest

    last = BOTH[-1].key
    with (
        after_apply(lambda: lake.ledger.interventions.hold({last: [key]}, "why", "person")),
        pytest.raises(SliceConflictError, match="an operator held it") as conflict,
    ):
        lake.publish(request)
    assert conflict.value.slices == {(last, key)}
    lake.ledger.interventions.release({last: [key]}, "done", "person")
    assert {**lake.everything(), "tidemark_holds": at_rest["tidemark_holds"]} == at_rest
    assert (lake.rows(key), lake.unknown()) == ([0, 0], left)

    with commit_ends(lake, lost_after):
        published = lake.publish(request)
    assert lake.rows(key) == [2, 2]
    assert {name: one.snapshot_id for name, one in published.items()} == {
        table.key: lake.lakehouse.head(table) for table in BOTH
    }

    # Main stays in both, so only the new metadata files show the commit.
    heads = [lake.lakehouse.head(table) for table in BOTH]
    for table, head in zip(BOTH, heads, strict=True):
        lake.lakehouse.branches.create(table, "given_up", head)
    changes = [
        lake.lakehouse.changes.of(table, head, head, [key], ["tidemark_given_up"])
        for table, head in zip(BOTH, heads, strict=True)
    ]

    def lost_after_and_moved_on(commit: Callable[[], None]) -> None:
        commit()
        for table, head in zip(BOTH, heads, strict=True):
            lake.lakehouse.branches.create(table, "another", head)
        raise sqlite3.OperationalError("disk I/O error")

    with commit_ends(lake, lost_after_and_moved_on):
        again = lake.publish(replace(request, tables=changes, steps=[]))
    assert all(one.is_empty for one in again.values())
    assert (lake.rows(key), lake.unknown()) == ([2, 2], left)

    # No change is left: pointers stay, and their file must not be discarded.
    for table in BOTH:
        lake.lakehouse.branches.drop(table, ["tidemark_another"])
    pointers = [lake.pointer(table) for table in BOTH]
    with commit_ends(lake, lost_before), pytest.raises(LedgerUnavailableError):
        lake.publish(replace(request, tables=changes, steps=[]))
    lake.publish(replace(request, tables=changes, steps=[]))
    assert ([lake.pointer(table) for table in BOTH], lake.rows(key)) == (pointers, [2, 2])


def test_others_who_write_meanwhile_lose_nothing(lake: Lake) -> None:
    """Scenario: another process commits another slice and makes a branch after the preparation.
    Outcome: the changes are applied anew; both slices and the branch are there, one commit follows the other."""
    key, other = lake.a_slice(), lake.a_slice()
    request, left = lake.request(key, 2), lake.unknown()

    def meanwhile() -> None:
        lake.foreign(BOTH[0], other, 4)
        lake.lakehouse.branches.create(BOTH[1], "theirs", lake.lakehouse.head(BOTH[1]))

    with after_apply(meanwhile) as reached:
        published = lake.publish(request)
    assert reached
    assert lake.unknown() == left
    assert (lake.rows(key), lake.rows(other)) == ([2, 2], [4, 0])
    assert lake.refs(BOTH[1]) == {"main", "tidemark_theirs"}
    lake.lakehouse.branches.drop(BOTH[1], ["tidemark_theirs"])
    newest, theirs = lake.lakehouse.commits(BOTH[0], None)[:2]
    assert newest.snapshot_id == published[BOTH[0].key].snapshot_id
    assert (newest.parent_id, theirs.run_id) == (theirs.snapshot_id, "theirs")
    cut = lake.ledger.cuts.of_run(request.run_id)
    assert cut is not None
    assert dict(cut.snapshots) == {table.key: lake.lakehouse.head(table) for table in BOTH}
    # The foreign commit has no record: the next load compares.
    assert not (lake.ledger.head(BOTH[0].key) or Head(0)).is_trusted
    for table in BOTH:
        lake.ledger.record(Changes(head=(table.key, lake.lakehouse.head(table), None)), "settled")


def test_another_writer_of_the_same_slice_wins(lake: Lake) -> None:
    """Scenario: another process commits the same slice after the preparation; then it compacts a slice being published.
    Outcome: each time a conflict that names the slice; tables and ledger show nothing of ours."""
    key = lake.a_slice()
    request = lake.request(key, 2)
    left: list[Any] = []

    def meanwhile() -> None:
        lake.foreign(BOTH[1], key, 5, "the winner")
        left.append(lake.everything())

    with after_apply(meanwhile), pytest.raises(SliceConflictError, match="run the winner changed it") as conflict:
        lake.publish(request)
    assert conflict.value.slices == {(BOTH[1].key, key)}
    assert [lake.everything()] == left
    assert lake.rows(key) == [0, 5]

    files = lake.lakehouse.identifier(BOTH[1])
    condition = f"{BOTH[1].day_column} = DATE '{key.event_date}'"
    lake.lakehouse.spark.sql(f"INSERT INTO {files} SELECT * FROM {files} WHERE {condition} LIMIT 1")
    request = lake.request(key, 2)
    left.clear()

    def compaction() -> None:
        joined = lake.lakehouse.spark.sql(
            f"CALL {lake.settings.catalog_name}.system.rewrite_data_files(table => '{BOTH[1].identifier}', "
            "options => map('rewrite-all', 'true'))"
        ).first()
        assert joined["rewritten_data_files_count"] > joined["added_data_files_count"]
        left.append(lake.everything())

    with after_apply(compaction), pytest.raises(SliceConflictError) as conflict:
        lake.publish(request)
    assert conflict.value.slices == {(BOTH[1].key, key)}
    assert [lake.everything()] == left
    assert lake.rows(key) == [0, 6]


def test_a_commit_of_one_table_asks_what_others_did_to_its_slice(lake: Lake) -> None:
    """Scenario: another writer adds a file to a slice that is to keep its file, then joins its files.
    Outcome: each time a conflict that names the slice, and nothing of ours is committed."""
    table, key = BOTH[1], lake.a_slice()
    lake.foreign(table, key, 2)
    files = lake.lakehouse.identifier(table)
    condition = f"{table.day_column} = DATE '{key.event_date}'"
    hands = (
        f"INSERT INTO {files} SELECT * FROM {files} WHERE {condition} LIMIT 1",
        f"CALL {lake.settings.catalog_name}.system.rewrite_data_files(table => '{table.identifier}', "
        "options => map('rewrite-all', 'true'))",
    )
    for statement in hands:
        staged, _ = lake.staged(table, key, 3)
        both = replace(staged, files=LiveFiles({**staged.former, **staged.files}), branches=())
        lake.lakehouse.spark.sql(statement)
        head = lake.lakehouse.head(table)

        with pytest.raises(SliceConflictError) as conflict:
            lake.lakehouse.changes.commit(both, "ours", "run")

        assert conflict.value.slices == {(table.key, key)}
        assert lake.lakehouse.head(table) == head, statement
        lake.lakehouse.branches.drop(table, staged.branches)


def test_a_restore_whose_file_vanishes_is_refused(lake: Lake) -> None:
    """Scenario: a restore of two tables loses a file after the preparation; it comes back.
    Outcome: a refusal that names the file, without a change; then the publish restores both without writing rows."""
    key = lake.a_slice()
    lake.publish(lake.request(key, 2))
    then = {table.key: lake.lakehouse.head(table) for table in BOTH}
    lake.publish(lake.request(key, 7))
    changes = [
        lake.lakehouse.changes.restoring(table, lake.lakehouse.head(table), {key: then[table.key]}) for table in BOTH
    ]
    steps = [(change.table.key, lake.step(change, change.base_id, 2, {})) for change in changes]
    request = PublishRequest("rollback", "rollback", changes, steps, minds_holds=False)
    (path,) = changes[1].files
    file = Path(path.removeprefix("file:"))
    at_rest, left = lake.everything(), lake.unknown()
    with (
        after_apply(lambda: file.rename(file.with_suffix(".away"))),
        pytest.raises(LakehouseError, match="is gone") as gone,
    ):
        lake.publish(request)
    assert gone.value.subject == path
    assert (lake.everything(), lake.unknown()) == (at_rest, left)
    file.with_suffix(".away").rename(file)
    assert lake.rows(key) == [7, 7]
    lake.publish(request)
    assert lake.rows(key) == [2, 2]
    assert set(lake.lakehouse.slice_files(BOTH[1], lake.lakehouse.head(BOTH[1]), [key])[key].paths) == {path}


def found(lake: Lake) -> list[int | None]:
    settings = lake.settings.model_copy(update={"catalog_name": f"lake_{uuid.uuid4().hex[:8]}"})
    configure_catalog(lake.lakehouse.spark, settings)
    tables = JavaTables(lake.lakehouse.spark, settings.catalog_name)
    return [one.snapshot_id for one in attachable(tables, settings, BOTH)]


def test_a_publish_that_never_was_is_attached_whole_or_not_at_all(spark: Any, tmp_path: Path) -> None:
    """Scenario: a publish is killed with one or both of two tables prepared; another writer commits or prepares again.
    Outcome: a lost catalog finds the old state of the first, the whole new state of the second until a table goes on."""

    with a_lake(spark, tmp_path, Promise.ONE_TRANSACTION, catalog_url=f"sqlite:///{tmp_path}/catalog.db") as lake:

        def heads() -> list[int | None]:
            return [lake.lakehouse.head(table) for table in BOTH]

        key = lake.a_slice()
        lake.publish(lake.request(key, 1))
        request = lake.request(key, 2)
        for point, qualifier in ((Failpoint.AFTER_APPLY, BOTH[0].key), (Failpoint.IN_TRANSACTION, "")):
            assert found(lake) == heads()
            # Not an error of ours, so nothing is discarded: as after a kill.
            with at(point, qualifier, _stop), pytest.raises(Stop):
                lake.publish(request)
        seen = found(lake)
        assert not set(seen) & set(heads()), "all of it is there"
        lake.lakehouse.branches.create(BOTH[0], f"later_{uuid.uuid4().hex[:8]}", lake.lakehouse.head(BOTH[0]))
        assert found(lake) == heads(), "a table has gone on without it, so that no table shows it"

        other = lake.a_slice()
        with after_apply(lambda: lake.foreign(BOTH[0], other, 1)):
            lake.publish(request)
        assert lake.rows(key) == [2, 2]
        assert found(lake) == heads()
        lake.foreign(BOTH[1], other, 1)
        assert found(lake) == heads(), "a table that went on after the publish shows it"
        summary = lake.lakehouse.tables.load(BOTH[0]).currentSnapshot().summary()
        assert str(summary.get(PUBLISHED_WITH)) == ",".join(sorted(table.key for table in BOTH))
