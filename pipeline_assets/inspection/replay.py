"""Recompute a publication from its original or the current inputs, and attribute its difference from the record to causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import Head, InputDay, PublicationRecord, differing, with_recorded
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, ROW_HASH_VERSION, Digest, Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.diff import State, samples_of, state_of
from pipeline_assets.inspection.replay_inputs import (
    Placed,
    Present,
    find_inputs,
    find_slice,
    input_days,
    items_of_today,
    kept_of,
    measured_slice,
    placed,
    present_inputs,
    reading,
    slice_of,
    without_items,
)
from pipeline_assets.inspection.replay_result import (
    Keys,
    Obstacle,
    Origin,
    PublishedToday,
    Replay,
    ReplayBasis,
    ReplayResult,
    Share,
    as_published_causes,
    gone,
    of_published,
    origin_of,
)
from pipeline_assets.load.build.builder import Inputs, kept
from pipeline_assets.load.build.rebuild import builder_of
from pipeline_assets.load.build.refined import PLACE, losers_among, losing, with_source
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import DIMENSIONS, RESTORABLE, SOURCE_OF_TABLE, table_by_key
from pipeline_assets.tables.table import Table, is_dimension
from pipeline_assets.transforms.digests import (
    HASH_A,
    HASH_B,
    MEANING_HASH,
    with_row_hashes,
)
from pipeline_assets.transforms.event_hashes import KEY
from pipeline_assets.transforms.key_changes import ADDED, CHANGED, KEPT, REMOVED, key_changes, with_event_keys
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.metadata import slices_condition


def changes_between(table: Table, before: State, after: State) -> DataFrame:
    """The change of each key, as `key_changes` gives it; a key that moves to another day shows only as removed or added."""
    then, now = (
        with_row_hashes(builder_of(table).with_keys(state.rows), table.content_columns).select(
            "event_date", "project_id", *KEY, HASH_A, HASH_B
        )
        for state in (before, after)
    )
    return key_changes(then, now, then.limit(0), then.limit(0), 0)


def count_keys(changes: DataFrame) -> Keys:
    """The number of keys per kind of change."""
    counts = {row["change"]: row["count"] for row in changes.groupBy("change").count().collect()}
    return Keys(*(counts.get(change, 0) for change in (KEPT, ADDED, REMOVED, CHANGED)))


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
    """Shares of the difference from `today`: code, then each setting, then the inputs; each step switches one more part."""
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
    """The original inputs for the days that these settings read; other days come from the pinned snapshot."""
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
    moved = {name: after.figures[name] - value for name, value in before.figures.items()}
    changed = {name: by for name, by in moved.items() if by}
    return Share(cause, count_keys(changes_between(table, before, after)), changed)


def _batches(key: Slice, settings: Settings, changes: DataFrame, then: Inputs, now: Inputs) -> Iterator[Share]:
    """Shares by the batch that decides about a key: an added one that wins, else a removed one that had won."""
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
    """Added or removed rows with their event keys and `_decides`: 3 or 2 for a winner, 1 or 0 for a loser."""
    named = with_event_keys(moved).select(
        *PLACE, "_arrival_date", *[F.col(old).alias(new) for old, new in zip(KEY, _NAME, strict=True)]
    )
    slices = {key for table in RAW_TABLES.values() for place in inputs.places(table.key) for key in place.slices}
    lost = losing(moved.sparkSession, losers_among(inputs, settings, slices)).withColumn("_loses", F.lit(True))
    decides = F.when(F.col("_loses"), 1 if is_came else 0).otherwise(3 if is_came else 2)
    return named.join(lost, list(PLACE), "left").select(
        *PLACE, "_arrival_date", *_NAME, decides.alias("_decides"), F.lit(is_came).alias("_is_came")
    )


SNAPSHOTS = frozenset(dimension.snapshot.key for dimension in DIMENSIONS)


@dataclass(frozen=True)
class Chosen:
    """A publication to replay."""

    publication: PublicationRecord
    is_standing: bool


def derived_table(name: str) -> Table:
    """The derived table with this key; raises UsageError for any other table."""
    if name in SOURCE_OF_TABLE or name in SNAPSHOTS:
        reason = "holds what was delivered, so there is nothing to compute again"
        hint = "Compare it with landing" + (": tidemark verify --from DAY --to DAY" if name in SOURCE_OF_TABLE else "")
        raise UsageError(name, reason, hint)
    known = {table.key: table for table in RESTORABLE}
    if name not in known:
        raise UsageError(name, "is not a derived table", f"There are {', '.join(known)}")
    return known[name]


def choose(
    records: Iterable[PublicationRecord],
    table: str,
    day: date,
    projects: Sequence[str],
    number: int | None = None,
    run: str | None = None,
) -> list[Chosen]:
    """Each project's last of `records` (oldest first) for a day, or the one of this number or run; raises UsageError."""
    by_project: dict[str, list[PublicationRecord]] = {}
    for record in records:
        if record.key.event_date == day and record.key.project_id in projects:
            by_project.setdefault(record.key.project_id, []).append(record)
    chosen = []
    for _, own in sorted(by_project.items()):
        meant = [
            record
            for record in own
            if number in (None, record.number) and (run is None or (record.run_id or "").startswith(run))
        ]
        if meant:
            chosen.append(Chosen(meant[-1], is_standing=meant[-1] is own[-1]))
    if not chosen:
        which = (
            f"publication {number}" if number is not None else f"a publication by run {run}" if run else "a publication"
        )
        reason = f"{which} of project {', '.join(projects)} is not on record"
        raise UsageError(f"{table} {day}", reason, f"`tidemark history {table} {day}` lists them")
    return chosen


def replay(runtime: Runtime, table: Table, chosen: Chosen, basis: ReplayBasis, samples: int = 0) -> Replay:
    """Recompute one publication, without writes; raises only where catalog, ledger or engine cannot be reached."""
    publication, settings = chosen.publication, runtime.settings
    code = publication.code_version, table.code_version(settings)
    none = Replay(publication, basis, ReplayResult.IMPOSSIBLE, chosen.is_standing, code)
    record = runtime.ledger.slices(table.key, [publication.key.project_id], [publication.key.event_date])
    confirmed = record.get(publication.key) if chosen.is_standing else None
    origin = origin_of(table, publication, confirmed, settings)
    if isinstance(origin, Origin):
        none = replace(none, notes=origin.notes)
    work = _Replay(runtime, table, chosen, none, samples)
    try:
        with lakehouse_failures(table.key):
            return work.as_published(origin) if basis is ReplayBasis.AS_PUBLISHED else work.current(origin)
    except LakehouseError as error:
        return _because(none, [Obstacle(error.reason, error.hint)])


def _because(done: Replay, causes: Sequence[Obstacle]) -> Replay:
    return replace(done, causes=tuple(cause.reason for cause in causes), hint=causes[0].hint if causes else "")


@dataclass(frozen=True)
class _Replay:
    runtime: Runtime
    table: Table
    chosen: Chosen
    none: Replay
    samples: int

    @property
    def key(self) -> Slice:
        return self.chosen.publication.key

    @property
    def recorded(self) -> Digest:
        return self.chosen.publication.digest_after

    def as_published(self, origin: Origin | Obstacle) -> Replay:
        if isinstance(origin, Obstacle):
            return _because(self.none, [origin])
        inputs = find_inputs(self.runtime, self.table, self.key, origin)
        missing = gone(inputs)
        if missing:
            return _because(replace(self.none, inputs=tuple(inputs)), missing)
        with ExitStack() as stack:
            state = self._state(origin.settings, placed(inputs))
            today = self._published_today()
            causes = as_published_causes(origin, inputs, self.recorded, state.digest, today)
            done = replace(
                self.none,
                inputs=tuple(inputs),
                replayed=state.digest,
                settings=self._settings(origin),
                result=ReplayResult.DIFFERS if causes else ReplayResult.EQUAL,
            )
            if not causes:
                return done
            stack.enter_context(kept(state.rows))
            return self._compared(_because(done, causes), state, self._published(stack, today))

    def current(self, origin: Origin | Obstacle) -> Replay:
        if isinstance(origin, Obstacle) and self.recorded.version != ROW_HASH_VERSION:
            return _because(self.none, [origin])
        present = present_inputs(self.runtime, self.table, self.key, self.runtime.settings)
        if present.items.are_missing:
            return self._without_items(origin, present)
        with ExitStack() as stack:
            state = self._state(self.runtime.settings, present.where)
            today = self._published_today()
            wrong = list(of_published(self.recorded, today))
            is_equal = state.digest == self.recorded and not wrong
            result = ReplayResult.EQUAL if is_equal else ReplayResult.DIFFERS
            done = _because(replace(self.none, replayed=state.digest, result=result), wrong)
            if present.items.reason:
                done = replace(done, notes=(*done.notes, f"a load would wait now: {present.items.reason}"))
            if isinstance(origin, Origin):
                differing_inputs = tuple(self._differing(origin, present))
                done = replace(done, differing=differing_inputs, settings=self._settings(origin))
            if is_equal:
                return done
            stack.enter_context(kept(state.rows))
            published = self._published(stack, today)
            done = self._compared(done, state, published)
            return self._with_shares(done, origin, present, state, published)

    def _without_items(self, origin: Origin | Obstacle, present: Present) -> Replay:
        causes = without_items(
            self.table,
            origin,
            self.runtime.settings,
            present.items.reason,
            lambda settings: items_of_today(self.runtime, self.table, self.key, settings),
        )
        done = _because(self.none, causes)
        if isinstance(origin, Obstacle):
            return done
        return replace(done, differing=tuple(self._differing(origin, present)), settings=self._settings(origin))

    def _with_shares(
        self, done: Replay, origin: Origin | Obstacle, present: Present, state: State, published: State | None
    ) -> Replay:
        untold = [origin] if isinstance(origin, Obstacle) else []
        found = [] if isinstance(origin, Obstacle) else find_inputs(self.runtime, self.table, self.key, origin)
        untold += gone(found)
        if published is None:
            untold.append(Obstacle("the rows that it published are no longer kept", ""))
        done = replace(done, inputs=tuple(found))
        if untold or isinstance(origin, Obstacle) or published is None:
            note = f"what each input makes of the difference cannot be told: {untold[0].reason}"
            return replace(done, notes=(*done.notes, note))
        are_as_recorded = all(one.is_as_recorded for one in found) and published.digest == self.recorded
        then = Then(origin, placed(found), published, "code" if are_as_recorded else "files changed in their place")
        shares = shares_of(self.runtime, self.table, self.key, then, present, state)
        return replace(done, shares=tuple(shares))

    def _state(self, settings: Settings, where: Placed) -> State:
        read = reading(self.runtime, self.table, self.key, where)
        rows = builder_of(self.table).rows_from(settings, self.key, read)
        return state_of(self.table, self.key, rows)

    def _published_today(self) -> PublishedToday | None:
        """The table's current content of the slice; None if the publication is not the slice's last, also after measuring it."""
        if not self.chosen.is_standing:
            return None
        head = self.runtime.lakehouse.head(self.table)
        is_settled = self.runtime.ledger.head(self.table.key) == Head(head)
        rows = measured_slice(self.runtime, self.table, self.key, head)
        last = kept_of(self.runtime, self.table, [self.key]).publications[self.key][-1]
        return PublishedToday(rows, is_settled) if last.number == self.chosen.publication.number else None

    def _published(self, stack: ExitStack, today: PublishedToday | None) -> State | None:
        """The published rows, for a last publication as the table holds them now; None where they are no longer kept."""
        head = self.runtime.lakehouse.head(self.table)
        if today is not None and not isinstance(today.rows, str):
            place: int | None = head
        else:
            known = kept_of(self.runtime, self.table, [self.key])
            day, pin = InputDay(self.table.key, self.key.event_date), self.chosen.publication.snapshot_id
            found = find_slice(self.runtime, self.table, self.key, known, self.recorded, pin, day)
            if not found.is_as_recorded:
                return None
            place = found.read_from
        rows = self.runtime.lakehouse.read(self.table, head if place is None else place)
        own = rows.where(slices_condition(self.table, [self.key] if place is not None else []))
        state = state_of(self.table, self.key, own)
        stack.enter_context(kept(state.rows))
        return state

    def _compared(self, done: Replay, state: State, published: State | None) -> Replay:
        if published is None:
            recorded = self.chosen.publication.figures or {}
            figures = {name: (recorded[name], now) for name, now in state.figures.items() if name in recorded}
            return replace(done, figures=figures)
        figures = {name: (published.figures[name], now) for name, now in state.figures.items()}
        with kept(changes_between(self.table, published, state)) as changes:
            shown = samples_of(self.table, published.rows, state.rows, changes, KeyChange(), self.samples)
            samples = tuple(shown) if self.samples else ()
            return replace(done, figures=figures, keys=count_keys(changes), samples=samples)

    def _settings(self, origin: Origin) -> dict[str, tuple[object, object]]:
        sides = (self.table.recorded_settings(settings) for settings in (origin.settings, self.runtime.settings))
        return differing(*sides)

    def _differing(self, origin: Origin, present: Present) -> Iterator[str]:
        days = {*input_days(self.table, self.key, origin.settings), *origin.state.upstream, *present.digests}
        for day in sorted(days):
            then, now = origin.digest(day), present.digests.get(day)
            if now is None and then == EMPTY:
                continue
            if now is None:
                yield f"{day.table} {day.day}: {then.rows:,} rows then, not read with today's settings"
            elif then != now:
                near = "" if day.day == self.key.event_date else " (a day near it)"
                rows = f"{then.rows:,} rows then, {now.rows:,} today"
                rows = rows if then.rows != now.rows else f"{now.rows:,} rows, not the same ones"
                yield f"{day.table} {day.day}{near}: {rows}{self._since(day, then)}"

    def _since(self, day: InputDay, then: Digest) -> str:
        records = self.runtime.ledger.publications(day.table, [slice_of(day, self.key).project_id], [day.day])
        known = max((place for place, record in enumerate(records, 1) if record.digest_after == then), default=0)
        since = [f"publication {record.number} ({record.cause.text})" for record in records[known:]]
        return f", by {few(since)}" if since else ""
