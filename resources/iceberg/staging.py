"""Our branches of a table (staged attempts, rebuilt data, kept snapshots), and commits of data files to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.retention import YOUNGEST
from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import FileLayout
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import FAILURES, again
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata import JavaTables, ancestry, committed_at, each, slice_of

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

IsLive = Callable[[str], bool | None]
"""Whether the attempt that a branch is named after is running; None for an unknown attempt."""
PREFIX = "tidemark_"
_KEEPS, _BRANCH = "_keep_", ".branch_"


class Branches:
    """Branches named after runs' attempts, so that other processes recognise them."""

    def __init__(self, tables: JavaTables) -> None:
        self._tables = tables

    def create(self, table: Table, attempt: str, snapshot_id: int) -> str:
        """Create the attempt's branch at a snapshot, replacing one of the same name; returns its name."""
        name = self.name(attempt)
        self.drop(table, [name])
        self._set(table, {name: snapshot_id})
        return name

    def name(self, attempt: str) -> str:
        """Return the name of an attempt's branch."""
        return PREFIX + attempt

    def head(self, table: Table, attempt: str) -> int | None:
        """Return the snapshot of the attempt's branch; None without one."""
        ref = self._tables.current(table).refs().get(self.name(attempt))
        return None if ref is None else int(ref.snapshotId())

    def drop(self, table: Table, names: Iterable[str]) -> None:
        """Drop branches; their snapshots stay until maintenance expires them."""
        self._set(table, dict.fromkeys(names))

    @contextmanager
    def keeping(self, table: Table, snapshot_ids: Collection[int], attempt: str) -> Iterator[None]:
        """Keep these snapshots of main by branches of the attempt meanwhile; raises LakehouseError where one has expired."""
        names = {f"{PREFIX}{attempt}{_KEEPS}{snapshot_id}": snapshot_id for snapshot_id in snapshot_ids}
        try:
            self._set(table, names)
        except FAILURES as error:
            java = self._tables.current(table)
            if all(java.snapshot(snapshot_id) is not None for snapshot_id in snapshot_ids):
                raise
            reason = "a snapshot that the rollback needs has expired"
            raise LakehouseError(table.key, reason, "Choose a later state") from error
        try:
            yield
        finally:
            with suppress(*FAILURES):
                self.drop(table, names)

    def kept(self, table: Table) -> set[int]:
        """Return main's snapshots that rollbacks keep."""
        return {snapshot_id for name, snapshot_id in self._ours(self._tables.current(table)).items() if _KEEPS in name}

    def dead(self, table: Table, is_live: IsLive) -> list[str]:
        """Return the branches of dead attempts; that of an unknown attempt counts once it is older than a day."""
        java, yesterday = self._tables.current(table), datetime.now(UTC) - YOUNGEST
        lives = {name: is_live(name.removeprefix(PREFIX)) for name in sorted(self._ours(java))}
        return [
            name
            for name, is_known in lives.items()
            if is_known is False or (is_known is None and self.was_there(java, name, yesterday))
        ]

    def sweep(self, tables: Iterable[Table], is_live: IsLive) -> list[str]:
        """Drop the branches of dead attempts; returns `table:branch` of each."""
        dropped = [(table, name) for table in tables for name in self.dead(table, is_live)]
        for table, name in dropped:
            self.drop(table, [name])
        return [f"{table.key}:{name}" for table, name in dropped]

    def was_there(self, java: Any, name: str, before: datetime) -> bool:
        """Whether the branch existed at that time, by the kept metadata: a new branch may point at an old snapshot."""
        snapshot = java.snapshot(name)
        is_of_main = _KEEPS in name or snapshot.snapshotId() in ancestry(java)
        if not is_of_main and committed_at(snapshot) <= before:
            return True
        metadata, limit = java.operations().current(), int(before.timestamp() * 1000)
        parser = self._tables.java_class("org.apache.iceberg.TableMetadataParser")
        # Each metadata version names some predecessors; continue from the oldest of these.
        while metadata.lastUpdatedMillis() > limit:
            older = list(metadata.previousFiles())
            if not older:
                return False
            then = [entry for entry in older if entry.timestampMillis() <= limit]
            try:
                metadata = parser.read(java.io(), (then[-1] if then else older[0]).file())
            except FAILURES:
                return False
        return bool(metadata.refs().containsKey(name))

    def _ours(self, java: Any) -> dict[str, int]:
        refs = java.refs()
        return {name: int(refs.get(name).snapshotId()) for name in each(refs.keySet()) if name.startswith(PREFIX)}

    def _set(self, table: Table, wanted: Mapping[str, int | None]) -> None:
        """Create missing branches at their snapshots; drop those for None. An earlier try may have done so without an answer."""

        def change() -> None:
            java = self._tables.load(table)
            due = {name: at for name, at in wanted.items() if java.refs().containsKey(name) is (at is None)}
            if due:
                management = java.manageSnapshots()
                for name, at in due.items():
                    management = management.removeBranch(name) if at is None else management.createBranch(name, at)
                management.commit()

        again(change)


DATA_FOLDER = "data"


@dataclass(frozen=True)
class FileChange:
    """New files that replace others."""

    files: Sequence[str]
    whole: Collection[Slice]
    gone: Mapping[Slice, Collection[str]] = field(default_factory=dict)


class TableFiles:
    """Commits files to branches of the tables of one catalog."""

    def __init__(self, tables: JavaTables) -> None:
        self._tables = tables

    def layout(self, table: Table, *, is_ordered: bool) -> FileLayout:
        """Return how tasks write files of an existing table; `is_ordered`: rows arrive in the table's write order."""
        java = self._tables.load(table)
        ids = self._tables.column_names(java)
        return FileLayout(
            table_uuid=str(java.uuid()),
            folder=DATA_FOLDER,
            field_ids={column.name: ids[column.name] for column in table.columns},
            types={column.name: column.type for column in table.columns},
            required=frozenset(column.name for column in table.columns if column.is_required),
            many_valued=frozenset(table.many_valued),
            day_column=table.day_column,
            spec_id=int(java.spec().specId()),
            sort_order_id=int(java.sortOrder().orderId()) if is_ordered else 0,
            sort_by=() if is_ordered else table.write_order,
        )

    def store(self, table: Table) -> LakeObjects:
        """Return the objects below the table's location."""
        return LakeObjects(str(self._tables.knowing(table).location()))

    def append(self, table: Table, target: str, files: Iterable[str]) -> None:
        """Add files, described by `transforms.data_files.data_file`, to a branch in one commit; `target` is its SQL name."""
        self._commit(table, self._tables.load(table), target.rpartition(_BRANCH)[2], (), files)

    def replace(self, table: Table, target: str, change: FileChange) -> None:
        """Replace files of a branch in one commit; raises LakehouseError where a file to remove is not on the branch."""
        branch, java = target.rpartition(_BRANCH)[2], self._tables.load(table)
        held = self._tables.files(java, int(java.snapshot(branch).snapshotId()), {*change.whole, *change.gone})
        gone = {path for paths in change.gone.values() for path in paths}
        if lost := gone - held.keys():
            raise LakehouseError(sorted(lost)[0], "is no file of the snapshot it was read from", "Report it")
        old = [file for path, file in sorted(held.items()) if path in gone or slice_of(file) in change.whole]
        self._commit(table, java, branch, old, change.files)

    def _commit(self, table: Table, java: Any, branch: str, old: Collection[Any], files: Iterable[str]) -> None:
        described = list(files)
        failpoint(Failpoint.AFTER_FILES, table.key)
        if not (old or described):
            return
        operation = java.newOverwrite() if old else java.newAppend()
        parser = self._tables.java_class("org.apache.iceberg.ContentFileParser")
        mapper = self._tables.java_class("org.apache.iceberg.util.JsonUtil").mapper()
        for file in old:
            operation.deleteFile(file)
        for text in described:
            file = parser.fromJson(mapper.readTree(text), java.spec())
            (operation.addFile if old else operation.appendFile)(file)
        operation.toBranch(branch)
        operation.commit()
