"""Writes files of refined from files of raw: losing rows are left out, the others are copied with their hashes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import FileLayout, Store
from pipeline_assets.transforms.event_hashes import EventHashes
from pipeline_assets.transforms.refine_task import WRITTEN_DDL, Refining, as_bytes, from_bytes
from pipeline_assets.transforms.slice_difference import KeyDifference
from pipeline_assets.transforms.spread import in_buckets

_INPUT = pa.struct([("source", pa.string()), ("paths", pa.list_(pa.string())), ("losers", pa.binary())])
_WORK = pa.schema(
    [
        ("bucket", pa.int32()),
        ("place", pa.int32()),
        ("event_date", pa.date32()),
        ("project_id", pa.string()),
        ("inputs", pa.list_(_INPUT)),
        ("held", pa.list_(pa.string())),
    ]
)
_FILE_COST_BYTES = 256 * 1024
"""The cost of opening a file and beginning another one, in bytes written."""
_NARROW = 0.15
"""The cost of comparing a byte, as a share of the cost of writing it."""
_SPLIT_BYTES = 16 * 1024**2
"""A smaller slice is not divided among tasks, because each would write a small file."""


@dataclass(frozen=True)
class RawFile:
    """A raw file with rows of one slice."""

    key: Slice
    source: str
    path: str
    """Relative to the location of the raw table of `source`."""
    size_bytes: int


Losers = Mapping[tuple[Slice, str], pa.Table]
"""Slice and source -> `_object_key` (string, or a dictionary of them) and `_line_number` (int) of the rows to leave out."""


@dataclass(frozen=True)
class Refined:
    """The result of all tasks."""

    files: list[str]
    """Written files, as `data_file` (data_files.py) describes them."""
    wrong: dict[Slice, str]
    """Slices with a row whose hash does not match -> the row."""
    gone: dict[Slice, list[str]]
    """Slices written as a difference -> their files to replace, relative to the table's location."""
    keys: dict[Slice, KeyDifference]
    """How the keys of these slices change; slices with very many differing keys are left out."""
    tasks: list[tuple[int, int]] = field(default_factory=list)
    """For each task, the rows that it wrote and their bytes in memory."""


def refine_files(
    spark: SparkSession,
    parts: Sequence[Sequence[RawFile]],
    losers: Losers,
    held: Mapping[Slice, Sequence[str]],
    *,
    stores: Mapping[str, Store],
    hashes: EventHashes,
    layout: FileLayout,
    target: Store,
) -> Refined:
    """Write the rows of these files that did not lose, and rehash a sample; each part (`file_parts`) is one task's work.

    `stores`: source -> store of its raw files. `held`: slices to write as a difference -> their files in refined, relative to
    `target`; files whose rows all stay are not rewritten. Any other slice gets a file from each task that reads it.
    """
    told = {at: as_bytes(rows) for at, rows in losers.items()}
    rows = [
        {
            "bucket": bucket,
            "place": place,
            "event_date": key.event_date,
            "project_id": key.project_id,
            "inputs": [
                {"source": source, "paths": [file.path for file in of_source], "losers": told.get((key, source))}
                for source, of_source in groupby(same, lambda file: file.source)
            ],
            "held": held.get(key),
        }
        for bucket, part in enumerate(parts)
        for place, (key, same) in enumerate(groupby(part, lambda file: file.key))
    ]
    if not rows:
        return Refined([], {}, {}, {})
    work = in_buckets(spark, pa.Table.from_pylist(rows, _WORK)).sortWithinPartitions("place").drop("bucket", "place")
    written = work.mapInArrow(Refining(dict(stores), hashes, layout, target), WRITTEN_DDL).collect()
    found = Refined([row["file"] for row in written if row["file"] is not None], {}, {}, {})
    found.tasks.extend((row["task_rows"], row["task_bytes"]) for row in written if row["task_rows"] is not None)
    for row in written:
        key = Slice(row["event_date"], row["project_id"]) if row["event_date"] is not None else None
        if key is None:
            continue
        if row["wrong"] is not None:
            found.wrong[key] = row["wrong"]
        if row["gone"] is not None:
            found.gone[key] = list(row["gone"])
        if row["keys"] is not None:
            found.keys[key] = KeyDifference(row["kept"], row["changed"], from_bytes(bytes(row["keys"])))
    return found


def weight_of(file: RawFile, compared: Collection[Slice]) -> float:
    """The weight of a file: a fixed cost to open it plus its bytes, which count less if its slice is only compared."""
    return file.size_bytes * (_NARROW if file.key in compared else 1) + _FILE_COST_BYTES


def file_parts(files: Sequence[RawFile], parallelism: int, compared: Collection[Slice] = ()) -> list[list[RawFile]]:
    """Divide files into parts of about equal weight, one for each task.

    The files of a slice stay in one part, unless the slice is large, is not in `compared` and exceeds a task's share.
    """
    ordered = sorted(files, key=lambda file: (file.key.project_id, file.key.event_date, file.source, file.path))
    slices = [list(group) for _, group in groupby(ordered, lambda file: file.key)]

    weights = {file: weight_of(file, compared) for file in ordered}
    share = sum(weights.values()) / max(1, parallelism)
    parts: list[list[RawFile]] = [[]]
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
