"""The share of each input in the difference between a publication and a build from current inputs, by key and measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.checks import number
from pipeline_assets.domain.input_state import InputDay, differing, with_recorded
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.diff.compare import measures_of
from pipeline_assets.inspection.replay.inputs import Placed, Present, input_days, reading
from pipeline_assets.inspection.replay.origin import Origin
from pipeline_assets.inspection.replay.replay import Keys, Share
from pipeline_assets.load.build.builder import Inputs, kept
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.refined import PLACE, losers_among, losing, with_source
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.kinds import is_dimension
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import SOURCE_OF_TABLE, table_by_key
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import (
    HASH_A,
    HASH_B,
    MEANING_HASH,
    checked_hashes,
    digest_aggregates,
    digest_of,
    with_row_hashes,
)
from pipeline_assets.transforms.event_hashes import KEY
from pipeline_assets.transforms.key_changes import ADDED, CHANGED, KEPT, REMOVED, key_changes, with_event_keys
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


_NAME = ("_name_a", "_name_b")
_BATCH = ("_source", "event_date", "_arrival_date")


@dataclass(frozen=True)
class Then:
    """A publication with the inputs from which it can be recomputed."""

    origin: Origin
    where: Placed
    published: State
    untold: str
    """The cause to name where the publication's own inputs give other rows than were published."""


def shares_of(
    runtime: Runtime, table: Table, key: Slice, then: Then, present: Present, today: State
) -> Iterator[Share]:
    """The shares of the difference between the publication and `today`, in the order in which causes are switched.

    Code first, then each setting, then the inputs: each step builds the slice with one more part as of today, and the change
    in that step is the part's share. So the shares add up to the whole difference.
    """
    settings, builder = then.origin.settings, builder_of(table)
    with ExitStack() as stack:

        def state(of_settings: Settings, where: Placed) -> State:
            rows = builder.rows_from(of_settings, key, reading(runtime, table, key, where))
            found = state_of(table, key, rows)
            stack.enter_context(kept(found.rows))
            return found

        before = then.published
        after = state(settings, then.where)
        if after.digest != before.digest:
            yield _share(table, then.untold, before, after)
        own = table.recorded_settings(settings)
        for name, (old, new) in differing(own, table.recorded_settings(runtime.settings)).items():
            before, settings = after, with_recorded(settings, {name: new})
            after = state(settings, _widened(runtime, table, key, settings, then))
            yield _share(table, f"setting {name}: {old} -> {new}", before, after)
        if after.digest == today.digest:
            return
        where = _widened(runtime, table, key, settings, then)
        if all(name in SOURCE_OF_TABLE for name in table.upstream):
            changes = stack.enter_context(kept(changes_between(table, after, today)))
            sides = (reading(runtime, table, key, side) for side in (where, present.where))
            yield from _batches(key, settings, changes, *sides)
            return
        for number, name in enumerate(table.upstream, 1):
            before = after
            others = {day: place for day, place in where.items() if day.table != name}
            where = others | {day: place for day, place in present.where.items() if day.table == name}
            after = today if number == len(table.upstream) else state(settings, where)
            if after.digest != before.digest:
                yield _share(table, f"{name}: other rows", before, after)


def _widened(runtime: Runtime, table: Table, key: Slice, settings: Settings, then: Then) -> dict[InputDay, int | None]:
    """The original inputs for the days that these settings read; days not read originally come from the pinned snapshot."""
    # No setting of the table decides which dimension snapshot stands for a day.
    where: dict[InputDay, int | None] = {day: place for day, place in then.where.items() if is_dimension(day.table)}
    for day in input_days(table, key, settings):
        if day in then.where:
            where[day] = then.where[day]
            continue
        upstream = table_by_key(day.table)
        pin = then.origin.pins.get(day.table)
        is_kept = pin is not None and pin in runtime.lakehouse.snapshot_ids(upstream)
        where[day] = pin if is_kept else runtime.lakehouse.head(upstream)
    return where


def _share(table: Table, cause: str, before: State, after: State) -> Share:
    if before.digest == after.digest:
        return Share(cause, Keys(kept=after.digest.rows))
    return Share(cause, count_keys(changes_between(table, before, after)), moved_figures(before, after))


def _batches(key: Slice, settings: Settings, changes: DataFrame, then: Inputs, now: Inputs) -> Iterator[Share]:
    """Shares by the batch that decides about a key: one that was added and wins, else one that was removed and had won."""
    raw = [_narrow(inputs) for inputs in (then, now)]
    place = [*PLACE, HASH_A, HASH_B]
    left, came = raw[0].join(raw[1], place, "left_anti"), raw[1].join(raw[0], place, "left_anti")
    with kept(
        _decided(came, now, settings, is_came=True).unionByName(_decided(left, then, settings, is_came=False))
    ) as moved:
        touched = changes.where(F.col("change") != KEPT).select(
            *[F.col(old).alias(new) for old, new in zip(KEY, _NAME, strict=True)], "change"
        )
        decisive = moved.groupBy(*_NAME).agg(
            F.max_by(F.struct(*_BATCH), F.struct("_decides", "_is_came", *_BATCH, "_object_key", "_line_number")).alias(
                "batch"
            )
        )
        by_batch = touched.join(decisive, list(_NAME), "left").groupBy("batch", "change").count().collect()
        rows = (
            moved.groupBy(*_BATCH)
            .agg(F.count_if("_is_came").alias("came"), F.count_if(~F.col("_is_came")).alias("left"))
            .collect()
        )
    counts: dict[Row | None, dict[str, int]] = {Row(*_BATCH)(*(row[name] for name in _BATCH)): {} for row in rows}
    for row in by_batch:
        counts.setdefault(row["batch"], {})[row["change"]] = row["count"]
    moves = {tuple(row[name] for name in _BATCH): f"{row['came']:,} rows came, {row['left']:,} left" for row in rows}
    for batch, by_change in sorted(counts.items(), key=lambda item: (item[0] is None, item[0] or ())):
        keys = Keys(0, by_change.get(ADDED, 0), by_change.get(REMOVED, 0), by_change.get(CHANGED, 0))
        net = keys.added - keys.removed
        yield Share(_batch_text(key, batch, moves), keys, {"rows": float(net)} if net else {})


def _batch_text(key: Slice, batch: Row | None, moves: Mapping[tuple[object, ...], str]) -> str:
    if batch is None:
        return "no row of raw that came or left"
    near = "" if batch["event_date"] == key.event_date else " (a day near it)"
    place = f"raw/{batch['_source']}_events {batch['event_date']}{near}"
    return f"{batch['_source']} batch that arrived {batch['_arrival_date']}, in {place}: {moves[tuple(batch)]}"


def _narrow(inputs: Inputs) -> DataFrame:
    ids = (EXPORT_FORMAT.identity.send_id, EXPORT_FORMAT.identity.row_id)
    kept_columns = ("event_date", "project_id", "_object_key", "_line_number", "_arrival_date")
    return with_source(inputs, [*kept_columns, *KEY, *ids, HASH_A, HASH_B, MEANING_HASH])


def _decided(moved: DataFrame, inputs: Inputs, settings: Settings, *, is_came: bool) -> DataFrame:
    """Added or removed rows, with the keys of refined.events and `_decides`: 3 or 2 for a winner, 1 or 0 for a loser."""
    named = with_event_keys(moved).select(
        *PLACE, "_arrival_date", *[F.col(old).alias(new) for old, new in zip(KEY, _NAME, strict=True)]
    )
    slices = {key for table in RAW_TABLES.values() for place in inputs.places(table.key) for key in place.slices}
    lost = losing(moved.sparkSession, losers_among(inputs, settings, slices)).withColumn("_loses", F.lit(True))
    decides = F.when(F.col("_loses"), 1 if is_came else 0).otherwise(3 if is_came else 2)
    return named.join(lost, list(PLACE), "left").select(
        *PLACE, "_arrival_date", *_NAME, decides.alias("_decides"), F.lit(is_came).alias("_is_came")
    )
