"""Files of raw to files of refined: rows that lost are left out, the others go on as they are, hashes included.

Contains: spreading files over tasks, what their work weighs, and what these tell.
Add here: another figure that tasks tell.
Does not contain: the task (refine_task.py), which rows lost (dedupe.py), how files are laid out
(data_files.py).
"""

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
"""What it takes to open a file and to begin another one."""
_NARROW = 0.15
"""What it takes to compare a byte, beside what it takes to write it."""
_SPLIT_BYTES = 16 * 1024**2
"""A slice of less is no work for several tasks: each would write a small file."""


@dataclass(frozen=True)
class RawFile:
    """A file of raw that holds rows of one slice."""

    key: Slice
    source: str
    path: str
    """Below the place where its source's table lies."""
    size_bytes: int


Losers = Mapping[tuple[Slice, str], pa.Table]
"""Slice and source -> `_object_key` (string) and `_line_number` (int) of rows that are left out."""


@dataclass(frozen=True)
class Refined:
    """What tasks wrote."""

    files: list[str]
    """As `data_file` (data_files.py) describes them."""
    wrong: dict[Slice, str]
    """Slices of which a row is not what was parsed -> which one."""
    gone: dict[Slice, list[str]]
    """Slices that were written as their difference -> files of them that are replaced, below the place where the table lies."""
    keys: dict[Slice, KeyDifference]
    """What becomes of their keys; a slice with very many is not among them."""
    tasks: list[tuple[int, int]] = field(default_factory=list)
    """Of each task, the rows that it wrote and their bytes in memory."""


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
    """Write the rows of these files that did not lose, and hash some of them again; each of `file_parts` is the work of one task.

    `stores`: source -> where its raw files lie. `held`: slices to be written as their difference -> the files that refined has of
    them, below `target`; what stays is not written again. Another slice has as many files as tasks read it.
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
    """Of the work of a file: its bytes, fewer where its slice is only compared with what refined holds, and opening it."""
    return file.size_bytes * (_NARROW if file.key in compared else 1) + _FILE_COST_BYTES


def file_parts(files: Sequence[RawFile], parallelism: int, compared: Collection[Slice] = ()) -> list[list[RawFile]]:
    """About as much work in each; the files of a slice together, unless it is large, not `compared`, and more than that."""
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
