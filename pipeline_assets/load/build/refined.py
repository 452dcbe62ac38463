"""Builds refined.events from both raw tables, and finds slices that must be published together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.skew import StepSkew, share_of
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.build.builder import Audit, Build, Builder, Inputs, Proposal, StagedSlices, TablePlan, kept
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.build.refined_audit import audit_of, explain_keys, measure_refined, raw_counts
from pipeline_assets.load.file_tasks import Place, each_range, files_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS, event_hashes
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import event_contents, held_keys, with_event_keys
from pipeline_assets.transforms.event_hashes import KEY
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.keys import BEFORE, BUILT, EVENT_CONTENTS, RAW, Contents, KeyDifference, linked
from pipeline_assets.transforms.refine_task import (
    Losers,
    Refined,
    Refining,
    file_parts,
    rows_to_files,
    together,
    weight_of,
    work_of,
)
from resources.iceberg.metadata import slices_condition
from resources.iceberg.staging import FileChange
from resources.spark.tasks import each_told, naming_what_workers_met

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_TYPES = {
    "event_date": pa.date32(),
    "project_id": pa.string(),
    "_source": pa.string(),
    "_object_key": pa.string(),
    "_line_number": pa.int32(),
}
PLACE = tuple(_TYPES)


def raw_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], columns: Sequence[str]) -> DataFrame:
    """The rows of these slices in both raw tables: `columns`, `_source`."""
    tables = {table.key: table for table in RAW_TABLES.values()}
    return with_source(
        lambda name: runtime.lakehouse.read(tables[name], pins[name]).where(slices_condition(tables[name], slices)),
        columns,
    )


def with_source(inputs: Callable[[str], DataFrame], columns: Sequence[str]) -> DataFrame:
    """Both raw tables' rows (key -> rows) together: `columns`, `_source`."""
    named = [
        inputs(table.key).select(*columns, F.lit(source.value).alias("_source")) for source, table in RAW_TABLES.items()
    ]
    return reduce(DataFrame.unionByName, named)


def winning_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], losers: Losers) -> DataFrame:
    """The rows of these slices in both raw tables that do not lose, with the columns of refined.events."""
    names = [column.name for column in REFINED_EVENTS.columns]
    raw = raw_rows(runtime, pins, slices, [name for name in names if name != "_source"])
    return without(raw.select(*names), {at: rows for at, rows in losers.items() if at[0] in slices})


def without(raw: DataFrame, losers: Losers) -> DataFrame:
    """The rows that do not lose, of rows with PLACE."""
    if not losers:
        return raw
    # By slice too: another day may still hold rows of an older version of the object.
    return raw.join(losing(raw.sparkSession, losers), on=list(PLACE), how="left_anti").select(*raw.columns)


def losing(spark: SparkSession, losers: Losers) -> DataFrame:
    """PLACE of the rows that lose."""
    nothing = pa.table({name: pa.array([], kind) for name, kind in _TYPES.items()})
    return spark.createDataFrame(pa.concat_tables([nothing, *(_placed(at, rows) for at, rows in losers.items())]))


def _placed(at: tuple[Slice, str], rows: pa.Table) -> pa.Table:
    (key, source), count = at, rows.num_rows
    fixed = {"event_date": key.event_date, "project_id": key.project_id, "_source": source}
    columns = [
        pa.repeat(pa.scalar(fixed[name], kind), count) if name in fixed else rows[name].cast(kind)
        for name, kind in _TYPES.items()
    ]
    return pa.Table.from_arrays(columns, names=list(_TYPES))


_STEP = "write"
_MOST_COMPARED_ROWS = 8_000_000
"""Most rows of a slice that is written as a difference: a task holds about 40 bytes for each row."""


def raw_files(
    runtime: Runtime, pins: Mapping[str, int], slices: Sequence[Slice]
) -> tuple[list[SliceFile], frozenset[Slice]]:
    """The raw files of these slices, and the slices, left out there, with rows that only Spark can read."""
    found = files_of(runtime, [Place(table, pins[table.key], frozenset(slices)) for table in RAW_TABLES.values()])
    foreign = frozenset(key for place in found.others for key in place.slices)
    return [file for file in found.files if file.key not in foreign], foreign


def held_files(runtime: Runtime, base_id: int, slices: Sequence[Slice]) -> dict[Slice, list[SliceFile]]:
    """Slice that can be written as a difference -> its files in refined.events."""
    found = files_of(runtime, [Place(REFINED_EVENTS, base_id, frozenset(slices))])
    held = {key: list(files) for key, files in groupby(found.files, lambda file: file.key)}
    return {key: files for key, files in held.items() if sum(file.rows for file in files) <= _MOST_COMPARED_ROWS}


def write_refined(
    runtime: Runtime, files: Sequence[SliceFile], losers: Losers, held: Mapping[Slice, Sequence[SliceFile]]
) -> Refined:
    """Write new files with the raw rows that did not lose; for slices in `held`, only with the rows that differ."""
    names = runtime.lakehouse.files
    parts = file_parts(files, runtime.tasks.most_groups, held.keys())
    if len(parts) > 1:
        runtime.skew.forecast(_skew(files, parts, held), runtime)
    refining = Refining(
        stores={table.key: names.store(table) for table in RAW_TABLES.values()},
        sources={table.key: source.value for source, table in RAW_TABLES.items()},
        hashes=event_hashes(),
        layout=names.layout(REFINED_EVENTS, is_ordered=False),
        target=names.store(REFINED_EVENTS),
    )
    tables = {source.value: table.key for source, table in RAW_TABLES.items()}
    work = work_of(parts, {(key, tables[source]): rows for (key, source), rows in losers.items()}, held)
    read_bytes = sum(file.size_bytes for file in chain(files, *held.values()))
    refined = together(runtime.tasks.run(refining, work, read_bytes=read_bytes))
    if len(parts) > 1:
        runtime.skew.measured(REFINED_EVENTS.key, _STEP, refined.tasks, runtime)
    return refined


def write_rows(runtime: Runtime, rows: DataFrame) -> list[str]:
    """Write whole slices with the columns of refined, for rows that only Spark reads; return the files."""
    at = (REFINED_EVENTS.day_column, "project_id")
    names = runtime.lakehouse.files
    writing = each_told(
        partial(rows_to_files, names.layout(REFINED_EVENTS, is_ordered=False), names.store(REFINED_EVENTS))
    )
    placed = rows.repartition(*at).sortWithinPartitions(*at)
    with naming_what_workers_met():
        return [row["file"] for row in placed.mapInArrow(writing, "file string").collect()]


def _skew(files: Sequence[SliceFile], parts: Sequence[Sequence[SliceFile]], held: Collection[Slice]) -> StepSkew:
    weights = {file: weight_of(file, held) for file in files}
    shares = (
        share_of("project", ((file.key.project_id, weights[file]) for file in files)),
        share_of("event day", ((file.key.event_date.isoformat(), weights[file]) for file in files)),
        share_of("file", ((file.path, weights[file]) for file in files)),
    )
    tasks = tuple(sum(weights[file] for file in part) for part in parts)
    return StepSkew(REFINED_EVENTS.key, _STEP, "bytes", shares, tasks)


class RefinedBuilder(Builder[Table]):
    """Builds refined.events; the event key identifies rows, and events may move between days within the dedupe window."""

    def build(self, plan: TablePlan) -> Build:
        """The winners among the raw rows; a slice last built by the present code is written as a difference."""
        runtime, pins, todo = plan.runtime, plan.pins, sorted(plan.to_build)
        code = self.table.code_version(runtime.settings)
        known = [] if plan.is_whole else [key for key in todo if _is_as_built(plan.to_build[key].record, code)]
        competing = plan.competing
        if competing is None or not competing.slices.issuperset(todo):
            competing = CompetingRows.as_of(runtime, pins, todo)
        outcome, losers = competing.outcome, competing.losers(todo)
        files, foreign = raw_files(runtime, pins, todo)
        held = {key: own for key, own in held_files(runtime, plan.base_id, known).items() if key not in foreign}
        wrong: dict[Slice, str] = {}
        keys_of: dict[Slice, KeyDifference] = {}

        def write(target: str) -> None:
            refined = write_refined(runtime, files, losers, held)
            if foreign:
                refined.files.extend(write_rows(runtime, winning_rows(runtime, pins, foreign, losers)))
            wrong.update(refined.wrong)
            keys_of.update(refined.keys)
            place = runtime.lakehouse.files.store(REFINED_EVENTS).url
            gone = {key: [f"{place}/{path}" for path in paths] for key, paths in refined.gone.items()}
            change = FileChange(refined.files, set(todo) - gone.keys(), gone)
            runtime.lakehouse.files.replace(self.table, target, change)

        def audit(snapshot_id: int) -> dict[Slice, Audit]:
            counted = raw_counts(runtime, pins, todo)
            near = plan.states(snapshot_id, neighbourhood(todo, runtime.settings.dedupe_window_days))
            measured = measure_refined(runtime, snapshot_id, near, todo, is_checked=bool(foreign))
            audits = {}
            for key in todo:
                reasons, digest = outcome.reasons.get(key, Counter()), str(outcome.competing.get(key, EMPTY))
                audits[key] = audit_of(measured.get(key), counted[key], reasons, digest, wrong.get(key))
            return audits

        return Build(write, audit, keys=keys_of)

    def rows_now(self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool) -> DataFrame:  # noqa: ARG002 - raw is not derived
        """From raw."""
        return rows_from_raw(runtime, heads, [key])

    @contextmanager
    def proposed(
        self,
        runtime: Runtime,
        key: Slice,
        heads: Mapping[str, int],
        *,
        on_published: bool,  # noqa: ARG002 - raw is not derived
    ) -> Iterator[Proposal]:
        """Build from raw, together with the days that the slice may exchange events with."""
        near = sorted(neighbourhood([key], self.table.kind.exchange_days(runtime.settings)))
        published = runtime.lakehouse.read(self.table, heads[self.table.key]).where(slices_condition(self.table, near))
        losers = CompetingRows.as_of(runtime, heads, near).losers(near)
        raw = raw_rows(runtime, heads, near, [*(name for name in PLACE if name != "_source"), *KEY])
        with kept(winning_rows(runtime, heads, [key], losers)) as rows:
            yield Proposal(rows, held_keys(published), held_keys(without(raw, losers)))

    def rows_from(self, settings: Settings, key: Slice, inputs: Inputs) -> DataFrame:
        """The winning rows among those of both raw tables."""
        names = [column.name for column in self.table.columns]
        raw = with_source(inputs, [name for name in names if name != "_source"])
        own = raw.where(slices_condition(self.table, [key])).select(*names)
        return without(own, losers_among(inputs, settings, [key]))

    def contents(self, rows: DataFrame) -> DataFrame:
        """The event key, and the hash of the event's meaning without its transport."""
        return event_contents(rows)

    def with_keys(self, rows: DataFrame) -> DataFrame:
        """The rows with the event key, or the hash of the meaning for an event without an id."""
        return with_event_keys(rows)

    @property
    def key_contents(self) -> Contents:
        """The same, by tasks."""
        return EVENT_CONTENTS

    @property
    def naming_columns(self) -> tuple[str, ...]:
        """The exporter's ids, the event type and the event time."""
        identity = EXPORT_FORMAT.identity
        return (identity.send_id, identity.row_id, "event_type", EVENT_TIME)

    def competing_rows(self, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> CompetingRows:
        """The raw rows that share a key with another row."""
        return CompetingRows.as_of(runtime, pins, slices)

    def links(self, plan: TablePlan, staged: StagedSlices) -> set[tuple[Slice, Slice]]:
        """Pairs of days that exchange events."""
        runtime, built = plan.runtime, frozenset(plan.to_build)
        window = runtime.settings.dedupe_window_days
        near = frozenset(neighbourhood(built, window))
        states = {
            BEFORE: [Place(REFINED_EVENTS, plan.base_id, near)],
            # A long-lived branch may hold older states of slices that were not built.
            BUILT: [Place(REFINED_EVENTS, staged.snapshot_id, built)],
            RAW: [Place(table, plan.pins[table.key], near) for table in RAW_TABLES.values()],
        }
        found = [files_of(runtime, states[state]) for state in range(len(states))]
        return set().union(*each_range(runtime, found, partial(linked, built, window)))

    def key_changes(self, plan: TablePlan, staged: StagedSlices) -> dict[Slice, KeyChange]:
        """Key changes by cause, from keys and stored hashes."""
        return explain_keys(plan, staged)


def _is_as_built(record: SliceRecord | None, code: str) -> bool:
    return record is not None and record.knows_inputs and record.code_version == code and record.digest != EMPTY


def rows_from_raw(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> DataFrame:
    """The rows that a build of these slices would write."""
    return winning_rows(runtime, pins, slices, CompetingRows.as_of(runtime, pins, slices).losers(slices))


def losers_among(inputs: Inputs, settings: Settings, slices: Collection[Slice]) -> Losers:
    """The rows of these slices that lose to others among these inputs, by these settings."""
    places = [place for table in RAW_TABLES.values() for place in inputs.places(table.key)]
    return CompetingRows(replace(inputs.runtime, settings=settings), places, slices).losers(slices)
