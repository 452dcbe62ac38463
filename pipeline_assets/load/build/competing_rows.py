"""Raw rows near some slices that share their key with another row: only these win, lose or compete with other days.

Contains: reading them once for all that a step asks of them.
Add here: another question about competing rows.
Does not contain: the winner rule (transforms/dedupe.py), what is done with winners (refined.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.slices import EMPTY, Slice, Source, neighbourhood
from pipeline_assets.load.build.key_counts import counts_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.cross_day_keys import competing_digest, digests_of_competing, shared_rows
from pipeline_assets.transforms.dedupe import outcomes
from pipeline_assets.transforms.digests import HASH_A, HASH_B
from pipeline_assets.transforms.event_keys import IDENTITY, KEY, candidate_duplicates, with_candidate_keys
from resources.iceberg.metadata import slices_condition

_MOST_SENT_ROWS = 1_000_000
"""About 200 MB in a driver: far more than usual duplicates of any day, and less than a history delivered again."""


class CompetingRows:
    """Competing rows of both raw tables, as of pinned snapshots; kept by Spark until released."""

    def __init__(self, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> None:
        """`slices`: whose rows are asked about; those within the dedupe window of them are read as well."""
        self._runtime = runtime
        self._slices = frozenset(slices)
        self._window = runtime.settings.dedupe_window_days
        near = neighbourhood(slices, self._window)
        self._keys = candidate_duplicates(raw_rows(runtime, pins, near, KEY)).persist()
        counts = counts_of(self._keys, runtime.settings.hot_key_rows)
        self.is_any = counts.keys > 0
        """Whether there is any such row."""
        if self.is_any:
            tasks = int(runtime.spark.conf.get("spark.sql.shuffle.partitions", None) or 1)
            runtime.skew.forecast(counts.skew(REFINED_EVENTS.key, tasks), runtime)
        is_hot = F.col("count") >= runtime.settings.hot_key_rows
        self._hot_keys = self._keys.where(is_hot) if counts.hot else None
        # Sent whole to every task where they are few, so that the rows they are joined with stay where they are.
        keys = F.broadcast(self._keys) if counts.keys <= _MOST_SENT_ROWS else self._keys
        columns = (*IDENTITY, "_object_key", "_line_number", HASH_A, HASH_B)
        self._rows = with_candidate_keys(raw_rows(runtime, pins, near, columns), keys).persist()

    def covers(self, slices: Collection[Slice]) -> bool:
        """Whether these can be asked about."""
        return self._slices.issuperset(slices)

    def outcomes(self, slices: Collection[Slice]) -> DataFrame:
        """`dedupe.outcomes` of the competing rows of these slices, and of rows near them that compete with other days."""
        near = neighbourhood(slices, self._window)
        rows = self._rows.where(slices_condition(REFINED_EVENTS, near))
        decided = outcomes(rows, self._runtime.settings.source_precedence, self._window, self._hot_keys)
        return decided.where(slices_condition(REFINED_EVENTS, slices) | F.col("rival").isNotNull())

    def competing_digests(self, slices: Sequence[Slice]) -> dict[Slice, str]:
        """Per slice the digest of the rows elsewhere that share a key with its own; no content is read."""
        if not self.is_any:
            return dict.fromkeys(slices, str(EMPTY))
        return competing_digests_of(shared_rows(self._rows, self._window, self._hot_keys), self._window, slices)

    def release(self) -> None:
        """Free what is kept."""
        self._rows.unpersist()
        self._keys.unpersist()


def competing_digests_of(shared: DataFrame, window_days: int, slices: Sequence[Slice]) -> dict[Slice, str]:
    """The same from `shared_keys.shared_rows` of these slices and those near them."""
    none = dict.fromkeys(slices, str(EMPTY))
    rows = digests_of_competing(shared, window_days).where(slices_condition(REFINED_EVENTS, slices)).collect()
    return none | {Slice(row["event_date"], row["project_id"]): competing_digest(row.asDict()) for row in rows}


def raw_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], columns: Sequence[str]) -> DataFrame:
    """Both raw tables' rows of these slices: event_date, project_id, the columns asked for, `_source`."""
    frames = {
        source: runtime.lakehouse.read(table, pins[table.key]).where(slices_condition(table, slices))
        for source, table in RAW_TABLES.items()
    }
    return with_source(frames, ["event_date", "project_id", *columns])


def with_source(frames: Mapping[Source, DataFrame], columns: Sequence[str]) -> DataFrame:
    """The rows of all sources: the columns asked for, `_source`."""
    named = [frame.select(*columns, F.lit(source.value).alias("_source")) for source, frame in frames.items()]
    return reduce(DataFrame.unionByName, named)
