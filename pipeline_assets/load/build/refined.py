"""Builds refined.events from both raw tables, and finds slices that must be published together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.builder import Builder, Inputs, Proposal, kept
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.build.key_changes import explain_keys
from pipeline_assets.load.build.refined_audit import audit_of, measure_refined, raw_counts
from pipeline_assets.load.build.refined_files import held_files, raw_files, write_refined, write_rows
from pipeline_assets.load.build.step import StagedSlices, TablePlan
from pipeline_assets.load.build.winning_rows import PLACE, raw_rows, winning_rows, with_source, without
from pipeline_assets.load.file_tasks import Place, files_of
from pipeline_assets.load.key_ranges import each_range
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.compared_keys import Contents, EventContents
from pipeline_assets.transforms.cross_day_keys import BEFORE, BUILT, RAW, Linking
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.key_changes import event_contents, held_keys, with_event_keys
from pipeline_assets.transforms.named import KEY
from pipeline_assets.transforms.refine_files import Losers
from pipeline_assets.transforms.slice_difference import KeyDifference
from resources.iceberg.metadata import slices_condition
from resources.iceberg.table_files import FileChange


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
        losers = CompetingRows.as_of(runtime, heads, near).losers(near)
        raw = raw_rows(runtime, heads, near, [*(name for name in PLACE if name != "_source"), *KEY])
        with kept(winning_rows(runtime, heads, [key], losers)) as rows:
            published_near = published.where(slices_condition(self.table, near))
            yield Proposal(rows, held_keys(published_near), held_keys(without(raw, losers)))

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
        return EventContents()

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
    held: Mapping[Slice, Sequence[SliceFile]],
    competing: CompetingRows | None = None,
    states: Callable[[int, Collection[Slice]], Mapping[int, Collection[Slice]]] = lambda staged_id, near: {
        staged_id: near
    },
) -> Build:
    """The build of refined.events for these slices, from both raw tables as of the pinned snapshots.

    `held`: slices to write as a difference -> their files (`refined_files.held_files`). `competing`: competing rows of the same
    snapshots, if already read. `states`: which snapshot holds the present state of nearby slices once the build is staged.
    """
    near = neighbourhood(todo, runtime.settings.dedupe_window_days)
    if competing is None or not competing.covers(todo):
        competing = CompetingRows.as_of(runtime, pins, todo)
    reasons, losers, competing_digests = (
        competing.reasons(todo),
        competing.losers(todo),
        competing.competing_digests(todo),
    )
    files, foreign = raw_files(runtime, pins, todo)
    wrong: dict[Slice, str] = {}
    keys_of: dict[Slice, KeyDifference] = {}

    def write() -> FileChange:
        of_files = {key: of_slice for key, of_slice in held.items() if key not in foreign}
        refined = write_refined(runtime, files, losers, of_files)
        if foreign:
            # Another program wrote or hid some of their rows.
            refined.files.extend(write_rows(runtime, winning_rows(runtime, pins, foreign, losers)))
        wrong.update(refined.wrong)
        keys_of.update(refined.keys)
        place = runtime.lakehouse.files.store(REFINED_EVENTS).url
        gone = {key: [f"{place}/{path}" for path in paths] for key, paths in refined.gone.items()}
        return FileChange(refined.files, set(todo) - gone.keys(), gone)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        counted = raw_counts(runtime, pins, todo)
        measured = measure_refined(runtime, snapshot_id, states(snapshot_id, near), todo, is_checked=bool(foreign))
        return {
            key: audit_of(measured.get(key), counted[key], reasons[key], competing_digests[key], wrong.get(key))
            for key in todo
        }

    return Build(None, audit, write=write, keys=keys_of)


def rows_from_raw(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> DataFrame:
    """The rows that a build of these slices would write."""
    return winning_rows(runtime, pins, slices, CompetingRows.as_of(runtime, pins, slices).losers(slices))


def losers_among(inputs: Inputs, settings: Settings, slices: Collection[Slice]) -> Losers:
    """The rows of these slices that lose, by these settings, to others among inputs of refined.events."""
    places = [place for table in RAW_TABLES.values() for place in inputs.places(table.key)]
    return CompetingRows(replace(inputs.runtime, settings=settings), places, slices).losers(slices)


def linked_slices(plan: TablePlan, staged_id: int) -> set[tuple[Slice, Slice]]:
    """Pairs of slices that must be published together, or events would be lost or doubled."""
    runtime, built = plan.runtime, frozenset(plan.to_build)
    window = runtime.settings.dedupe_window_days
    near = frozenset(neighbourhood(built, window))
    states = {
        BEFORE: [Place(REFINED_EVENTS, plan.base_id, near)],
        # Only built slices are read from the staged snapshot, because a long-lived branch may hold older states of others.
        BUILT: [Place(REFINED_EVENTS, staged_id, built)],
        RAW: [Place(table, plan.pins[table.key], near) for table in RAW_TABLES.values()],
    }
    found = [files_of(runtime, states[state]) for state in range(len(states))]
    return set().union(*each_range(runtime, found, Linking(built, window)))
