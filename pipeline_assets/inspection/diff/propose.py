"""A slice's rows as they would be built from its present inputs, without publishing them.

Contains: the proposal, and the keys near it.
Add here: how another kind of table is proposed.
Does not contain: comparing it with what is published (compare.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame

from pipeline_assets.domain.slices import Slice, neighbourhood
from pipeline_assets.load.build.refined import build_refined
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import AggregateTable, Table
from pipeline_assets.transforms.key_changes import held_keys, row_contents
from pipeline_assets.transforms.narrow_events import narrow_events
from resources.iceberg.metadata import slices_condition


@contextmanager
def proposed_rows(
    runtime: Runtime, table: Table, key: Slice, heads: Mapping[str, int], *, on_published: bool
) -> Iterator[tuple[DataFrame, tuple[DataFrame, DataFrame]]]:
    """The slice's rows as they would be built, and the keys near it as published and as proposed."""
    is_slice = slices_condition(REFINED_EVENTS, [key])
    published = runtime.lakehouse.read(REFINED_EVENTS, heads[REFINED_EVENTS.key])
    if isinstance(table, AggregateTable) and on_published:
        with _kept(_aggregated(runtime, table, published.where(is_slice))) as rows:
            yield rows, _nowhere(rows, table)
        return
    window = runtime.settings.dedupe_window_days
    # What an aggregate is made of is the day itself; only an event may move to another one.
    around = [key] if isinstance(table, AggregateTable) else sorted(neighbourhood([key], window))
    build = build_refined(runtime, {name: heads[name] for name in REFINED_EVENTS.upstream}, around, {})
    try:
        if isinstance(table, AggregateTable):
            with _kept(_aggregated(runtime, table, build.rows.where(is_slice))) as rows:
                yield rows, _nowhere(rows, table)
            return
        with _kept(build.rows) as refined:
            is_near = slices_condition(REFINED_EVENTS, around)
            near = (held_keys(published.where(is_near)), held_keys(refined))
            yield refined.where(is_slice), near
    finally:
        build.release()


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, computed once: they are counted, compared and sampled."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def _aggregated(runtime: Runtime, table: AggregateTable, refined: DataFrame) -> DataFrame:
    assert table.build is not None
    events = narrow_events(refined, runtime.settings) if table.reads_narrow_events else refined
    return table.build(events, runtime.settings).select(*[column.name for column in table.columns])


def _nowhere(rows: DataFrame, table: AggregateTable) -> tuple[DataFrame, DataFrame]:
    """Keys near an aggregate's slice: none, its rows do not move."""
    empty = row_contents(rows, table.key_columns, table.content_columns).limit(0)
    keys = empty.select("event_date", "project_id", "_key_a", "_key_b")
    return keys, keys
