"""Competing rows: raw rows in or near some slices that share their key with another row. All other rows win."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.slices import EMPTY, Slice, Source, neighbourhood
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.load.build.key_counts import counts_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.cross_day_keys import competing_digest, digests_of_competing, shared_rows
from pipeline_assets.transforms.dedupe import UNREAD, outcomes
from pipeline_assets.transforms.digests import HASH_A, HASH_B
from pipeline_assets.transforms.event_keys import IDENTITY, KEY, candidate_duplicates, unread_text, with_candidate_keys
from resources.iceberg.metadata import slices_condition

_MOST_SENT_ROWS = 1_000_000
"""About 200 MB in the driver: far more than a day's usual duplicates, and fewer than a re-delivered history has."""


class CompetingRows:
    """Competing rows of both raw tables, as of pinned snapshots; cached by Spark until released."""

    def __init__(self, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> None:
        """`slices`: slices to answer questions about; slices within the dedupe window around them are read too."""
        self._runtime = runtime
        self._slices = frozenset(slices)
        self._window = runtime.settings.dedupe_window_days
        near = neighbourhood(slices, self._window)
        self._keys = candidate_duplicates(raw_rows(runtime, pins, near, KEY)).persist()
        counts = counts_of(self._keys, runtime.settings.hot_key_rows)
        self.is_any = counts.keys > 0
        """Whether there is any competing row."""
        if self.is_any:
            tasks = int(runtime.spark.conf.get("spark.sql.shuffle.partitions", None) or 1)
            runtime.skew.forecast(counts.skew(REFINED_EVENTS.key, tasks), runtime)
        is_hot = F.col("count") >= runtime.settings.hot_key_rows
        self._hot_keys = self._keys.where(is_hot) if counts.hot else None
        # Few keys are broadcast, so that the rows to join are not shuffled.
        keys = F.broadcast(self._keys) if counts.keys <= _MOST_SENT_ROWS else self._keys
        columns = (*IDENTITY, "_object_key", "_line_number", HASH_A, HASH_B, EXTRA_COLUMN)
        rows = raw_rows(runtime, pins, near, columns).withColumn(UNREAD, unread_text().isNotNull()).drop(EXTRA_COLUMN)
        self._rows = with_candidate_keys(rows, keys).persist()

    def covers(self, slices: Collection[Slice]) -> bool:
        """Whether questions about these slices can be answered."""
        return self._slices.issuperset(slices)

    def outcomes(self, slices: Collection[Slice]) -> DataFrame:
        """`dedupe.outcomes` of the competing rows of these slices, and of nearby rows that compete with other days."""
        near = neighbourhood(slices, self._window)
        rows = self._rows.where(slices_condition(REFINED_EVENTS, near))
        decided = outcomes(rows, self._runtime.settings.source_precedence, self._window, self._hot_keys)
        return decided.where(slices_condition(REFINED_EVENTS, slices) | F.col("rival").isNotNull())

    def competing_digests(self, slices: Sequence[Slice]) -> dict[Slice, str]:
        """Slice -> digest of the rows on other days that share a key with its rows; reads no content."""
        if not self.is_any:
            return dict.fromkeys(slices, str(EMPTY))
        return competing_digests_of(shared_rows(self._rows, self._window, self._hot_keys), self._window, slices)

    def release(self) -> None:
        """Free the cached frames."""
        self._rows.unpersist()
        self._keys.unpersist()


def competing_digests_of(shared: DataFrame, window_days: int, slices: Sequence[Slice]) -> dict[Slice, str]:
    """The same from `cross_day_keys.shared_rows` of these slices and their neighbours."""
    none = dict.fromkeys(slices, str(EMPTY))
    rows = digests_of_competing(shared, window_days).where(slices_condition(REFINED_EVENTS, slices)).collect()
    return none | {Slice(row["event_date"], row["project_id"]): competing_digest(row.asDict()) for row in rows}


def raw_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], columns: Sequence[str]) -> DataFrame:
    """The rows of these slices in both raw tables: event_date, project_id, `columns`, `_source`."""
    frames = {
        source: runtime.lakehouse.read(table, pins[table.key]).where(slices_condition(table, slices))
        for source, table in RAW_TABLES.items()
    }
    return with_source(frames, ["event_date", "project_id", *columns])


def with_source(frames: Mapping[Source, DataFrame], columns: Sequence[str]) -> DataFrame:
    """The union of the rows of all sources: `columns`, `_source`."""
    named = [frame.select(*columns, F.lit(source.value).alias("_source")) for source, frame in frames.items()]
    return reduce(DataFrame.unionByName, named)
