"""A slice as some inputs make it, or as it is published: its digest, its measures, its keys.

Contains: measuring a state, and comparing two of them.
Add here: another figure of a state.
Does not contain: what is computed from what (recompute.py, shares.py).
"""

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
from pipeline_assets.transforms.event_keys import KEY
from pipeline_assets.transforms.key_changes import ADDED, CHANGED, KEPT, REMOVED, key_changes
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class State:
    """A slice as one set of inputs and settings makes it, or as it is published."""

    rows: DataFrame
    digest: Digest
    figures: Mapping[str, float]
    """Rows, and the table's measures."""


def state_of(table: Table, key: Slice, rows: DataFrame) -> State:
    """The slice among these rows, measured in one pass; who compares it with another state keeps its rows meanwhile."""
    own = rows.where(slices_condition(table, [key]))
    hashed, also = checked_hashes(own, table.content_columns)
    figures = [measure.total().alias(name) for name, measure in measures_of(table).items() if name != "rows"]
    (measured,) = hashed.agg(*digest_aggregates(), *also, *figures).collect()
    found = measured.asDict()
    digest = digest_of(found) if found["rows"] else EMPTY
    return State(own, digest, {name: float(number(found[name])) for name in measures_of(table)})


def changes_between(table: Table, before: State, after: State) -> DataFrame:
    """What becomes of each key, as `key_changes` tells it; of keys that move to another day only that they come and go.

    Content is hashed anew, and all of it: also how an event travelled is part of a digest, and stored hashes stay behind where a
    file was changed in its place.
    """
    contents = [_contents(table, state.rows) for state in (before, after)]
    nowhere = contents[0].limit(0)
    return key_changes(contents[0], contents[1], nowhere, nowhere, 0)


def _contents(table: Table, rows: DataFrame) -> DataFrame:
    keyed = builder_of(table).with_keys(rows)
    return with_row_hashes(keyed, table.content_columns).select("event_date", "project_id", *KEY, HASH_A, HASH_B)


def count_keys(changes: DataFrame) -> Keys:
    """How many keys became what."""
    counts = {row["change"]: row["count"] for row in changes.groupBy("change").count().collect()}
    return Keys(*(counts.get(change, 0) for change in (KEPT, ADDED, REMOVED, CHANGED)))


def moved_figures(before: State, after: State) -> dict[str, float]:
    """Measure -> by how much it changes, of those that do."""
    return {
        name: after.figures[name] - before.figures[name]
        for name in before.figures
        if after.figures[name] != before.figures[name]
    }
