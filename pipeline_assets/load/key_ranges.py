"""Keys of slices in several states, brought together: in this process, or by ranges of keys in tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline_assets.load.file_tasks import FilesOfSlices, each_of, stores_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.key_halves import KEY_TYPES, KeyRows, KeysAmong, RangesOfKeys, StateKeys

Result = TypeVar("Result")

_KEYS_PER_RANGE = 4_000_000
"""Rows whose keys one process compares, 16 bytes each, and about as much to sort them."""


def each_range(
    runtime: Runtime, states: Sequence[FilesOfSlices], collect: Callable[[int, Iterable[StateKeys]], Result]
) -> list[Result]:
    """`collect` of each range of keys: its number, and the keys of all rows with the place of their state in `states`.

    Rows that only Spark can read pass through this process.
    """
    ranges = 1 + sum(files.rows for files in states) // _KEYS_PER_RANGE
    if ranges == 1:
        return [collect(0, [one for place, files in enumerate(states) for one in _held(runtime, place, files)])]
    stores = {key: store for files in states for key, store in stores_of(runtime, files).items()}
    items: list[tuple[int, SliceFile | KeyRows]] = []
    for place, files in enumerate(states):
        items += [(place, file) for file in files.files]
        items += _held(runtime, place, replace(files, files=()))
    weights = [one.rows if isinstance(one, SliceFile) else len(one.first) // 8 for _, one in items]
    dividing = RangesOfKeys(stores, ranges)
    return runtime.tasks.exchange(dividing, runtime.tasks.groups(items, weights), collect, ranges)


def _held(runtime: Runtime, place: int, files: FilesOfSlices) -> list[StateKeys]:
    return [StateKeys(place, one) for one in each_of(runtime, files, KEY_TYPES, KeysAmong(None))]
