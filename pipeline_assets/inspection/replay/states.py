"""A slice as built from some inputs, or as published: its digest, measures and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import number
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.inspection.diff.compare import measures_of
from pipeline_assets.inspection.replay.replay import Keys
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import (
    HASH_A,
    HASH_B,
    checked_hashes,
    digest_aggregates,
    digest_of,
    with_row_hashes,
)
from pipeline_assets.transforms.key_changes import ADDED, CHANGED, KEPT, REMOVED, key_changes
from pipeline_assets.transforms.named import KEY
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class State:
    """A slice as built from one set of inputs and settings, or as published."""

    rows: DataFrame
    digest: Digest
    figures: Mapping[str, float]
    """`rows` and the table's measures."""


def state_of(table: Table, key: Slice, rows: DataFrame) -> State:
    """Measure the slice among these rows in one pass; a caller that compares it with another state persists the rows."""
    own = rows.where(slices_condition(table, [key]))
    hashed, also = checked_hashes(own, table.content_columns)
    figures = [measure.total().alias(name) for name, measure in measures_of(table).items() if name != "rows"]
    (measured,) = hashed.agg(*digest_aggregates(), *also, *figures).collect()
    found = measured.asDict()
    digest = digest_of(found) if found["rows"] else EMPTY
    return State(own, digest, {name: float(number(found[name])) for name in measures_of(table)})


def changes_between(table: Table, before: State, after: State) -> DataFrame:
    """The change of each key, as `key_changes` gives it; a key that moves to another day shows only as removed or added.

    All content columns are hashed again: the digest also covers how an event travelled, and stored hashes are wrong where
    somebody changed a file in place.
    """
    contents = [_contents(table, state.rows) for state in (before, after)]
    nowhere = contents[0].limit(0)
    return key_changes(contents[0], contents[1], nowhere, nowhere, 0)


def _contents(table: Table, rows: DataFrame) -> DataFrame:
    keyed = builder_of(table).with_keys(rows)
    return with_row_hashes(keyed, table.content_columns).select("event_date", "project_id", *KEY, HASH_A, HASH_B)


def count_keys(changes: DataFrame) -> Keys:
    """The number of keys per kind of change."""
    counts = {row["change"]: row["count"] for row in changes.groupBy("change").count().collect()}
    return Keys(*(counts.get(change, 0) for change in (KEPT, ADDED, REMOVED, CHANGED)))


def moved_figures(before: State, after: State) -> dict[str, float]:
    """Measure -> difference, for measures that differ."""
    return {
        name: after.figures[name] - before.figures[name]
        for name in before.figures
        if after.figures[name] != before.figures[name]
    }
