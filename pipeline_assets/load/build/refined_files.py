"""Writes refined.events from the files of raw, without moving rows through Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

from pipeline_assets.domain.skew import StepSkew, Unit, balanced, share_of, sizes_of
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.file_tasks import Place, files_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS, event_hashes
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.refine_files import Losers, WritingRows, file_parts, together, weight_of, work_of
from pipeline_assets.transforms.refine_task import Refined, Refining
from resources.spark.tasks import EachTold, naming_what_workers_met

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STEP = "write"
_MOST_COMPARED_ROWS = 8_000_000
"""Most rows of a slice that is written as a difference: a task holds about 40 bytes for each row."""


def raw_files(
    runtime: Runtime, pins: Mapping[str, int], slices: Sequence[Slice]
) -> tuple[list[SliceFile], frozenset[Slice]]:
    """The files of these slices in both raw tables, and the slices, left out there, of which only Spark can read some rows."""
    found = files_of(runtime, [Place(table, pins[table.key], frozenset(slices)) for table in RAW_TABLES.values()])
    foreign = frozenset(key for place in found.others for key in place.slices)
    return [file for file in found.files if file.key not in foreign], foreign


def held_files(runtime: Runtime, base_id: int, slices: Sequence[Slice]) -> dict[Slice, list[SliceFile]]:
    """Slices that can be written as a difference -> their files in refined.events."""
    found = files_of(runtime, [Place(REFINED_EVENTS, base_id, frozenset(slices))])
    held = {key: list(files) for key, files in groupby(found.files, lambda file: file.key)}
    return {key: files for key, files in held.items() if sum(file.rows for file in files) <= _MOST_COMPARED_ROWS}


def write_refined(
    runtime: Runtime, files: Sequence[SliceFile], losers: Losers, held: Mapping[Slice, Sequence[SliceFile]]
) -> Refined:
    """Write new files with the raw rows that did not lose; for slices in `held`, only with the rows that differ."""
    names = runtime.lakehouse.files
    parts = file_parts(files, runtime.tasks.most_groups, held.keys())
    runtime.skew.forecast(_skew(files, parts, held), runtime)
    refining = Refining(
        stores={table.key: names.store(table) for table in RAW_TABLES.values()},
        sources={table.key: source.value for source, table in RAW_TABLES.items()},
        hashes=event_hashes(),
        layout=names.layout(REFINED_EVENTS, is_ordered=False),
        target=names.store(REFINED_EVENTS),
    )
    tables = {source.value: table.key for source, table in RAW_TABLES.items()}
    work = work_of(parts, {(key, tables[source]): rows for (key, source), rows in losers.items()}, held)
    # All columns are read, of the files that a difference rewrites, too.
    read_bytes = sum(file.size_bytes for file in chain(files, *held.values()))
    refined = together(runtime.tasks.run(refining, work, read_bytes=read_bytes))
    runtime.skew.measured(REFINED_EVENTS.key, _STEP, refined.tasks, runtime)
    return refined


def write_rows(runtime: Runtime, rows: DataFrame) -> list[str]:
    """Write rows with the columns of refined, of whole slices, which only Spark can read; return the files."""
    at = (REFINED_EVENTS.day_column, "project_id")
    names = runtime.lakehouse.files
    writing = EachTold(WritingRows(names.layout(REFINED_EVENTS, is_ordered=False), names.store(REFINED_EVENTS)))
    placed = rows.repartition(*at).sortWithinPartitions(*at)
    with naming_what_workers_met():
        return [row["file"] for row in placed.mapInArrow(writing, "file string").collect()]


def _skew(files: Sequence[SliceFile], parts: Sequence[Sequence[SliceFile]], held: Collection[Slice]) -> StepSkew:
    """The skew of the bytes to read over projects, event days, files and tasks."""
    names: dict[str, Callable[[SliceFile], str]] = {
        "project": lambda file: file.key.project_id,
        "event day": lambda file: file.key.event_date.isoformat(),
        "file": lambda file: file.path,
    }
    weights = {file: weight_of(file, held) for file in files}
    keys = [share_of(key, ((name_of(file), weights[file]) for file in files)) for key, name_of in names.items()]
    of_slice: dict[Slice, float] = {}
    for file in files:
        of_slice[file.key] = of_slice.get(file.key, 0.0) + weights[file]
    whole = [0.0] * len(parts)
    for weight, task in zip(of_slice.values(), balanced([*of_slice.values()], len(parts)), strict=True):
        whole[task] += weight
    tasks = sizes_of(sum(weights[file] for file in part) for part in parts)
    return StepSkew(REFINED_EVENTS.key, _STEP, Unit.BYTES, tuple(keys), sizes_of(whole), tasks)
