"""Writes refined.events from the files of raw, without moving rows through Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from pipeline_assets.domain.skew import StepSkew, Unit, balanced, share_of, sizes_of
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS, event_hashes
from pipeline_assets.transforms.refine_files import Losers, RawFile, Refined, file_parts, refine_files, weight_of
from resources.spark.tasks import naming_what_workers_met

_STEP = "write"
_TASKS_PER_CORE = 2
_SMALL_FILE_BYTES = 8 * 1024**2
_MOST_COMPARED_ROWS = 8_000_000
"""Most rows of a slice that is written as a difference: a task holds about 25 bytes for each row."""


def raw_files(runtime: Runtime, pins: Mapping[str, int], slices: Sequence[Slice]) -> list[RawFile] | None:
    """The files of these slices in both raw tables; None if one has deletes or is not of Tidemark's kind."""
    raw: list[RawFile] = []
    for source, table in RAW_TABLES.items():
        place = f"{runtime.lakehouse.files.store(table).url}/"
        for key, files in runtime.lakehouse.slice_files(table, pins[table.key], set(slices)).items():
            for path, size in files.sizes.items():
                if files.deletes or not _is_ours(path, place):
                    return None
                raw.append(RawFile(key, source.value, path.removeprefix(place), size))
    return raw


def held_files(runtime: Runtime, base_id: int, slices: Sequence[Slice]) -> dict[Slice, list[str]]:
    """Slices that can be written as a difference -> their files, relative to the location of refined.events.

    A slice with many small files is left out, so that it is rewritten as a whole and its files do not pile up.
    """
    lakehouse = runtime.lakehouse
    place = f"{lakehouse.files.store(REFINED_EVENTS).url}/"
    held = {}
    for key, files in lakehouse.slice_files(REFINED_EVENTS, base_id, set(slices)).items():
        small = sum(size < _SMALL_FILE_BYTES for size in files.sizes.values())
        is_ours = not files.deletes and all(_is_ours(path, place) for path in files.paths)
        if is_ours and small < runtime.settings.rewrite_min_files and files.rows <= _MOST_COMPARED_ROWS:
            held[key] = sorted(path.removeprefix(place) for path in files.paths)
    return held


def _is_ours(path: str, place: str) -> bool:
    """Whether tasks can read the file: another program may write elsewhere, or in another format."""
    return path.startswith(place) and path.endswith(".parquet")


def write_refined(
    runtime: Runtime, files: Sequence[RawFile], losers: Losers, held: Mapping[Slice, Sequence[str]]
) -> Refined:
    """Write new files with the raw rows that did not lose; for slices in `held`, only with the rows that differ."""
    names = runtime.lakehouse.files
    parts = file_parts(files, runtime.spark.sparkContext.defaultParallelism * _TASKS_PER_CORE, held.keys())
    runtime.skew.forecast(_skew(files, parts, held), runtime)
    with naming_what_workers_met():
        refined = refine_files(
            runtime.spark,
            parts,
            losers,
            held,
            stores={source.value: names.store(table) for source, table in RAW_TABLES.items()},
            hashes=event_hashes(),
            layout=names.layout(REFINED_EVENTS, is_ordered=False),
            target=names.store(REFINED_EVENTS),
        )
    runtime.skew.measured(REFINED_EVENTS.key, _STEP, refined.tasks, runtime)
    return refined


def _skew(files: Sequence[RawFile], parts: Sequence[Sequence[RawFile]], held: Collection[Slice]) -> StepSkew:
    """The skew of the bytes to read over projects, event days, files and tasks."""
    names: dict[str, Callable[[RawFile], str]] = {
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
