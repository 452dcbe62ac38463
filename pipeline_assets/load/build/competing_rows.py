"""Competing rows: raw rows in or near some slices that share their key with another row. All other rows win."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline_assets.domain import skew
from pipeline_assets.domain.skew import Share, StepSkew, hashed_sizes
from pipeline_assets.domain.slices import Slice, neighbourhood
from pipeline_assets.load.file_tasks import FilesOfSlices, Place, each_of, files_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.transforms.contest import READ_TYPES, best_of_days
from pipeline_assets.transforms.contest_tasks import Deciding, Outcome, Ranges, RowsAmong, divided_rows, heavy_halves
from pipeline_assets.transforms.event_hashes import Longs
from pipeline_assets.transforms.file_rows import SliceFile, as_bytes, from_bytes
from pipeline_assets.transforms.keys import FIRST_HALF, first_halves, occurring_twice
from pipeline_assets.transforms.refine_task import Losers

COMPARE = "compare"
_LONG = (1 << 64) - 1


class KeyCounts(NamedTuple):
    """Counts of keys that several rows share; the first half of its hash identifies a key."""

    keys: int
    rows: int
    heaviest: tuple[int, int]
    """A key and its rows."""
    hot: Mapping[int, int]


_MOST_KEYS = 20_000_000
"""Up to this many raw rows, this process sorts half a key of each, 8 bytes."""
_SHARES_HERE = 3
"""Up to this many times `HOT_KEY_ROWS` such rows, about 200 bytes each, this process decides; beyond, tasks do."""
_MOST_PARTS = 100_000
_LEAST_HEAVY = 100
"""A key with fewer rows in each file is not hot."""
SOURCES = {table.key: source.value for source, table in RAW_TABLES.items()}


class CompetingRows:
    """The fate of the competing rows of some slices in both raw tables."""

    def __init__(self, runtime: Runtime, places: Sequence[Place], slices: Collection[Slice]) -> None:
        self.slices = frozenset(slices)
        self.outcome = _outcome(runtime, places, self.slices)

    @classmethod
    def as_of(cls, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> CompetingRows:
        """Read the slices and those within the dedupe window around them, as of pinned snapshots."""
        near = frozenset(neighbourhood(slices, runtime.settings.dedupe_window_days))
        return cls(runtime, [Place(table, pins[table.key], near) for table in RAW_TABLES.values()], slices)

    def losers(self, slices: Collection[Slice]) -> Losers:
        """The rows of these slices that lose."""
        wanted = frozenset(slices)
        losers = {at: parts for at, parts in self.outcome.losers.items() if at[0] in wanted}
        return {at: pa.concat_tables(parts).unify_dictionaries() for at, parts in losers.items()}


def _outcome(runtime: Runtime, places: Sequence[Place], slices: frozenset[Slice]) -> Outcome:
    found = files_of(runtime, places)
    if found.rows <= _MOST_KEYS:
        halves, counts = occurring_twice(each_of(runtime, found, FIRST_HALF, first_halves))
        if not len(halves):
            return Outcome()
        counted, among = _counted(halves, counts), RowsAmong(SOURCES, halves.tobytes())
    else:
        counted, among = _heavy(runtime, found), RowsAmong(SOURCES, None)
    is_small, hot = counted.rows <= _SHARES_HERE * skew.HOT_KEY_ROWS, sum(counted.hot.values())
    ranges = Ranges(1, 0, b"")
    if not is_small:
        usual, of_hot = (min(_MOST_PARTS, 1 + rows // skew.HOT_KEY_ROWS) for rows in (counted.rows - hot, hot))
        hot_halves = np.sort(np.asarray(list(counted.hot), dtype=np.int64)).tobytes()
        ranges = Ranges(usual, of_hot if hot else 0, hot_halves)
    key, most = counted.heaviest
    if most:
        # A hash keeps ids of events out of logs. Rows of hot keys are spread evenly.
        name, together = f"{key & _LONG:016x}", 0 if hot else most
        sizes = hashed_sizes({} if hot else {name: most}, counted.rows - together, ranges.usual + ranges.hot)
        share = Share("event key", name, most / counted.rows, counted.keys)
        runtime.skew.forecast(StepSkew(REFINED_EVENTS.key, COMPARE, "rows", (share,), sizes), runtime)
    settings = runtime.settings
    deciding = Deciding(slices, settings.source_precedence, settings.dedupe_window_days, ranges)
    if is_small:
        return deciding(0, each_of(runtime, found, READ_TYPES, among))
    if ranges.hot:
        precedence = settings.source_precedence
        told = each_of(runtime, found, READ_TYPES, RowsAmong(SOURCES, ranges.hot_halves, precedence))
        best = best_of_days(pa.concat_tables(map(from_bytes, told)).combine_chunks(), precedence)
        deciding = replace(deciding, guests=as_bytes(best))
    return _by_tasks(runtime, found, among, deciding)


def _counted(halves: Longs, counts: Longs) -> KeyCounts:
    is_hot, first = counts >= skew.HOT_KEY_ROWS, counts.argmax()
    hot = dict(zip(halves[is_hot].tolist(), counts[is_hot].tolist(), strict=True))
    return KeyCounts(len(halves), int(counts.sum()), (int(halves[first]), int(counts[first])), hot)


def _heavy(runtime: Runtime, found: FilesOfSlices) -> KeyCounts:
    most = skew.HOT_KEY_ROWS
    total: Counter[int] = Counter()
    heavy = partial(heavy_halves, max(_LEAST_HEAVY, most // len(found.files)))
    for of_file in each_of(runtime, found, FIRST_HALF, heavy):
        total.update(of_file)
    hot = {key: count for key, count in total.items() if count >= most}
    return KeyCounts(found.rows, found.rows, next(iter(total.most_common(1)), (0, 0)), hot)


def _by_tasks(runtime: Runtime, found: FilesOfSlices, among: RowsAmong, deciding: Deciding) -> Outcome:
    """The outcome by parts. Narrow rows that only Spark can read pass through this process."""
    items: list[SliceFile | bytes] = [*found.files]
    items += each_of(runtime, replace(found, files=()), READ_TYPES, among)
    weights = [item.cost if isinstance(item, SliceFile) else len(item) for item in items]
    groups = runtime.tasks.groups(items, weights)
    stores = {table.key: runtime.lakehouse.files.store(table) for table in RAW_TABLES.values()}
    dividing = partial(divided_rows, among, stores, deciding.ranges)
    outcome = Outcome()
    for part in runtime.tasks.exchange(dividing, groups, deciding, deciding.ranges.parts):
        outcome.add(part)
    return outcome
