"""Builds refined.events from both raw tables, and finds slices that must be published together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from functools import partial, reduce

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.identity import LOST_UNREAD, RowFate
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.builder import Builder, Proposal, kept
from pipeline_assets.load.build.competing_rows import CompetingRows, competing_digests_of, raw_rows, with_source
from pipeline_assets.load.build.key_changes import explain_keys
from pipeline_assets.load.build.refined_audit import audit_of, measure_refined, raw_counts
from pipeline_assets.load.build.refined_files import held_files, raw_files, write_refined
from pipeline_assets.load.build.step import StagedSlices, TablePlan
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.cross_day_keys import key_days, linked_days
from pipeline_assets.transforms.dedupe import LINE, outcomes, winners
from pipeline_assets.transforms.digests import HASH_A, HASH_B
from pipeline_assets.transforms.event_keys import IDENTITY, KEY, candidate_duplicates, with_candidate_keys
from pipeline_assets.transforms.key_changes import event_contents, held_keys, with_event_keys
from pipeline_assets.transforms.refine_files import RawFile
from pipeline_assets.transforms.slice_difference import KeyDifference
from resources.iceberg.metadata import slices_condition
from resources.iceberg.table_files import FileChange

_EPOCH = date(1970, 1, 1)
_MOST_NAMED_ROWS = 300_000
"""Up to this many rows with shared keys, the driver sends losing rows to the tasks by name and holds them meanwhile."""
_MOST_SENT_ROWS = 1_000_000
"""Up to this many rows with shared keys, losers are broadcast; with more, the wide rows are shuffled to join them."""


class RefinedBuilder(Builder[Table]):
    """Builds refined.events; the event key identifies rows, and events may move between days within the dedupe window."""

    def build(self, plan: TablePlan) -> Build:
        """The winners among the raw rows; a slice last built by the present code is written as a difference."""
        slices = plan.to_build
        code = self.table.code_version(plan.runtime.settings)
        # Files from other code, or from other writers, are not reused.
        known = [] if plan.is_whole else [key for key, one in slices.items() if _is_as_built(one.record, code)]
        held = held_files(plan.runtime, plan.base_id, known)
        return build_refined(plan.runtime, plan.pins, sorted(slices), held, plan.competing, plan.states)

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
        published = runtime.lakehouse.read(self.table, heads[self.table.key])
        build = build_refined(runtime, heads, near, {})
        try:
            assert build.rows is not None
            with kept(build.rows) as events:
                published_near = published.where(slices_condition(self.table, near))
                rows = events.where(slices_condition(self.table, [key]))
                yield Proposal(rows, held_keys(published_near), held_keys(events))
        finally:
            build.release()

    def rows_from(self, settings: Settings, key: Slice, inputs: Callable[[str], DataFrame]) -> DataFrame:  # noqa: ARG002 - inputs are of its days
        """The winning rows among those of both raw tables."""
        names = [column.name for column in self.table.columns if column.name != "_source"]
        raw = with_source({source: inputs(table.key) for source, table in RAW_TABLES.items()}, names)
        narrow = raw.select("event_date", "project_id", *IDENTITY, *LINE, HASH_A, HASH_B)
        decided = outcomes(
            with_candidate_keys(narrow, candidate_duplicates(raw)),
            settings.source_precedence,
            settings.dedupe_window_days,
        )
        return winners(raw, decided, do_few_lose=False).select(*[column.name for column in self.table.columns])

    def contents(self, rows: DataFrame) -> DataFrame:
        """The event key, and the hash of the event's meaning without its transport."""
        return event_contents(rows)

    def with_keys(self, rows: DataFrame) -> DataFrame:
        """The rows with the event key, or the hash of the meaning for an event without an id."""
        return with_event_keys(rows)

    @property
    def naming_columns(self) -> tuple[str, ...]:
        """The exporter's ids, the event type and the event time."""
        identity = EXPORT_FORMAT.identity
        return (identity.send_id, identity.row_id, "event_type", EVENT_TIME)

    def competing_rows(self, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> CompetingRows:
        """The raw rows that share a key with another row."""
        return CompetingRows(runtime, pins, slices)

    def links(self, plan: TablePlan, staged: StagedSlices) -> set[tuple[Slice, Slice]]:
        """Pairs of days that exchange events."""
        return linked_slices(plan, staged.snapshot_id)

    def key_changes(self, plan: TablePlan, staged: StagedSlices) -> dict[Slice, KeyChange]:
        """Key changes by cause, from keys and stored hashes."""
        return explain_keys(plan, staged)


def _is_as_built(record: SliceRecord | None, code: str) -> bool:
    return record is not None and record.knows_inputs and record.code_version == code and record.digest != EMPTY


def build_refined(
    runtime: Runtime,
    pins: Mapping[str, int],
    todo: Sequence[Slice],
    held: Mapping[Slice, Sequence[str]],
    competing: CompetingRows | None = None,
    states: Callable[[int, Collection[Slice]], Mapping[int, Collection[Slice]]] = lambda staged_id, near: {
        staged_id: near
    },
) -> Build:
    """The build of refined.events for these slices, from both raw tables as of the pinned snapshots.

    `held`: slices to write as a difference -> their files (`refined_files.held_files`). `competing`: competing rows of the same
    snapshots, if already read; the build releases them. `states`: which snapshot holds the present state of nearby slices
    once the build is staged.
    """
    settings = runtime.settings
    window = settings.dedupe_window_days
    near = neighbourhood(todo, window)
    # Conditions need the Spark session, which may not run yet; CompetingRows starts it.
    if competing is None or not competing.covers(todo):
        if competing is not None:
            competing.release()
        competing = CompetingRows(runtime, pins, todo)
    is_todo = slices_condition(REFINED_EVENTS, todo)
    decided = competing.outcomes(todo).persist()
    release = _releasing(competing, decided)
    try:
        reasons, are_shared = _reasons(decided.where(is_todo) if competing.is_any else None, todo)
        contending = sum(sum(counts.values()) for counts in reasons.values())
        files = raw_files(runtime, pins, todo) if contending <= _MOST_NAMED_ROWS else None
    except BaseException:
        release()
        raise
    do_few_lose = contending <= _MOST_SENT_ROWS
    names = [
        column.name for column in REFINED_EVENTS.columns if column.name not in ("event_date", "project_id", "_source")
    ]
    rows = winners(raw_rows(runtime, pins, todo, names), decided, do_few_lose=do_few_lose)
    do_any_lose = any(outcome != RowFate.WINNER.value for counts in reasons.values() for outcome in counts)
    lost = decided.where(is_todo) if do_any_lose else None
    wrong: dict[Slice, str] = {}
    keys_of: dict[Slice, KeyDifference] = {}

    def write(files: Sequence[RawFile]) -> FileChange:
        refined = write_refined(runtime, files, lost, held)
        wrong.update(refined.wrong)
        keys_of.update(refined.keys)
        place = runtime.lakehouse.files.store(REFINED_EVENTS).url
        gone = {key: [f"{place}/{path}" for path in paths] for key, paths in refined.gone.items()}
        return FileChange(refined.files, set(todo) - gone.keys(), gone)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        counted = raw_counts(runtime, pins, todo)
        measured = measure_refined(runtime, snapshot_id, states(snapshot_id, near), todo, is_checked=files is None)
        shared = decided.where(F.col("rival").isNotNull()).select("event_date", "project_id", "rival.*")
        competing_digests = (
            competing_digests_of(shared, window, todo) if are_shared else dict.fromkeys(todo, str(EMPTY))
        )
        return {
            key: audit_of(measured.get(key), counted[key], reasons[key], competing_digests[key], wrong.get(key))
            for key in todo
        }

    return Build(
        rows,
        audit,
        release,
        is_shuffled=not do_few_lose,
        write=None if files is None else partial(write, files),
        keys=keys_of,
    )


def _releasing(competing: CompetingRows, decided: DataFrame) -> Callable[[], None]:
    def release() -> None:
        decided.unpersist()
        competing.release()

    return release


def _reasons(decided: DataFrame | None, todo: Sequence[Slice]) -> tuple[dict[Slice, Counter[str]], bool]:
    """Slice -> outcome, or LOST_UNREAD -> number of rows; and whether any row has a rival on another day."""
    reasons: dict[Slice, Counter[str]] = {key: Counter() for key in todo}
    if decided is None:
        return reasons, False
    counted = decided.groupBy("event_date", "project_id", "outcome", "is_by_unread")
    rows = counted.agg(F.count(F.lit(1)).alias("count"), F.count("rival").alias("rivals")).collect()
    for row in rows:
        told = (row["outcome"], *([LOST_UNREAD] if row["is_by_unread"] else []))
        reasons[Slice(row["event_date"], row["project_id"])].update(dict.fromkeys(told, row["count"]))
    return reasons, any(row["rivals"] for row in rows)


def linked_slices(plan: TablePlan, staged_id: int) -> set[tuple[Slice, Slice]]:
    """Pairs of slices that must be published together, or events would be lost or doubled."""
    runtime, built = plan.runtime, sorted(plan.to_build)
    window = runtime.settings.dedupe_window_days
    near = neighbourhood(built, window)

    def refined(snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
        events = runtime.lakehouse.read(REFINED_EVENTS, snapshot_id)
        return key_days(events.where(slices_condition(REFINED_EVENTS, slices)))

    by_project: dict[str, list[int]] = {}
    for key in built:
        by_project.setdefault(key.project_id, []).append((key.event_date - _EPOCH).days)
    is_built = reduce(
        Column.__or__, [(F.col("project_id") == name) & F.col("_day").isin(*days) for name, days in by_project.items()]
    )
    raw = key_days(raw_rows(runtime, plan.pins, near, KEY))
    # Only built slices are read from the staged snapshot, because a long-lived branch may hold older states of others.
    after = refined(staged_id, built).unionByName(refined(plan.base_id, near - set(built)))
    pairs = linked_days(refined(plan.base_id, near), after, raw, is_built, window).collect()
    return {(_slice(row["_day"], row["project_id"]), _slice(row["_other_day"], row["project_id"])) for row in pairs}


def _slice(day: int, project_id: str) -> Slice:
    return Slice(_EPOCH + timedelta(days=day), project_id)
