"""The parts of Iceberg beyond its SQL that we rely on: a change by an upgrade is named with its user."""

from __future__ import annotations

import os
import re
import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from py4j.protocol import Py4JJavaError

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.aggregates import EVENT_COUNTS as TABLE
from resources.iceberg.errors import is_conflict
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.slice_changes import Prepared, Published, lock_pointers, swap_pointers
from resources.spark.session import LOCAL_FILES, configure_catalog
from tests.support.builders import PROJECT

pytestmark = pytest.mark.slow
KEY = Slice(date(2026, 2, 2), PROJECT)
SOURCES = Path(__file__).parents[2] / "resources" / "iceberg"

BY_NAME: Mapping[str, tuple[str, ...]] = {
    "org.apache.iceberg.ContentFileParser": ("fromJson", "toJson"),
    "org.apache.iceberg.ManifestFiles": ("readDeleteManifest", "readPaths"),
    "org.apache.iceberg.PartitionSpec": ("builderFor",),
    "org.apache.iceberg.ReachableFileUtil": (
        "manifestListLocations", "metadataFileLocations", "statisticsFilesLocations",
    ),
    "org.apache.iceberg.SchemaParser": ("toJson",),
    "org.apache.iceberg.SnapshotChanges": ("builderFor",),
    "org.apache.iceberg.SortOrder": ("builderFor",),
    "org.apache.iceberg.TableMetadata": (
        "buildFrom", "changes", "currentSnapshot", "lastUpdatedMillis", "metadataFileLocation", "previousFiles", "refs", "uuid",
    ),
    "org.apache.iceberg.TableMetadataParser": ("read", "write"),
    "org.apache.iceberg.catalog.TableCommit": ("create",),
    "org.apache.iceberg.catalog.TableIdentifier": ("parse",),
    "org.apache.iceberg.expressions.Expressions": ("alwaysFalse", "and", "equal", "in", "or"),
    "org.apache.iceberg.spark.Spark3Util": ("loadIcebergTable",),
    "org.apache.iceberg.spark.SparkSchemaUtil": ("convert",),
    "org.apache.iceberg.spark.actions.SparkActions": ("get",),
    "org.apache.iceberg.util.JsonUtil": ("mapper",),
    "org.apache.spark.sql.SparkSession": ("setActiveSession",),
    "org.apache.spark.sql.types.StructType": ("fromDDL",),
    "java.lang.String": ("join",),
    "java.util.ArrayList": ("add",),
    "java.util.LinkedHashSet": ("addAll",),
    "java.util.stream.Stream": ("builder",),
}  # fmt: skip
"""Classes that modules of resources/iceberg/ get from the JVM by name -> methods that they call."""
REACHED: Mapping[str, tuple[str, ...]] = {
    "org.apache.iceberg.Table": (
        "currentSnapshot", "expireSnapshots", "history", "io", "location", "manageSnapshots", "name", "newAppend",
        "newFastAppend", "newOverwrite", "newRowDelta", "newScan", "properties", "refs", "schema", "snapshot",
        "snapshots", "sortOrder", "spec", "specs", "updateProperties",
    ),
    "org.apache.iceberg.BaseTable": ("operations",),
    "org.apache.iceberg.PartitionSpec$Builder": ("build", "identity"),
    "org.apache.iceberg.SortOrder$Builder": ("build",),
    "org.apache.iceberg.SortOrderBuilder": ("asc",),
    "org.apache.iceberg.catalog.Catalog": ("buildTable", "tableExists"),
    "org.apache.iceberg.catalog.Catalog$TableBuilder": (
        "create", "withLocation", "withPartitionSpec", "withProperty", "withSortOrder",
    ),
    "org.apache.iceberg.catalog.SupportsNamespaces": ("createNamespace", "namespaceExists"),
    "org.apache.iceberg.ExpireSnapshots": ("cleanExpiredFiles", "commit", "expireOlderThan", "expireSnapshotId"),
    "org.apache.iceberg.ManifestFile": ("content", "path"),
    "org.apache.iceberg.TableOperations": ("current", "io", "metadataFileLocation", "refresh"),
    "org.apache.iceberg.TableMetadata$Builder": ("build", "removeRef", "setBranchSnapshot"),
    "org.apache.iceberg.TableMetadata$MetadataLogEntry": ("file", "timestampMillis"),
    "org.apache.iceberg.RowDelta": (
        "addRows", "apply", "commit", "conflictDetectionFilter", "deleteWith", "removeRows", "set", "toBranch",
        "validateDataFilesExist", "validateDeletedFiles", "validateFromSnapshot", "validateNoConflictingDataFiles",
        "validateNoConflictingDeleteFiles",
    ),
    "org.apache.iceberg.spark.actions.RewriteDataFilesSparkAction": ("execute", "filter", "option", "toBranch"),
    "org.apache.iceberg.OverwriteFiles": ("addFile", "commit", "deleteFile", "toBranch"),
    "org.apache.iceberg.AppendFiles": ("appendFile", "commit", "toBranch"),
    "org.apache.iceberg.ManageSnapshots": ("commit", "createBranch", "removeBranch"),
    "org.apache.iceberg.Snapshot": ("allManifests", "parentId", "snapshotId", "summary", "timestampMillis"),
    "org.apache.iceberg.SnapshotChanges": ("addedDataFiles", "removedDataFiles"),
    "org.apache.iceberg.TableScan": ("filter", "includeColumnStats", "planFiles", "useSnapshot"),
    "org.apache.iceberg.FileScanTask": ("deletes", "file"),
    "org.apache.iceberg.DataFile": ("fileSizeInBytes", "location", "partition", "recordCount"),
    "org.apache.iceberg.rest.RESTCatalog": ("commitTransaction",),
    "org.apache.iceberg.spark.SparkCatalog": ("icebergCatalog",),
    "org.apache.iceberg.io.FileIO": ("deleteFile", "newOutputFile"),
    "org.apache.iceberg.io.SupportsBulkOperations": ("deleteFiles",),
}  # fmt: skip
"""Classes of returned objects -> methods that are called on them."""
_NAME = re.compile(r'java_class\(\s*"([\w.$]+)"')
_COLUMNS = ["catalog_name", "table_namespace", "table_name", "metadata_location", "previous_metadata_location"]


@dataclass
class Lake:
    settings: Settings
    lakehouse: Lakehouse

    @property
    def java(self) -> Any:
        return self.lakehouse.tables.load(TABLE)

    def java_class(self, name: str) -> Any:
        return self.lakehouse.tables.java_class(name)

    @property
    def database(self) -> Path:
        return Path(self.settings.catalog_url.removeprefix("sqlite:///"))

    def row(self) -> dict[str, Any]:
        with closing(sqlite3.connect(self.database)) as database:
            database.row_factory = sqlite3.Row
            (found,) = database.execute("SELECT * FROM iceberg_tables").fetchall()
        return dict(found)

    def metadata_files(self) -> set[str]:
        return {path.name for path in Path(self.settings.warehouse_url).rglob("*.metadata.json")}

    def written(self, metadata: Any) -> tuple[str, str]:
        """The metadata as a file beside the present one, as prepared.py writes it; (present, new)."""
        operations = self.java.operations()
        before = str(operations.current().metadataFileLocation())
        number = int(before.rpartition("/")[2].partition("-")[0])
        after = str(operations.metadataFileLocation(f"{number + 1:05d}-{uuid.uuid4()}.metadata.json"))
        parser = self.java_class("org.apache.iceberg.TableMetadataParser")
        parser.write(metadata, operations.io().newOutputFile(after))
        return before, after

    def swap(self, before: str, after: str) -> None:
        engine = sa.create_engine(self.settings.catalog_url)
        with engine.begin() as connection:
            locations = lock_pointers(connection, self.settings.catalog_name, [TABLE])
            assert locations == {TABLE.key: before}, (
                "the catalog's row names the metadata file as the table does (prepared.py)"
            )
            swap_pointers(connection, self.settings.catalog_name, [Prepared(TABLE, Published(2, 1, {}), before, after)])
        engine.dispose()

    def next_metadata(self, snapshot: Any, base: Any) -> Any:
        return self.java_class("org.apache.iceberg.TableMetadata").buildFrom(base).setBranchSnapshot(snapshot, "main")


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("iceberg_api")
    settings = Settings(
        landing_url=str(folder),
        warehouse_url=str(folder / "warehouse"),
        catalog_url=f"sqlite:///{folder}/catalog.db",
        catalog_name=f"lake_{uuid.uuid4().hex[:8]}",
    )
    configure_catalog(spark, settings)
    lakehouse = Lakehouse(spark, settings.catalog_name)
    lakehouse.ensure(TABLE)
    spark.sql(f"INSERT INTO {lakehouse.identifier(TABLE)} VALUES (DATE '{KEY.event_date}', '{PROJECT}', 'click', 1, 1)")
    return Lake(settings, lakehouse)


def test_every_class_that_is_asked_for_by_name_is_listed_here() -> None:
    """Needs no JVM: reflection looks at the classes that the sources name."""
    named = {
        name: path.name for path in sorted(SOURCES.glob("*.py")) for name in _NAME.findall(path.read_text("utf-8"))
    }
    assert {name: named[name] for name in named.keys() - BY_NAME.keys()} == {}, (
        "list them in BY_NAME, with their methods"
    )
    assert BY_NAME.keys() - named.keys() == set(), "no module asks for these any more"
    calls = "\n".join(path.read_text("utf-8") for path in SOURCES.glob("*.py"))
    methods = {name for listed in (*BY_NAME.values(), *REACHED.values()) for name in listed}
    uncalled = {name for name in methods if not re.search(rf"\.{name}\b|, \"{name}\"", calls)}
    assert uncalled <= {"toJson", "refresh"}, "no module calls these any more"


def test_classes_and_methods_are_public_and_stay(lake: Lake) -> None:
    """Outcome: each class is there, each method is public and none is deprecated for removal."""
    loader = lake.java_class("java.lang.Thread").currentThread().getContextClassLoader()
    to_class = lake.java_class("java.lang.Class")
    # As text: the JVM does not let outsiders call an annotation's methods.
    as_text = lake.java_class("java.util.Objects").toString
    deprecated = to_class.forName("java.lang.Deprecated")
    amiss = []
    for name, methods in (*BY_NAME.items(), *REACHED.items()):
        try:
            found = to_class.forName(name, False, loader)
        except Py4JJavaError:
            amiss.append(f"{name} is gone")
            continue
        public: dict[str, list[Any]] = {}
        for method in found.getMethods():
            public.setdefault(str(method.getName()), []).append(method)
        for method_name in methods:
            notes = [str(as_text(method.getAnnotation(deprecated))) for method in public.get(method_name, ())]
            if not notes:
                amiss.append(f"{name}.{method_name} is gone, or not public")
            elif all("forRemoval=true" in note for note in notes):
                amiss.append(f"{name}.{method_name} is to be removed")
    assert amiss == [], "resources/iceberg/*.py call them"


def test_a_change_is_applied_without_being_committed(lake: Lake) -> None:
    """prepared.py: `apply` builds on the present head, and nothing names its result until a pointer does."""
    java = lake.java
    operation, loaded = java.newFastAppend(), java.currentSnapshot().snapshotId()
    lake.java.newFastAppend().commit()
    row, files, head = lake.row(), lake.metadata_files(), lake.lakehouse.head(TABLE)
    assert head != loaded
    snapshot = operation.apply()
    assert lake.row() == row, "`apply` leaves the catalog as it is (prepared.py)"
    assert lake.metadata_files() == files, "`apply` writes no metadata file (prepared.py)"
    assert snapshot.parentId() == head, "`apply` asks the catalog for the head of now (prepared.py)"
    base = java.operations().current()
    location = str(base.metadataFileLocation())
    assert location == row["metadata_location"], "`operations().current()` is what `apply` was applied to (prepared.py)"


def test_the_next_metadata_follows_from_the_present_one(lake: Lake) -> None:
    """prepared.py: written and read again, it has the new head, a log of earlier files, and refs by name."""
    branch = lake.lakehouse.branches.create(TABLE, "api", lake.lakehouse.head(TABLE))
    java = lake.java
    snapshot = java.newFastAppend().apply()
    base = java.operations().current()
    built = lake.next_metadata(snapshot, base).removeRef(branch).build()
    before, after = lake.written(built)
    read = lake.java_class("org.apache.iceberg.TableMetadataParser").read(java.io(), after)
    (folder, _, name), beside = before.rpartition("/"), after.rpartition("/")[0]
    assert folder == beside, "metadata files lie side by side (prepared.py)"
    assert re.fullmatch(r"\d{5,}-[0-9a-f-]{36}\.metadata\.json", name), (
        "they are named by number and uuid (prepared.py)"
    )
    assert read.currentSnapshot().snapshotId() == snapshot.snapshotId(), "`setBranchSnapshot` moves main (prepared.py)"
    held = [metadata.refs().containsKey(branch) for metadata in (base, read)]
    assert held == [True, False], "`removeRef` drops a branch (prepared.py)"
    assert str(read.uuid()) == str(base.uuid()), "`buildFrom` keeps the table's identity (prepared.py)"
    logged = [str(one.file()) for one in read.previousFiles()]
    assert logged[-1] == before, "`build` puts the metadata that it follows into the metadata log (prepared.py)"
    assert str(read.metadataFileLocation()) == after, "metadata knows the file that it was read from (prepared.py)"
    assert lake.row()["metadata_location"] == before, "writing metadata names it nowhere (prepared.py)"
    lake.lakehouse.branches.drop(TABLE, [branch])


def test_icebergs_own_writers_compare_the_pointer_that_we_swap(lake: Lake) -> None:
    """prepared.py: a JdbcCatalog writer with an older base fails once after our swap, and its retry lies on top."""
    stale = lake.java
    operation, operations = stale.newFastAppend(), stale.operations()
    base = operations.current()
    theirs = lake.next_metadata(stale.newFastAppend().apply(), base).build()
    java = lake.java
    snapshot = java.newFastAppend().apply()
    before, after = lake.written(lake.next_metadata(snapshot, java.operations().current()).build())
    lake.swap(before, after)
    row = lake.row()
    assert (row["metadata_location"], row["previous_metadata_location"]) == (after, before)
    assert lake.lakehouse.head(TABLE) == snapshot.snapshotId(), "a reader follows the catalog's row (prepared.py)"

    with pytest.raises(Py4JJavaError) as refusal:
        operations.commit(base, theirs)
    assert is_conflict(refusal.value), (
        "a commit on another base than the row names is refused as a conflict (errors.py)"
    )
    assert lake.row() == row
    operation.commit()
    newest = lake.java.currentSnapshot()
    assert newest.parentId() == snapshot.snapshotId(), "Iceberg tries again on top of what was swapped in (prepared.py)"
    row = lake.row()
    assert row["previous_metadata_location"] == after, "its commit names ours as the one before (prepared.py)"

    with pytest.raises(Exception, match="moved its pointer"):
        swap_to_nowhere(lake, before, after)
    assert lake.row() == row


def swap_to_nowhere(lake: Lake, before: str, after: str) -> None:
    """Our swap on an older base."""
    engine = sa.create_engine(lake.settings.catalog_url)
    try:
        with engine.begin() as connection:
            swap_pointers(connection, lake.settings.catalog_name, [Prepared(TABLE, Published(2, 1, {}), before, after)])
    finally:
        engine.dispose()


def test_pyiceberg_reads_and_moves_the_same_row(lake: Lake) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    with closing(SqlCatalog(lake.settings.catalog_name, uri=lake.settings.catalog_url)) as catalog:
        table = catalog.load_table(TABLE.identifier)
        before = lake.row()
        assert table.metadata_location == before["metadata_location"], (
            "PyIceberg reads the row that is swapped (prepared.py)"
        )
        with table.transaction() as change:
            change.set_properties({"by": "pyiceberg"})
    after = lake.row()
    locations = (after["previous_metadata_location"], after["metadata_location"])
    assert locations[0] == before["metadata_location"] != locations[1], "PyIceberg moves the row as we do (prepared.py)"
    assert lake.java.properties().get("by") == "pyiceberg", "each reads what the other wrote (prepared.py)"


@pytest.fixture
def v0(spark: Any, tmp_path: Path) -> Path:
    """A catalog database with the tables' first schema."""
    name = f"lake_{uuid.uuid4().hex[:8]}"
    settings = Settings(warehouse_url=str(tmp_path / "w"), catalog_url=f"sqlite:///{tmp_path}/v0.db", catalog_name=name)
    configure_catalog(spark, settings)
    spark.conf.set(f"spark.sql.catalog.{name}.jdbc.schema-version", "V0")
    spark.sql(f"CREATE NAMESPACE {name}.aggregates")
    return tmp_path / "v0.db"


def test_the_row_of_a_table_has_the_same_columns_in_both_schemas(lake: Lake, v0: Path) -> None:
    for database, more in ((lake.database, ["iceberg_type"]), (v0, [])):
        with closing(sqlite3.connect(database)) as connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")]
            key = [row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)") if row[5]]
        assert columns == _COLUMNS + more, f"iceberg_tables has the columns {_COLUMNS + more} (prepared.py)"
        assert key == _COLUMNS[:3], "one row for each table of a catalog (prepared.py)"


def test_a_data_file_is_the_same_after_its_text(lake: Lake) -> None:
    java = lake.java
    ((path, file),) = lake.lakehouse.tables.files(java, lake.lakehouse.head(TABLE), [KEY]).items()
    parser = lake.java_class("org.apache.iceberg.ContentFileParser")
    mapper = lake.java_class("org.apache.iceberg.util.JsonUtil").mapper()
    read = parser.fromJson(mapper.readTree(parser.toJson(file, java.spec())), java.spec())
    figures = [
        (str(one.location()), one.recordCount(), one.fileSizeInBytes(), str(one.partition())) for one in (file, read)
    ]
    assert figures[0][0] == path
    assert figures[0] == figures[1], "a file's description in JSON is whole (staging.py)"
    shown = str(file.partition().toString())
    pattern = r"PartitionData\{\w+=\d+, project_id=" + PROJECT + r"\}"
    assert re.fullmatch(pattern, shown) is not None, "a partition as text names its values (metadata.py)"


def test_the_files_of_a_snapshot_are_planned_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: one plan for each distinct question; none for no slices."""
    tables, head = lake.lakehouse.tables, lake.lakehouse.head(TABLE)
    asked: list[Any] = []
    planned = tables._planned
    monkeypatch.setattr(tables, "_kept", {})
    monkeypatch.setattr(tables, "_planned", lambda *of: (asked.append(of[1:]), planned(*of))[1])
    answers = [tables.files(lake.java, head, slices) for slices in ([KEY], {KEY}, (KEY, KEY))]
    assert [set(answer) for answer in answers] == [set(answers[0])] * 3
    assert len(answers[0]) == 1
    other = Slice(KEY.event_date, "20002")
    assert not tables.files(lake.java, head, [other])
    assert set(tables.files(lake.java, head, None)) == set(answers[0])
    assert set(tables.files(lake.java, head, [KEY], TABLE.day_column)) == set(answers[0])
    assert not tables.files(lake.java, head, [])
    assert asked == [(head, [KEY], None), (head, [other], None), (head, None, None), (head, [KEY], TABLE.day_column)]


def test_local_files_are_made_without_a_process_for_each(lake: Lake) -> None:
    """session.py: Hadoop's own class starts `chmod` for each file and checksum; rights follow the umask without it."""
    io, probe = lake.java.io(), Path(lake.settings.warehouse_url) / "probe"
    io.newOutputFile(f"file:{probe}").create().close()
    files = lake.java_class("org.apache.hadoop.fs.Path")(f"file:{probe}").getFileSystem(io.conf())
    assert str(files.getClass().getName()) == LOCAL_FILES, "the session names who makes a table's files (session.py)"
    umask = os.umask(0)
    os.umask(umask)
    assert probe.stat().st_mode & 0o777 == 0o666 & ~umask
