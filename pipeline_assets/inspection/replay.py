"""Recompute a publication from its original or the current inputs, and attribute its difference from the record to causes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import reduce

import pyspark.sql.functions as F
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import Head, InputDay, PublicationRecord, differing, with_recorded
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, ROW_HASH_VERSION, Digest, Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection import replay_result as results
from pipeline_assets.inspection.diff import State, samples_of, state_of
from pipeline_assets.load.build.builder import Inputs, kept
from pipeline_assets.load.build.rebuild import builder_of
from pipeline_assets.load.build.refined import PLACE, losers_among, losing, with_source
from pipeline_assets.load.file_tasks import Place, places_at
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.as_of import items_of_days
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import DIMENSIONS, RESTORABLE, SOURCE_OF_TABLE, table_by_key
from pipeline_assets.tables.table import Table, is_dimension
from pipeline_assets.transforms.digests import (
    ADDED,
    CHANGED,
    HASH_A,
    HASH_B,
    KEPT,
    MEANING_HASH,
    REMOVED,
    key_changes,
    slice_digests,
    with_event_keys,
    with_row_hashes,
)
from pipeline_assets.transforms.event_hashes import KEY
from resources.iceberg.errors import first_line, lakehouse_failures
from resources.iceberg.metadata import slices_condition

SNAPSHOTS = frozenset(dimension.snapshot.key for dimension in DIMENSIONS)


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
) -> list[PublicationRecord]:
    """Each project's last of `records` (oldest first) for a day, or the one of this number or run; raises UsageError."""
    chosen: dict[str, PublicationRecord] = {}
    for record in records:
        is_meant = number in (None, record.number) and (run is None or (record.run_id or "").startswith(run))
        if is_meant and record.key.event_date == day and record.key.project_id in projects:
            chosen[record.key.project_id] = record
    if not chosen:
        which = f"publication {number}" if number is not None else "a publication" + (f" by run {run}" if run else "")
        reason = f"{which} of project {', '.join(projects)} is not on record"
        raise UsageError(f"{table} {day}", reason, f"`tidemark history {table} {day}` lists them")
    return [record for _, record in sorted(chosen.items())]


Placed = Mapping[InputDay, int | None]
"""Upstream day -> the snapshot to read its rows from; None for an empty day."""
Items = tuple[tuple[InputDay, ...], str]
"""The items that a load would join with a day's events, none where no snapshot applies; and why it would not build the day."""
_DELIVER = "Have the snapshot of the day delivered; or replay it from its own items: --as-published"
_SET_BACK = "Replay it with the settings of then in the environment; or from its own items: --as-published"
_OUT_OF_MEMORY = "OutOfMemoryError"


def places(
    published: Sequence[PublicationRecord], digest: Digest, pin: int | None, head: int, kept: Collection[int]
) -> tuple[int, ...]:
    """Kept snapshots with this digest: the pin, those that published it, the parents of those that replaced it, the head."""
    found = [pin]
    for record, parent in zip(published, [*(one.parent_id for one in published[1:]), head], strict=False):
        found += [record.snapshot_id, parent] if record.digest_after == digest else []
    return tuple(dict.fromkeys(place for place in found if place is not None and place in kept))


def items_of(facts: Facts, table: Table, key: Slice, now: datetime) -> Items:
    """The choice for a slice of a table joined with a dimension, from the ledger."""
    assert table.dimension is not None
    items = items_of_days(facts, table.dimension, now)
    days = tuple(items.inputs(key.event_date))
    events = (facts.records[name].get(key) for name in table.upstream if not is_dimension(name))
    if not any(record is not None and record.digest != EMPTY for record in events):
        return days, ""
    wait = items.wait_of(key.event_date)
    if wait is None and not days:
        lacks = f"{table.dimension.snapshot.key} holds no snapshot of"
        if table.dimension.intervals_are_delivered(facts.settings):
            lacks = f"{table.dimension.validity.key} does not tell of"
        return (), f"{lacks} {key.event_date} or of a day before it"
    return days, wait.reason if wait is not None else ""


def remedy(
    table: Table,
    origin: results.Origin | results.Obstacle,
    differing: Collection[str],
    choose: Callable[[Settings], Items],
) -> str:
    """What ends a lack of items: the settings of then, where `choose` finds some with them, or a delivery."""
    if isinstance(origin, results.Obstacle) or set(table.kind.chosen_by).isdisjoint(differing):
        return _DELIVER
    return _SET_BACK if choose(origin.settings)[0] else _DELIVER


def replay(
    runtime: Runtime, table: Table, publication: PublicationRecord, basis: results.ReplayBasis, samples: int = 0
) -> results.Replay:
    """Recompute one publication, without writes; raises only where catalog, ledger or engine cannot be reached."""
    key = publication.key
    of_key = table.key, [key.project_id], [key.event_date]
    is_standing = runtime.ledger.publications(*of_key)[-1].number == publication.number
    confirmed = runtime.ledger.slices(*of_key).get(key) if is_standing else None
    origin = results.origin_of(table, publication, confirmed, runtime.settings)
    code = publication.code_version, table.code_version(runtime.settings)
    notes = origin.notes if isinstance(origin, results.Origin) else ()
    none = results.Replay(publication, basis, results.ReplayResult.IMPOSSIBLE, is_standing, code, notes=notes)
    try:
        with lakehouse_failures(table.key), ExitStack() as stack:
            work = _Replay(runtime, table, none, origin, samples, stack)
            return work.as_published() if basis is results.ReplayBasis.AS_PUBLISHED else work.current()
    except LakehouseError as error:
        return _because(none, [results.Obstacle(error.reason, error.hint)])


def _because(done: results.Replay, causes: Sequence[results.Obstacle]) -> results.Replay:
    return replace(done, causes=tuple(cause.reason for cause in causes), hint=causes[0].hint if causes else "")


def _slice_of(day: InputDay, key: Slice) -> Slice:
    """The slice of an upstream day, for a slice built from it."""
    return Slice(day.day, ALL_PROJECTS if is_dimension(day.table) else key.project_id)


@dataclass(frozen=True)
class _Replay:
    runtime: Runtime
    table: Table
    none: results.Replay
    origin: results.Origin | results.Obstacle
    samples: int
    stack: ExitStack

    @property
    def key(self) -> Slice:
        return self.none.publication.key

    @property
    def recorded(self) -> Digest:
        return self.none.publication.digest_after

    def as_published(self) -> results.Replay:
        if isinstance(self.origin, results.Obstacle):
            return _because(self.none, [self.origin])
        inputs = self._inputs(self.origin)
        done = replace(self.none, inputs=tuple(inputs))
        if missing := results.gone(inputs):
            return _because(done, missing)
        state = self._state(self.origin.settings, {one.day: one.read_from for one in inputs})
        today = self._published_today()
        causes = results.as_published_causes(self.origin, inputs, self.recorded, state.digest, today)
        result = results.ReplayResult.DIFFERS if causes else results.ReplayResult.EQUAL
        done = replace(done, replayed=state.digest, settings=self._settings(self.origin), result=result)
        if not causes:
            return done
        return self._compared(_because(done, causes), self._kept(state), self._published(today))

    def current(self) -> results.Replay:
        origin, done, settings = self.origin, self.none, self.runtime.settings
        if isinstance(origin, results.Obstacle) and self.recorded.version != ROW_HASH_VERSION:
            return _because(done, [origin])
        where, digests, (items, reason) = self._present()
        if isinstance(origin, results.Origin):
            differing_inputs = tuple(self._differing(origin, digests))
            done = replace(done, differing=differing_inputs, settings=self._settings(origin))
        if reason and not items:
            return _because(done, [results.Obstacle(reason, remedy(self.table, origin, done.settings, self._items))])
        state = self._state(settings, where)
        today = self._published_today()
        wrong = list(results.of_published(self.recorded, today))
        is_equal = state.digest == self.recorded and not wrong
        result = results.ReplayResult.EQUAL if is_equal else results.ReplayResult.DIFFERS
        done = _because(replace(done, replayed=state.digest, result=result), wrong)
        if reason:
            done = replace(done, notes=(*done.notes, f"a load would wait now: {reason}"))
        if is_equal:
            return done
        published = self._published(today)
        done = self._compared(done, self._kept(state), published)
        return self._with_shares(done, where, state, published)

    def _inputs(self, origin: results.Origin) -> list[results.InputSlice]:
        """Each input of the publication, with the snapshot that still holds its rows, verified by digest."""
        days = {*self._input_days(origin.settings), *origin.state.upstream}
        return [
            self._find(table_by_key(name), _slice_of(day, self.key), origin.digest(day), origin.pins.get(name), day)
            for name in self.table.upstream
            for day in sorted(days)
            if day.table == name
        ]

    def _input_days(self, settings: Settings) -> list[InputDay]:
        """The upstream days that the slice is built from, as far as the kind of table decides them without records."""
        return [
            InputDay(name, one.event_date)
            for name in self.table.upstream
            for one in self.table.kind.input_slices(name, self.key, settings)
        ]

    def _find(self, table: Table, key: Slice, digest: Digest, pin: int | None, day: InputDay) -> results.InputSlice:
        """The slice with this digest in a kept snapshot; where none has it, the content of the first readable candidate."""
        if digest == EMPTY:
            return results.InputSlice(day, digest, pin, None, EMPTY)
        lakehouse = self.runtime.lakehouse
        published = self.runtime.ledger.publications(table.key, [key.project_id], [key.event_date])
        others: list[results.InputSlice] = []
        reasons: list[str] = []
        read: set[frozenset[str]] = set()
        for snapshot_id in places(published, digest, pin, lakehouse.head(table), lakehouse.snapshot_ids(table)):
            files = lakehouse.slice_files(table, snapshot_id, [key]).get(key)
            paths = files.paths if files is not None else frozenset()
            if paths in read:
                continue
            read.add(paths)
            measured = self._measured(table, key, snapshot_id)
            if measured == digest:
                return results.InputSlice(day, digest, pin, snapshot_id, digest)
            if isinstance(measured, str):
                reasons.append(measured)
            else:
                others.append(results.InputSlice(day, digest, pin, snapshot_id, measured))
        if others:
            return others[0]
        where = "no snapshot that is kept is known to have these rows"
        gone = f"snapshot {pin} has expired, and {where}" if pin is not None else where
        return results.InputSlice(day, digest, pin, reason=reasons[0] if reasons else gone, is_lost=bool(reasons))

    def _measured(self, table: Table, key: Slice, snapshot_id: int) -> Digest | str:
        """The digest of a slice, computed from its columns instead of stored hashes; or why its files cannot be read."""
        try:
            with lakehouse_failures(table.key):
                rows = self.runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, [key]))
                return slice_digests(_declared(rows, table), table.content_columns, table.day_column).get(key, EMPTY)
        except LakehouseError as error:
            return error.reason
        except (Py4JJavaError, PySparkException) as error:
            if _OUT_OF_MEMORY in str(error):
                raise
            return f"its files cannot be read: {first_line(error)}"

    def _present(self) -> tuple[Placed, dict[InputDay, Digest], Items]:
        """The current inputs with their digests, and the items; raises LakehouseError where a file cannot be read."""
        where: dict[InputDay, int | None] = {}
        digests: dict[InputDay, Digest] = {}
        items = self._items(self.runtime.settings)
        today = [*self._input_days(self.runtime.settings), *items[0]]
        for name in self.table.upstream:
            upstream = table_by_key(name)
            head = self.runtime.lakehouse.head(upstream)
            days = {_slice_of(day, self.key): day for day in today if day.table == name}
            held = self.runtime.lakehouse.slice_files(upstream, head, days)
            for key, day in days.items():
                measured = self._measured(upstream, key, head) if key in held else EMPTY
                if isinstance(measured, str):
                    hint = "Restore the files, or load the day that they belong to again: docs/operations.md"
                    raise LakehouseError(self.table.key, f"{name} {day.day}: {measured}", hint)
                digests[day], where[day] = measured, head if key in held else None
        return where, digests, items

    def _items(self, settings: Settings) -> Items:
        """The items that a load with these settings would join with the day's events now."""
        if self.table.dimension is None:
            return (), ""
        now, ledger = datetime.now(UTC), self.runtime.ledger
        facts = Facts.read(ledger, settings, {self.key}, (), now).reading(ledger, [self.table])
        return items_of(facts, self.table, self.key, now)

    def _reading(self, where: Placed) -> Inputs:
        """The inputs for `Builder.rows_from`: of an upstream table, each day from its snapshot."""
        lakehouse = self.runtime.lakehouse

        def places_of(name: str) -> list[Place]:
            at = ((_slice_of(day, self.key), place) for day, place in where.items() if day.table == name)
            return places_at(table_by_key(name), ((key, place) for key, place in at if place is not None))

        def rows(name: str) -> DataFrame:
            upstream = table_by_key(name)
            frames = [
                _declared(lakehouse.read(upstream, place.snapshot_id), upstream).where(
                    slices_condition(upstream, place.slices)
                )
                for place in places_of(name)
            ]
            none = _declared(lakehouse.read(upstream, lakehouse.head(upstream)), upstream).limit(0)
            return reduce(DataFrame.unionByName, frames) if frames else none

        assert all(day.table in self.table.upstream for day in where)
        return Inputs(self.runtime, rows, places_of)

    def _state(self, settings: Settings, where: Placed) -> State:
        rows = builder_of(self.table).rows_from(settings, self.key, self._reading(where))
        return state_of(self.table, self.key, rows)

    def _kept(self, state: State) -> State:
        self.stack.enter_context(kept(state.rows))
        return state

    def _published_today(self) -> results.PublishedToday | None:
        """The table's current content of the slice; None if the publication is not the slice's last, also after measuring it."""
        if not self.none.is_standing:
            return None
        head, key = self.runtime.lakehouse.head(self.table), self.key
        is_settled = self.runtime.ledger.head(self.table.key) == Head(head)
        rows = self._measured(self.table, key, head)
        last = self.runtime.ledger.publications(self.table.key, [key.project_id], [key.event_date])[-1]
        return results.PublishedToday(rows, is_settled) if last.number == self.none.publication.number else None

    def _published(self, today: results.PublishedToday | None) -> State | None:
        """The published rows, for a last publication as the table holds them now; None where they are no longer kept."""
        place: int | None = self.runtime.lakehouse.head(self.table)
        if today is None or isinstance(today.rows, str):
            day, pin = InputDay(self.table.key, self.key.event_date), self.none.publication.snapshot_id
            found = self._find(self.table, self.key, self.recorded, pin, day)
            if not found.is_as_recorded:
                return None
            place = found.read_from
        slices = [self.key] if place is not None else []
        rows = self.runtime.lakehouse.read(self.table, place or self.runtime.lakehouse.head(self.table))
        return self._kept(state_of(self.table, self.key, rows.where(slices_condition(self.table, slices))))

    def _compared(self, done: results.Replay, state: State, published: State | None) -> results.Replay:
        known = self.none.publication.figures or {} if published is None else published.figures
        figures = {name: (known[name], now) for name, now in state.figures.items() if name in known}
        if published is None:
            return replace(done, figures=figures)
        with kept(changes_between(self.table, published, state)) as changes:
            shown = samples_of(self.table, published.rows, state.rows, changes, KeyChange(), self.samples)
            samples = tuple(shown) if self.samples else ()
            return replace(done, figures=figures, keys=count_keys(changes), samples=samples)

    def _settings(self, origin: results.Origin) -> dict[str, tuple[object, object]]:
        return differing(*(self.table.recorded_settings(one) for one in (origin.settings, self.runtime.settings)))

    def _differing(self, origin: results.Origin, present: Mapping[InputDay, Digest]) -> Iterator[str]:
        for day in sorted({*self._input_days(origin.settings), *origin.state.upstream, *present}):
            then, now = origin.digest(day), present.get(day)
            if now is None and then == EMPTY:
                continue
            if now is None:
                yield f"{day.table} {day.day}: {then.rows:,} rows then, not read with today's settings"
            elif then != now:
                near = "" if day.day == self.key.event_date else " (a day near it)"
                rows = f"{then.rows:,} rows then, {now.rows:,} today"
                rows = rows if then.rows != now.rows else f"{now.rows:,} rows, not the same ones"
                records = self.runtime.ledger.publications(day.table, [_slice_of(day, self.key).project_id], [day.day])
                known = max((place for place, one in enumerate(records, 1) if one.digest_after == then), default=0)
                since = [f"publication {one.number} ({one.cause.text})" for one in records[known:]]
                yield f"{day.table} {day.day}{near}: {rows}{f', by {few(since)}' if since else ''}"

    def _with_shares(self, done: results.Replay, now: Placed, today: State, published: State | None) -> results.Replay:
        origin = self.origin
        found = self._inputs(origin) if isinstance(origin, results.Origin) else []
        untold = [origin] if isinstance(origin, results.Obstacle) else results.gone(found)
        if published is None:
            untold.append(results.Obstacle("the rows that it published are no longer kept", ""))
        done = replace(done, inputs=tuple(found))
        if untold or isinstance(origin, results.Obstacle) or published is None:
            note = f"what each input makes of the difference cannot be told: {untold[0].reason}"
            return replace(done, notes=(*done.notes, note))
        are_as_recorded = all(one.is_as_recorded for one in found) and published.digest == self.recorded
        cause = "code" if are_as_recorded else "files changed in their place"
        then = {one.day: one.read_from for one in found}
        return replace(done, shares=tuple(self._shares(origin, then, published, cause, now, today)))

    def _shares(
        self, origin: results.Origin, then: Placed, published: State, untold: str, now: Placed, today: State
    ) -> Iterator[results.Share]:
        """Shares of the difference from `today`: code, then each setting, then the inputs; each step switches one more part.

        `untold`: the cause to name where the publication's own inputs give other rows than were published.
        """
        table, settings = self.table, origin.settings
        before, after = published, self._kept(self._state(settings, then))
        if after.digest != before.digest:
            yield self._share(untold, before, after)
        for name, (old, new) in self._settings(origin).items():
            before, settings = after, with_recorded(settings, {name: new})
            after = self._kept(self._state(settings, self._widened(settings, origin, then)))
            yield self._share(f"setting {name}: {old} -> {new}", before, after)
        if after.digest == today.digest:
            return
        where = self._widened(settings, origin, then)
        if all(name in SOURCE_OF_TABLE for name in table.upstream):
            changes = self.stack.enter_context(kept(changes_between(table, after, today)))
            yield from _batches(self.key, settings, changes, self._reading(where), self._reading(now))
            return
        for number, name in enumerate(table.upstream, 1):
            before = after
            others = {day: place for day, place in where.items() if day.table != name}
            where = others | {day: place for day, place in now.items() if day.table == name}
            after = today if number == len(table.upstream) else self._kept(self._state(settings, where))
            if after.digest != before.digest:
                yield self._share(f"{name}: other rows", before, after)

    def _widened(self, settings: Settings, origin: results.Origin, then: Placed) -> Placed:
        """The original inputs for the days that these settings read; other days come from the pinned snapshot."""
        where = {day: place for day, place in then.items() if is_dimension(day.table)}
        for day in self._input_days(settings):
            upstream, pin = table_by_key(day.table), origin.pins.get(day.table)
            if day in then:
                where[day] = then[day]
            elif pin is not None and pin in self.runtime.lakehouse.snapshot_ids(upstream):
                where[day] = pin
            else:
                where[day] = self.runtime.lakehouse.head(upstream)
        return where

    def _share(self, cause: str, before: State, after: State) -> results.Share:
        if before.digest == after.digest:
            return results.Share(cause, results.Keys(kept=after.digest.rows))
        moved = {name: after.figures[name] - value for name, value in before.figures.items()}
        changed = {name: by for name, by in moved.items() if by}
        return results.Share(cause, count_keys(changes_between(self.table, before, after)), changed)


def _declared(rows: DataFrame, table: Table) -> DataFrame:
    there = set(rows.columns)
    return rows.select(
        *[
            F.col(column.name) if column.name in there else F.lit(None).cast(column.type).alias(column.name)
            for column in table.columns
        ]
    )


def changes_between(table: Table, before: State, after: State) -> DataFrame:
    """The change of each key, as `key_changes` gives it; a key that moves to another day shows only as removed or added."""
    then, now = (
        with_row_hashes(builder_of(table).with_keys(state.rows), table.content_columns).select(
            "event_date", "project_id", *KEY, HASH_A, HASH_B
        )
        for state in (before, after)
    )
    return key_changes(then, now, then.limit(0), then.limit(0), 0)


def count_keys(changes: DataFrame) -> results.Keys:
    """The number of keys per kind of change."""
    counts = {row["change"]: row["count"] for row in changes.groupBy("change").count().collect()}
    return results.Keys(*(counts.get(change, 0) for change in (KEPT, ADDED, REMOVED, CHANGED)))


_NAME = ("_name_a", "_name_b")
_BATCH = ("_source", "event_date", "_arrival_date")


def _batches(key: Slice, settings: Settings, changes: DataFrame, then: Inputs, now: Inputs) -> Iterator[results.Share]:
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
        keys = results.Keys(0, by_change.get(ADDED, 0), by_change.get(REMOVED, 0), by_change.get(CHANGED, 0))
        net = keys.added - keys.removed
        yield results.Share(_batch_text(key, batch, moves), keys, {"rows": float(net)} if net else {})


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
