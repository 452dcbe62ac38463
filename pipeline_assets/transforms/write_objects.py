"""Objects to raw data files, written by the tasks that read the objects; the job returns a row per object, file and task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.spool import naming_the_disk
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.clusters import DayClusters
from pipeline_assets.transforms.data_files import ARROW_TYPES, DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes
from pipeline_assets.transforms.parse import ObjectWork
from pipeline_assets.transforms.parsed_batches import OBJECT, ROW, SUMMARY

_ENOUGH_ROWS = 2000
_SEND_ID = EXPORT_FORMAT.identity.send_id
_OBJECT = {"object_key": "string", **SUMMARY}
_FIELDS = {**_OBJECT, "file": "string", "task_rows": "bigint", "task_bytes": "bigint", "task_rows_without_id": "bigint"}
_SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in _FIELDS.items()])


def write_objects(
    objects: DataFrame, work: ObjectWork, hashes: EventHashes, layout: FileLayout, store: Store
) -> DataFrame:
    """Read the objects of `placed` (spread.py), write their rows to files, and return a frame with three kinds of rows:
    object_key and SUMMARY of each part of an object; `file`; the totals of a task (`task_rows` written, `task_bytes` of them in
    memory, `task_rows_without_id` without a send id).

    Files are described by `data_file` (data_files.py), and exist once their row is returned. No row describes a file of a
    failed task.
    """  # noqa: D205 - what comes back in one sentence
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _FIELDS.items())
    return objects.mapInArrow(_Writing(work, hashes, layout, store), schema)


@dataclass(frozen=True)
class _Writing:
    """The mapInArrow function; runs in Spark's Python workers."""

    work: ObjectWork
    hashes: EventHashes
    layout: FileLayout
    store: Store

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _Task(self.hashes, self.layout, self.store)
        try:
            with naming_the_disk():
                for batch in batches:
                    for rows in self.work.read(batch.to_pylist()):
                        kind = rows["_kind"][0].as_py()
                        if kind == ROW:
                            yield from _files(task.add(rows))
                        elif kind == OBJECT:
                            yield _summaries(rows)
                yield from _files(task.finish())
                yield pa.RecordBatch.from_pylist([task.told], _SCHEMA)
        except BaseException as error:
            task.discard()
            if isinstance(error, TidemarkError):
                raise RuntimeError(error.as_line()) from error
            raise
        finally:
            task.close()


class _Task:
    """Hashes, groups and writes the rows of one task."""

    def __init__(self, hashes: EventHashes, layout: FileLayout, store: Store) -> None:
        self._hashes = hashes
        self._names = list(layout.field_ids)
        self._parsed = [name for name in self._names if name not in HASH_COLUMNS]
        self._writer = DataFileWriter(layout, store)
        # Rows are grouped by day, because an open file per day would need memory in proportion to the number of days.
        self._days = DayClusters()
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._without_id = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Take rows of one arrival day; small batches are held until there are enough rows to be worth a batch's calls."""
        self._without_id += rows[_SEND_ID].null_count
        parsed = rows.select(self._parsed)
        if self._held and self._held[0]["project_id"][0] != parsed["project_id"][0]:
            yield from self._pass_on()
        self._held.append(parsed)
        self._held_rows += parsed.num_rows
        if self._held_rows >= _ENOUGH_ROWS:
            yield from self._pass_on()

    def finish(self) -> Iterator[str]:
        """Write all remaining rows and finish the files."""
        if self._held:
            yield from self._pass_on()
        for rows in self._days.rest():
            yield from self._writer.add(rows)
        yield from self._writer.finish()

    @property
    def told(self) -> dict[str, int]:
        """The totals of the task."""
        return {
            "task_rows": self._writer.rows,
            "task_bytes": self._writer.bytes,
            "task_rows_without_id": self._without_id,
        }

    def discard(self) -> None:
        """Delete the files written."""
        self._writer.discard()

    def close(self) -> None:
        """Release the rows held back."""
        self._days.close()

    def _pass_on(self) -> Iterator[str]:
        rows = self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        self._held, self._held_rows = [], 0
        made = self._hashes.of(rows)
        columns = [made[name] if name in made else rows.column(name) for name in self._names]
        for part in self._days.add(pa.RecordBatch.from_arrays(columns, names=self._names)):
            yield from self._writer.add(part)


def _files(described: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for file in described:
        yield pa.RecordBatch.from_pylist([{"file": file}], _SCHEMA)


def _summaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        rows["_object_key"],
        *(rows[name] for name in SUMMARY),
        pa.nulls(rows.num_rows, pa.string()),
        *[pa.nulls(rows.num_rows, pa.int64())] * 3,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
