"""Divides the writing of refined among tasks: each reads files of raw, leaves losing rows out and copies the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.file_rows import SliceFile, with_columns
from pipeline_assets.transforms.refine_task import Input, Refined, SliceWork, as_bytes

_FILE_COST_BYTES = 256 * 1024
"""The cost of opening a file and beginning another one, in bytes written."""
_NARROW = 0.15
"""The cost of comparing a byte, as a share of the cost of writing it."""
_SPLIT_BYTES = 16 * 1024**2
"""A smaller slice is not divided among tasks, because each would write a small file."""


@dataclass(frozen=True)
class WritingRows:
    """A function of `mapInArrow`: files (one column, string) of a table from rows with its columns, sorted by slice."""

    layout: FileLayout
    target: Store

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises the TidemarkError of what it writes."""
        files: list[str] = []
        with DataFileWriter(self.layout, self.target) as writer:
            for rows in batches:
                for placed in with_columns(pa.Table.from_batches([rows]), self.layout.types).to_batches():
                    files.extend(writer.add(placed))
            files.extend(writer.finish())
        yield pa.RecordBatch.from_pydict({"file": pa.array(files, pa.string())})


Losers = Mapping[tuple[Slice, str], pa.Table]
"""Slice and source -> `_object_key` (string, or a dictionary of them) and `_line_number` (int) of the rows to leave out."""


def work_of(
    parts: Sequence[Sequence[SliceFile]], losers: Losers, held: Mapping[Slice, Sequence[SliceFile]]
) -> list[list[SliceWork]]:
    """What each task is to do, of which each part (`file_parts`) is the raw files.

    `losers`: with the key of the raw table instead of the source. `held`: slices to write as a difference -> their files in
    refined; files whose rows all stay are not rewritten. Any other slice gets a file from each task that reads it.
    """
    told = {at: as_bytes(rows) for at, rows in losers.items()}
    work: list[list[SliceWork]] = []
    for part in parts:
        work.append([])
        for key, same in groupby(part, lambda file: file.key):
            files = list(same)
            inputs = [
                Input(table, [file.path for file in of_table], told.get((key, table)))
                for table, of_table in groupby(files, lambda file: file.table)
            ]
            rows = sum(file.rows for file in files)
            work[-1].append(SliceWork(key, inputs, rows, [file.path for file in held.get(key, ())]))
    return work


def together(results: Iterable[Refined]) -> Refined:
    """The result of all tasks."""
    told = Refined()
    for one in results:
        told.files.extend(one.files)
        told.wrong.update(one.wrong)
        told.gone.update(one.gone)
        told.keys.update(one.keys)
        told.tasks.extend(one.tasks)
    return told


def weight_of(file: SliceFile, compared: Collection[Slice]) -> float:
    """The weight of a file: a fixed cost to open it plus its bytes, which count less if its slice is only compared."""
    return file.size_bytes * (_NARROW if file.key in compared else 1) + _FILE_COST_BYTES


def file_parts(files: Sequence[SliceFile], parallelism: int, compared: Collection[Slice] = ()) -> list[list[SliceFile]]:
    """Divide files into parts of about equal weight, one for each task.

    The files of a slice stay in one part, unless the slice is large, is not in `compared` and exceeds a task's share.
    """
    ordered = sorted(files, key=lambda file: (file.key.project_id, file.key.event_date, file.table, file.path))
    slices = [list(group) for _, group in groupby(ordered, lambda file: file.key)]

    weights = {file: weight_of(file, compared) for file in ordered}
    share = sum(weights.values()) / max(1, parallelism)
    parts: list[list[SliceFile]] = [[]]
    weight = 0.0
    for same in slices:
        if weight and weight + sum(weights[file] for file in same) > 1.5 * share:
            parts.append([])
            weight = 0.0
        is_whole = same[0].key in compared or sum(weights[file] for file in same) < _SPLIT_BYTES
        for file in same:
            if weight >= share and (file is same[0] or not is_whole):
                parts.append([])
                weight = 0.0
            parts[-1].append(file)
            weight += weights[file]
    return [part for part in parts if part]
