"""Commit data files that tasks wrote to a branch: Iceberg takes their metrics as given and opens no file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import FileLayout
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata import JavaTables, slice_of

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

DATA_FOLDER = "data"


@dataclass(frozen=True)
class FileChange:
    """New files that replace others."""

    files: Sequence[str]
    """New files, as `transforms.data_files.data_file` describes them."""
    whole: Collection[Slice]
    """Slices whose old files are all removed."""
    gone: Mapping[Slice, Collection[str]] = field(default_factory=dict)
    """Other slices -> the files that are removed; their other files stay."""


class TableFiles:
    """Commits files to branches of the tables of one catalog."""

    def __init__(self, tables: JavaTables) -> None:
        """Commit files to the tables of one catalog."""
        self._tables = tables

    def layout(self, table: Table, *, is_ordered: bool) -> FileLayout:
        """Return how tasks write files of an existing table; `is_ordered` says that rows arrive in the table's write order."""
        java = self._tables.load(table)
        # Fetch the schema as text in one call: a wide table would take hundreds of calls for names and ids.
        parser = self._tables.java_class("org.apache.iceberg.SchemaParser")
        ids = {field["name"]: field["id"] for field in json.loads(parser.toJson(java.schema()))["fields"]}
        return FileLayout(
            table_uuid=str(java.uuid()),
            folder=DATA_FOLDER,
            field_ids={column.name: ids[column.name] for column in table.columns},
            types={column.name: column.type for column in table.columns},
            required=frozenset(column.name for column in table.columns if column.is_required),
            exact_bounds=frozenset(table.exact_bounds),
            many_valued=frozenset(table.many_valued),
            day_column=table.day_column,
            spec_id=int(java.spec().specId()),
            sort_order_id=int(java.sortOrder().orderId()) if is_ordered else 0,
            sort_by=() if is_ordered else table.write_order,
        )

    def store(self, table: Table) -> LakeObjects:
        """Return the objects below the table's location, where data files are written."""
        return LakeObjects(self._tables.location(table))

    def append(self, table: Table, target: str, files: Iterable[str]) -> None:
        """Add files, described by `transforms.data_files.data_file`, to a branch in one commit; `target` is its SQL name."""
        self._commit(table, branch_of(target), (), files)

    def replace(self, table: Table, target: str, change: FileChange) -> None:
        """Replace files of a branch in one commit; raises LakehouseError where a file to remove is not on the branch."""
        branch, java = branch_of(target), self._tables.load(table)
        held = self._tables.files(java, int(java.snapshot(branch).snapshotId()), {*change.whole, *change.gone})
        gone = {path for paths in change.gone.values() for path in paths}
        if lost := gone - held.keys():
            raise LakehouseError(sorted(lost)[0], "is no file of the snapshot it was read from", "Report it")
        old = [file for path, file in sorted(held.items()) if path in gone or slice_of(file) in change.whole]
        self._commit(table, branch, old, change.files)

    def _commit(self, table: Table, branch: str, old: Collection[Any], files: Iterable[str]) -> None:
        described = list(files)
        failpoint(Failpoint.AFTER_FILES, table.key)
        if not (old or described):
            return
        java = self._tables.load(table)
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


def branch_of(target: str) -> str:
    """Return the branch that a table's SQL name ends with."""
    return target.rpartition(".branch_")[2]
