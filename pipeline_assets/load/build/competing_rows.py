"""Competing rows: raw rows in or near some slices that share their key with another row. All other rows win."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from pipeline_assets.domain import skew
from pipeline_assets.domain.skew import Share, StepSkew, hashed_sizes
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load.file_tasks import FilesOfSlices, Place, each_of, files_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.contest import READ_TYPES, best_of_days
from pipeline_assets.transforms.contest_tasks import Deciding, Outcome, Ranges, RowsAmong, divided_rows, heavy_halves
from pipeline_assets.transforms.event_hashes import Longs
from pipeline_assets.transforms.file_rows import SliceFile, as_bytes, from_bytes
from pipeline_assets.transforms.keys import FIRST_HALF, first_halves, occurring_twice
from pipeline_assets.transforms.refine_task import Losers

COMPARE = "compare"
_LONG = (1 << 64) - 1


@dataclass(frozen=True)
class KeyCounts:
    """Counts of keys that several rows share; the first half of its hash identifies a key."""

    keys: int
    rows: int
    heaviest: Mapping[int, int]
    hot: Mapping[int, int]

    def skew(self, table: str, tasks: int) -> StepSkew:
        """The skew of rows over keys and over tasks' ranges of keys; rows of hot keys are spread evenly."""
        ((key, most),) = self.heaviest.items()
        # A hash keeps ids of events out of logs.
        name = f"{key & _LONG:016x}"
        together = {} if self.hot else {name: most}
        forecast = hashed_sizes(together, self.rows - sum(together.values()), tasks)
        return StepSkew(table, COMPARE, "rows", (Share("event key", name, most / self.rows, self.keys),), forecast)


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
        self._slices = frozenset(slices)
        self._outcome = _outcome(runtime, places, self._slices)

    @classmethod
    def as_of(cls, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> CompetingRows:
        """Read the slices and those within the dedupe window around them, as of pinned snapshots."""
        near = frozenset(neighbourhood(slices, runtime.settings.dedupe_window_days))
        return cls(runtime, [Place(table, pins[table.key], near) for table in RAW_TABLES.values()], slices)

    def covers(self, slices: Collection[Slice]) -> bool:
        """Whether questions about these slices can be answered."""
        return self._slices.issuperset(slices)

    def reasons(self, slices: Collection[Slice]) -> dict[Slice, Counter[str]]:
        """Slice -> fate (`RowFate`), or LOST_UNREAD -> number of its competing rows."""
        return {key: self._outcome.reasons.get(key, Counter()) for key in slices}

    def losers(self, slices: Collection[Slice]) -> Losers:
        """The rows of these slices that lose."""
        wanted = set(slices)
        return {
            at: pa.concat_tables(parts).unify_dictionaries()
            for at, parts in self._outcome.losers.items()
            if at[0] in wanted
        }

    def competing_digests(self, slices: Collection[Slice]) -> dict[Slice, str]:
        """Slice -> digest of the rows on other days that share a key with its rows."""
        found = self._outcome.competing
        return {key: str(found[key]) if key in found else str(EMPTY) for key in slices}


def _outcome(runtime: Runtime, places: Sequence[Place], slices: frozenset[Slice]) -> Outcome:
    found = files_of(runtime, places)
    if found.rows <= _MOST_KEYS:
        halves, counts = occurring_twice(each_of(runtime, found, FIRST_HALF, first_halves))
        if not len(halves):
            return Outcome()
        counted, among = _counted(halves, counts), RowsAmong(SOURCES, halves.tobytes())
    else:
        counted, among = _heavy(runtime, found), RowsAmong(SOURCES, None)
    is_small = counted.rows <= _SHARES_HERE * skew.HOT_KEY_ROWS
    ranges = Ranges(1, 0, b"") if is_small else _ranges(counted, skew.HOT_KEY_ROWS)
    if counted.heaviest:
        runtime.skew.forecast(counted.skew(REFINED_EVENTS.key, ranges.usual + ranges.hot), runtime)
    settings = runtime.settings
    deciding = Deciding(slices, settings.source_precedence, settings.dedupe_window_days, ranges)
    if is_small:
        return deciding(0, each_of(runtime, found, READ_TYPES, among))
    if ranges.hot:
        deciding = replace(deciding, guests=_guests(runtime, found, ranges))
    return _by_tasks(runtime, found, among, deciding)


def _counted(halves: Longs, counts: Longs) -> KeyCounts:
    is_hot = counts >= skew.HOT_KEY_ROWS
    hot = dict(zip(halves[is_hot].tolist(), counts[is_hot].tolist(), strict=True))
    return KeyCounts(len(halves), int(counts.sum()), {int(halves[counts.argmax()]): int(counts.max())}, hot)


def _heavy(runtime: Runtime, found: FilesOfSlices) -> KeyCounts:
    most = skew.HOT_KEY_ROWS
    total: Counter[int] = Counter()
    heavy = partial(heavy_halves, max(_LEAST_HEAVY, most // len(found.files)))
    for of_file in each_of(runtime, found, FIRST_HALF, heavy):
        total.update(of_file)
    return KeyCounts(
        found.rows,
        found.rows,
        dict(total.most_common(1)),
        {key: count for key, count in total.items() if count >= most},
    )


def _ranges(counted: KeyCounts, most: int) -> Ranges:
    hot = sum(counted.hot.values())
    usual = min(_MOST_PARTS, 1 + (counted.rows - hot) // most)
    halves = np.sort(np.asarray(list(counted.hot), dtype=np.int64)).tobytes()
    return Ranges(usual, min(_MOST_PARTS, 1 + hot // most) if hot else 0, halves)


def _guests(runtime: Runtime, found: FilesOfSlices, ranges: Ranges) -> bytes | None:
    precedence = runtime.settings.source_precedence
    told = each_of(runtime, found, READ_TYPES, RowsAmong(SOURCES, ranges.hot_halves, precedence))
    return as_bytes(best_of_days(pa.concat_tables(map(from_bytes, told)).combine_chunks(), precedence))


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
