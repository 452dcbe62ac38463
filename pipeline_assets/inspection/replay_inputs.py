"""Find, measure and read the inputs of a publication as they are now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce

import pyspark.sql.functions as F
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.records import InputDay, PublicationRecord, differing
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.inspection.replay_result import InputSlice, Obstacle, Origin
from pipeline_assets.load.build.builder import Inputs
from pipeline_assets.load.file_tasks import Place, places_at
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.as_of import items_of_days
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table, is_dimension
from pipeline_assets.transforms.digests import slice_digests
from resources.iceberg.errors import first_line, lakehouse_failures
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class Kept:
    """The remaining snapshots and records of a table."""

    snapshot_ids: Collection[int]
    head: int
    today: Mapping[Slice, Digest]
    publications: Mapping[Slice, Sequence[PublicationRecord]]


def places(kept: Kept, key: Slice, digest: Digest, pin: int | None) -> tuple[int, ...]:
    """Kept snapshots with this digest: the pin, the head, those that published it, the parents of those that replaced it."""
    found = [pin, *_recorded(kept, key, digest)]
    return tuple(dict.fromkeys(place for place in found if place is not None and place in kept.snapshot_ids))


def _recorded(kept: Kept, key: Slice, digest: Digest) -> Iterator[int]:
    # Maintenance never expires the head.
    if kept.today.get(key, EMPTY) == digest:
        yield kept.head
    records = kept.publications.get(key, ())
    for number, record in enumerate(records):
        if record.digest_after == digest:
            yield record.snapshot_id
            if number + 1 < len(records):
                yield records[number + 1].parent_id


_DELIVER = "Have the snapshot of the day delivered; or replay it from its own items: --as-published"
_SET_BACK = "Replay it with the settings of then in the environment; or from its own items: --as-published"


@dataclass(frozen=True)
class Items:
    """The items that a load would join with a day's events."""

    days: tuple[InputDay, ...] = ()
    """Empty where no snapshot applies, or the table joins none."""
    reason: str = ""
    """Why a load would not build the day now; empty where it would."""

    @property
    def are_missing(self) -> bool:
        """Whether there are events but no items to join."""
        return bool(self.reason) and not self.days


def items_of(facts: Facts, table: Table, key: Slice, now: datetime) -> Items:
    """The choice for a slice of a table joined with a dimension, from the ledger."""
    assert table.dimension is not None
    items = items_of_days(facts, table.dimension, now)
    days = tuple(items.inputs(key.event_date))
    events = (facts.records[name].get(key) for name in table.upstream if not is_dimension(name))
    if not any(record is not None and record.digest != EMPTY for record in events):
        return Items(days)
    wait = items.wait_of(key.event_date)
    if wait is None and not days:
        lacks = f"{table.dimension.snapshot.key} holds no snapshot of"
        if table.dimension.intervals_are_delivered(facts.settings):
            lacks = f"{table.dimension.validity.key} does not tell of"
        return Items(reason=f"{lacks} {key.event_date} or of a day before it")
    return Items(days, wait.reason if wait is not None else "")


def without_items(
    table: Table, origin: Origin | Obstacle, today: Settings, reason: str, choose: Callable[[Settings], Items]
) -> list[Obstacle]:
    """Why current inputs give no build, changed settings first; `choose`: the choice that other settings would make now."""
    told = Obstacle(reason, _DELIVER)
    if isinstance(origin, Obstacle) or not choose(origin.settings).days:
        return [told]
    sides = ({name: getattr(side, name) for name in table.kind.chosen_by} for side in (origin.settings, today))
    changed = differing(*sides)
    return [*(Obstacle(f"setting {name}: {then} -> {now}", _SET_BACK) for name, (then, now) in changed.items()), told]


Placed = Mapping[InputDay, int | None]
"""Upstream day -> the snapshot to read its rows from; None for an empty day."""
_OUT_OF_MEMORY = "OutOfMemoryError"


def input_days(table: Table, key: Slice, settings: Settings) -> list[InputDay]:
    """The upstream days that a slice is built from, as far as the kind of table decides them without records."""
    return [
        InputDay(name, one.event_date)
        for name in table.upstream
        for one in table.kind.input_slices(name, key, settings)
    ]


def items_of_today(runtime: Runtime, table: Table, key: Slice, settings: Settings) -> Items:
    """The items that a load with these settings would join with the day's events now."""
    if table.dimension is None:
        return Items()
    now = datetime.now(UTC)
    facts = Facts.read(runtime.ledger, settings, {key}, (), now).reading(runtime.ledger, [table])
    return items_of(facts, table, key, now)


def slice_of(day: InputDay, key: Slice) -> Slice:
    """The slice of an upstream day, for a slice built from it."""
    return Slice(day.day, ALL_PROJECTS if is_dimension(day.table) else key.project_id)


def kept_of(runtime: Runtime, table: Table, slices: Collection[Slice]) -> Kept:
    """The remaining snapshots and records of these slices of a table."""
    days, projects = {key.event_date for key in slices}, sorted({key.project_id for key in slices})
    published: dict[Slice, list[PublicationRecord]] = {}
    for record in runtime.ledger.publications(table.key, projects, days):
        published.setdefault(record.key, []).append(record)
    records = runtime.ledger.slices(table.key, projects, days)
    return Kept(
        runtime.lakehouse.snapshot_ids(table),
        runtime.lakehouse.head(table),
        {key: record.digest for key, record in records.items()},
        published,
    )


def find_inputs(runtime: Runtime, table: Table, key: Slice, origin: Origin) -> list[InputSlice]:
    """Each input of a publication, with the snapshot that still holds its rows, verified by digest."""
    days = {*input_days(table, key, origin.settings), *origin.state.upstream}
    found = []
    for name in table.upstream:
        upstream = table_by_key(name)
        own = {slice_of(day, key): day for day in sorted(days) if day.table == name}
        kept = kept_of(runtime, upstream, own)
        found += [
            find_slice(runtime, upstream, slice_key, kept, origin.digest(day), origin.pins.get(name), day)
            for slice_key, day in own.items()
        ]
    return found


def find_slice(
    runtime: Runtime, table: Table, key: Slice, kept: Kept, digest: Digest, pin: int | None, day: InputDay
) -> InputSlice:
    """The slice with this digest in a kept snapshot; where none has it, the content of the first readable candidate."""
    if digest == EMPTY:
        return InputSlice(day, digest, pin, None, EMPTY)
    others: list[InputSlice] = []
    reasons: list[str] = []
    read: set[frozenset[str]] = set()
    for snapshot_id in places(kept, key, digest, pin):
        files = runtime.lakehouse.slice_files(table, snapshot_id, [key]).get(key)
        paths = files.paths if files is not None else frozenset()
        if paths in read:
            continue
        read.add(paths)
        measured = measured_slice(runtime, table, key, snapshot_id)
        if measured == digest:
            return InputSlice(day, digest, pin, snapshot_id, digest)
        if isinstance(measured, str):
            reasons.append(measured)
        else:
            others.append(InputSlice(day, digest, pin, snapshot_id, measured))
    if others:
        return others[0]
    where = "no snapshot that is kept is known to have these rows"
    gone = f"snapshot {pin} has expired, and {where}" if pin is not None else where
    return InputSlice(day, digest, pin, reason=reasons[0] if reasons else gone, is_lost=bool(reasons))


def measured_slice(runtime: Runtime, table: Table, key: Slice, snapshot_id: int) -> Digest | str:
    """The digest of a slice, computed from its columns instead of stored hashes; or why its files cannot be read."""
    try:
        with lakehouse_failures(table.key):
            rows = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, [key]))
            return slice_digests(_declared(rows, table), table.content_columns, table.day_column).get(key, EMPTY)
    except LakehouseError as error:
        return error.reason
    except (Py4JJavaError, PySparkException) as error:
        if _OUT_OF_MEMORY in str(error):
            raise
        return f"its files cannot be read: {first_line(error)}"


def placed(found: Iterable[InputSlice]) -> Placed:
    """Input day -> the snapshot to read it from."""
    return {one.day: one.read_from for one in found}


def reading(runtime: Runtime, table: Table, key: Slice, where: Placed) -> Inputs:
    """The inputs for `Builder.rows_from`: of an upstream table, each day from its snapshot."""

    def places_of(name: str) -> list[Place]:
        of_table = ((slice_of(day, key), at) for day, at in where.items() if day.table == name and at is not None)
        return places_at(table_by_key(name), of_table)

    def rows(name: str) -> DataFrame:
        upstream = table_by_key(name)
        frames = [
            _declared(runtime.lakehouse.read(upstream, place.snapshot_id), upstream).where(
                slices_condition(upstream, place.slices)
            )
            for place in places_of(name)
        ]
        if not frames:
            head = runtime.lakehouse.head(upstream)
            return _declared(runtime.lakehouse.read(upstream, head), upstream).limit(0)
        return reduce(DataFrame.unionByName, frames)

    assert all(day.table in table.upstream for day in where)
    return Inputs(runtime, rows, places_of)


def _declared(rows: DataFrame, table: Table) -> DataFrame:
    there = set(rows.columns)
    return rows.select(
        *[
            F.col(column.name) if column.name in there else F.lit(None).cast(column.type).alias(column.name)
            for column in table.columns
        ]
    )


@dataclass(frozen=True)
class Present:
    """The current inputs."""

    where: Placed
    digests: Mapping[InputDay, Digest]
    items: Items


def present_inputs(runtime: Runtime, table: Table, key: Slice, settings: Settings) -> Present:
    """The inputs that the slice would be built from now; raises LakehouseError where a file cannot be read."""
    where: dict[InputDay, int | None] = {}
    digests: dict[InputDay, Digest] = {}
    items = items_of_today(runtime, table, key, settings)
    today = [*input_days(table, key, settings), *items.days]
    for name in table.upstream:
        upstream = table_by_key(name)
        head = runtime.lakehouse.head(upstream)
        days = {slice_of(day, key): day for day in today if day.table == name}
        held = runtime.lakehouse.slice_files(upstream, head, days)
        for slice_key, day in days.items():
            measured = measured_slice(runtime, upstream, slice_key, head) if slice_key in held else EMPTY
            if isinstance(measured, str):
                hint = "Restore the files, or load the day that they belong to again: docs/operations.md"
                raise LakehouseError(table.key, f"{name} {day.day}: {measured}", hint)
            digests[day], where[day] = measured, head if slice_key in held else None
    return Present(where, digests, items)
