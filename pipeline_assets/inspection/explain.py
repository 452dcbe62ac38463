"""Explain one event: its rows in raw, refined and quarantine, the winner, why the others lost, where it was published."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, Row

from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.identity import Defeat, KeyKind, RankPart, RawRow, RowFate, fate_of, named, rank
from pipeline_assets.domain.identity import named_sender as named_sender_of
from pipeline_assets.domain.records import BatchRecord, Exclusion, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source, neighbourhood
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.facts import Facts, slices_to_look_at
from pipeline_assets.load.staleness.scan import decide_with_neighbours
from pipeline_assets.tables.events import CONTENT, QUARANTINE, RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms import digests
from pipeline_assets.transforms.digests import HASH_A, HASH_B, named_sender, unread_text, with_row_hashes
from resources.iceberg.metadata import slices_condition

MAX_ROWS = 2_000
"""The most raw rows to collect and judge; judging compares them pairwise."""
MAX_QUARANTINED = 100
_MAX_OTHER_KEYS = 100
_READS_PER_JOB = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNREAD = "_unread"
_SENDER = EXPORT_FORMAT.identity.sender
_SEND_ID, _ROW_ID = EXPORT_FORMAT.identity.send_id, EXPORT_FORMAT.identity.row_id
_RECEIVED, _PROCESSED = EXPORT_FORMAT.rank_columns
_PLACED = ("event_date", "project_id", *EXPORT_FORMAT.identity.names, "_source", "_object_key", "_line_number")


FoundRow = tuple[RawRow, dict[str, Any]]
"""A raw row of the event, and its etag, arrival date and event time for display."""


@dataclass(frozen=True)
class QuarantinedLine:
    """A quarantined line whose kept bytes contain the identifier."""

    source: str
    project_id: str
    arrival_date: date
    object_key: str
    etag: str
    line_number: int | None
    reason: str
    detail: str | None
    is_batch_accepted: bool


@dataclass(frozen=True)
class Search:
    """What to search for, and where."""

    runtime: Runtime
    pins: Mapping[str, int]
    """Table key -> snapshot id, the same for all reads."""
    identifier: str
    projects: tuple[str, ...]
    first: date | None = None
    last: date | None = None
    other_keys: tuple[tuple[tuple[int | str | None, ...], str], ...] = ()
    """(sender, send id) of rows whose row id is the identifier: other rows with these keys belong to the event too."""

    def raw(self) -> DataFrame:
        """Both raw tables, with `_source`."""
        frames = [
            self.runtime.lakehouse.read(table, self.pins[table.key]).withColumn("_source", F.lit(source.value))
            for source, table in RAW_TABLES.items()
        ]
        return reduce(DataFrame.unionByName, frames)

    def refined(self, snapshot_id: int | None = None) -> DataFrame:
        """refined.events as of a snapshot; the pinned one by default."""
        pin = self.pins[REFINED_EVENTS.key] if snapshot_id is None else snapshot_id
        return self.runtime.lakehouse.read(REFINED_EVENTS, pin)

    def matches(self) -> Column:
        """The condition for rows with the identifier, and for the other rows of their keys."""
        found = (F.col(_SEND_ID) == self.identifier) | (F.col(_ROW_ID) == self.identifier)
        for sender, send_id in self.other_keys:
            parts = zip(named_sender().values(), sender, strict=True)
            is_sender = [part.eqNullSafe(F.lit(value)) for part, value in parts]
            found |= reduce(Column.__and__, is_sender, F.col(_SEND_ID) == send_id)
        return found

    def in_reach(self) -> Column:
        """The condition for the projects and days: the requested event days and all days whose rows decide about theirs."""
        reach = timedelta(days=2 * self.runtime.settings.dedupe_window_days)
        inside = F.col("project_id").isin(*self.projects)
        if self.first is not None:
            inside &= F.col("event_date") >= F.lit(self.first - min(reach, self.first - date.min))
        if self.last is not None:
            inside &= F.col("event_date") <= F.lit(self.last + min(reach, date.max - self.last))
        return inside


def pin(runtime: Runtime) -> dict[str, int]:
    """The current snapshots of all searched tables; raises LakehouseError before the first load."""
    tables: tuple[Table, ...] = (*RAW_TABLES.values(), REFINED_EVENTS, QUARANTINE)
    for table in tables:
        name = runtime.lakehouse.identifier(table)
        # Asking for the head of a missing table would create it.
        if not runtime.spark.catalog.tableExists(name):
            raise LakehouseError(name, "is not there: nothing is loaded yet", "Load days first: tidemark load --help")
    return {table.key: runtime.lakehouse.head(table) for table in tables}


def find_slices(search: Search) -> tuple[Search, set[Slice]]:
    """The newest slices with rows of the event, to which later reads are limited, and the search extended by the keys found."""
    columns = ("event_date", "project_id", *EXPORT_FORMAT.identity.names)
    narrow = search.raw().select(*columns).unionByName(search.refined().select(*columns)).where(search.in_reach())
    is_other = digests.named(_SEND_ID).isNotNull() & (F.col(_SEND_ID) != search.identifier)
    keys = [F.when(is_other, F.col(name)).alias(name) for name in (*_SENDER, _SEND_ID)]
    found = narrow.where(search.matches()).select("event_date", "project_id", *keys).distinct()
    matching = found.orderBy(F.desc("event_date"), "project_id").limit(MAX_ROWS).collect()
    slices = {Slice(row["event_date"], row["project_id"]) for row in matching}
    others = {
        (named_sender_of(tuple(row[name] for name in _SENDER)), row[_SEND_ID]): None
        for row in matching
        if row[_SEND_ID] is not None
    }
    if not others:
        return search, slices
    extended = replace(search, other_keys=tuple(others)[:_MAX_OTHER_KEYS])
    days = narrow.where(extended.matches()).select("event_date", "project_id").distinct().limit(MAX_ROWS).collect()
    return extended, slices | {Slice(row["event_date"], row["project_id"]) for row in days}


def raw_rows(search: Search, slices: Collection[Slice]) -> tuple[list[FoundRow], bool]:
    """The raw rows of the event, those of highest rank, and whether raw has more than were collected."""
    extra = ("_object_etag", "_arrival_date", F.unix_micros(EVENT_TIME).alias("_event_time"))
    rows = (
        _hashed(search.raw(), search, slices)
        .select(*_identified(), HASH_A, HASH_B, unread_text().substr(1, 80).alias(_UNREAD), *extra)
        .orderBy(F.desc_nulls_last(_RECEIVED), F.desc_nulls_last(_PROCESSED))
        .limit(MAX_ROWS + 1)
        .collect()
    )
    found: list[FoundRow] = []
    for row in rows[:MAX_ROWS]:
        shown = {"etag": row["_object_etag"], "arrival_date": row["_arrival_date"]}
        found.append((_raw_row(row), {**shown, "event_time": _instant(row["_event_time"])}))
    return found, len(rows) > MAX_ROWS


def live_rows(search: Search, slices: Collection[Slice]) -> list[RawRow]:
    """The event's rows in refined.events at the pinned snapshot."""
    rows = _hashed(search.refined(), search, slices).select(*_identified(), HASH_A, HASH_B)
    return [_raw_row(row) for row in rows.limit(MAX_ROWS).collect()]


def published_rows(search: Search, slices: Collection[Slice], snapshots: Sequence[int]) -> dict[int, list[RawRow]]:
    """Snapshot of refined.events -> the event's rows in these slices; their `content` is not read."""
    rows: dict[int, list[RawRow]] = {snapshot: [] for snapshot in snapshots}
    for start in range(0, len(snapshots), _READS_PER_JOB):
        frames = [
            search.refined(snapshot)
            .where(slices_condition(REFINED_EVENTS, slices) & search.matches())
            .select(*_identified(), F.lit(snapshot).cast("long").alias("_snapshot"))
            for snapshot in snapshots[start : start + _READS_PER_JOB]
        ]
        for row in reduce(DataFrame.unionByName, frames).collect():
            rows[row["_snapshot"]].append(_raw_row(row))
    return rows


def quarantined_lines(search: Search) -> list[QuarantinedLine]:
    """Quarantined lines whose kept bytes contain the identifier, verbatim or JSON-escaped; newest first."""
    as_json = (json.dumps(search.identifier, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    spellings = {search.identifier, *as_json}
    holds = [F.contains(F.col("sample"), F.lit(spelling.encode())) for spelling in sorted(spellings)]
    rows = (
        search.runtime.lakehouse.read(QUARANTINE, search.pins[QUARANTINE.key])
        .where(F.col("project_id").isin(*search.projects) & reduce(Column.__or__, holds))
        .withColumns({"etag": F.col("object_etag"), "is_batch_accepted": F.coalesce("is_batch_accepted", F.lit(False))})
        .orderBy(F.desc("arrival_date"), "object_key", "line_number")
        .limit(MAX_QUARANTINED)
        .select(*[one.name for one in fields(QuarantinedLine)])
        .collect()
    )
    return [QuarantinedLine(**row.asDict()) for row in rows]


def _hashed(frame: DataFrame, search: Search, slices: Collection[Slice]) -> DataFrame:
    wanted = slices_condition(REFINED_EVENTS, slices) & search.matches()
    return with_row_hashes(frame.where(wanted), CONTENT)


def _identified() -> list[Any]:
    # As microseconds, because Spark collects timestamps in the machine's local time.
    return [*_PLACED, *[F.unix_micros(name).alias(name) for name in EXPORT_FORMAT.rank_columns]]


def _raw_row(row: Row) -> RawRow:
    return RawRow(
        project_id=row["project_id"],
        event_date=row["event_date"],
        source=Source(row["_source"]),
        object_key=row["_object_key"],
        line_number=row["_line_number"],
        sender=tuple(row[name] for name in _SENDER),
        send_id=row[_SEND_ID],
        row_id=row[_ROW_ID],
        received_at=_instant(row[_RECEIVED]),
        processed_at=_instant(row[_PROCESSED]),
        content=(row[HASH_A], row[HASH_B]) if HASH_A in row else (0, 0),
        unread=row[_UNREAD] if _UNREAD in row else None,  # noqa: SIM401 - a Row has no get
    )


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


MAX_SNAPSHOTS = 50
"""The newest publications are examined; each is a read of the table."""
_IDENTITY = EXPORT_FORMAT.identity


@dataclass(frozen=True)
class Delivered:
    """One raw row of the event and its fate; a winner has no defeat."""

    row: RawRow
    etag: str
    arrival_date: date
    event_time: datetime | None
    outcome: RowFate
    defeat: Defeat | None

    @property
    def reason(self) -> str:
        """Why the row won or lost: for a loser, the row that beat it and the deciding part of the rank."""
        if self.defeat is None:
            return "winner"
        row, better = self.row, self.defeat.by
        fate = {
            RowFate.DELIVERY_DUPLICATE: f"delivery duplicate of {place(better)}",
            RowFate.SEND_DUPLICATE: f"send duplicate: sent again as {_IDENTITY.row_id} {better.row_id}, {place(better)}",
            RowFate.SUPERSEDED_BY_OTHER_DAY: f"superseded by another day: {better.event_date}, {place(better)}",
        }[self.outcome]
        received, processed = (
            f"{spelled(theirs)} against {spelled(own)}"
            for theirs, own in ((better.received_at, row.received_at), (better.processed_at, row.processed_at))
        )
        grounds = {
            RankPart.RECEIVED_AT: f"that one has the later {_RECEIVED} ({received})",
            RankPart.PROCESSED_AT: f"same {_RECEIVED}, that one has the later {_PROCESSED} ({processed})",
            RankPart.SOURCE: "same times, and the source of that one, or of a delivery equal to it, goes first",
            RankPart.CONTENT: "same times and source but other content, and that one has the greater content hash",
            RankPart.EQUAL: "an identical row; refined/events names one of them",
        }[self.defeat.part]
        unread = " and ".join(filter(None, (row.unread, better.unread)))
        return f"{fate}; {grounds}" + (
            f"; {_PROCESSED} could not be read: {unread}" if self.defeat.by_unread(row) else ""
        )


def place(row: RawRow) -> str:
    """The object key and line of a row."""
    return f"{row.object_key} line {row.line_number}"


def spelled(instant: datetime | None) -> str:
    """A time as the vendor writes it, UTC."""
    return "none" if instant is None else f"{instant:%Y-%m-%d %H:%M:%S.%f}"


@dataclass(frozen=True)
class Published:
    """One recorded publication of a refined.events slice that the event belongs to."""

    record: PublicationRecord
    rows: tuple[RawRow, ...] | None
    """The event's rows on all of its days as of that snapshot; None where unknown."""
    obstacle: str = ""

    @property
    def visible(self) -> str:
        """Whether the published slice showed the event, and as which row."""
        if self.rows is None:
            return f"unknown: {self.obstacle}"
        day = self.record.key.event_date
        here = [place(row) for row in self.rows if row.event_date == day]
        elsewhere = [f"{row.event_date} as {place(row)}" for row in self.rows if row.event_date != day]
        if here:
            return f"yes, as {' and '.join(here)}"
        return f"no, but on {' and on '.join(elsewhere)}" if elsewhere else "no"


@dataclass(frozen=True)
class Standing:
    """Whether one day of refined.events shows the event as the current rule says, and if not, why."""

    key: Slice
    expected: tuple[RawRow, ...]
    live: tuple[RawRow, ...]
    record: SliceRecord | None
    decision: SlicePlan | None

    @property
    def agrees(self) -> bool:
        """Whether expected and live rows match by content: any of several identical rows may have been published."""
        return sorted(row.content for row in self.expected) == sorted(row.content for row in self.live)

    @property
    def is_stale(self) -> bool:
        """Whether a load of the day would build it again."""
        return self.decision is not None and self.decision.todo in (Todo.REBUILD, Todo.CHECK)

    @property
    def reason(self) -> str | None:
        """Why the day is not as it should be; None where it is."""
        bad = self.decision.reason if self.decision is not None else None
        if self.record is not None and not self.record.verdict.is_good:
            verdict = f"{self.record.verdict.value}: "
            bad = f"is {verdict}{(self.record.reason or '').removeprefix(verdict)}"
        if self.decision is not None and self.is_stale and not self.agrees:
            stale = f"not built since its inputs changed ({self.decision.cause})"
            return f"{bad}; {stale}" if bad else stale
        return bad if bad is not None or self.agrees else "the ledger holds it to be up to date"

    @property
    def hint(self) -> str | None:
        """The operator's remedy; None where nothing is wrong."""
        if self.reason is None:
            return None
        if self.record is not None and not self.record.verdict.is_good and self.record.hint:
            return self.record.hint
        day = self.key.event_date
        return f"Load it again: tidemark load --source regular --from {day} --to {day}"


@dataclass(frozen=True)
class Event:
    """One event: the rows of one key whose days are close enough to be compared."""

    key: tuple[object, ...]
    deliveries: tuple[Delivered, ...]
    """Winners first, then by rank. Empty where refined.events holds the event but raw no longer does."""
    live: tuple[RawRow, ...]
    publications: tuple[Published, ...] = ()
    standings: tuple[Standing, ...] = ()

    @property
    def project_id(self) -> str:
        """The first part of the key."""
        return str(self.key[0])

    @property
    def days(self) -> list[date]:
        """The event days of its rows."""
        return sorted({row.event_date for row in (*(one.row for one in self.deliveries), *self.live)})

    @property
    def winners(self) -> tuple[RawRow, ...]:
        """The rows that the current rule keeps; several where they lie further apart than the dedupe window."""
        return tuple(delivered.row for delivered in self.deliveries if delivered.outcome is RowFate.WINNER)

    @property
    def agrees(self) -> bool:
        """Whether refined.events shows the event as the current rule says."""
        return all(standing.agrees for standing in self.standings)

    @property
    def title(self) -> str:
        """The key in words."""
        if self.key[1] is KeyKind.ROW_ID:
            return f"project {self.project_id}, {_IDENTITY.row_id} {self.key[2]} (no {_IDENTITY.send_id})"
        *sender, send_id = self.key[2:]
        parts = [f"{name} {value or 'none'}" for name, value in zip(_IDENTITY.sender, sender, strict=True)]
        return ", ".join((f"project {self.project_id}", f"{_IDENTITY.send_id} {send_id}", *parts))

    @property
    def verdict(self) -> str:
        """The fate of the event in a sentence."""
        if not self.deliveries:
            return "no longer in raw (its delivery was replaced or withdrawn), still in refined/events"
        kept = " and ".join(f"{place(row)} on {row.event_date}" for row in self.winners)
        count = len(self.deliveries)
        deliveries = "the only delivery" if count == 1 else f"of {count} deliveries"
        live = "refined/events shows it" if self.agrees else "refined/events does not show it yet"
        return f"kept: {kept}, {deliveries}; {live}"


@dataclass(frozen=True)
class Explanation:
    """All results for an identifier."""

    identifier: str
    projects: tuple[str, ...]
    first: date | None
    last: date | None
    events: tuple[Event, ...] = ()
    is_cut: bool = False
    """Whether raw has more rows than were collected; those of lowest rank are left out."""
    quarantined: tuple[QuarantinedLine, ...] = ()
    """Searched, like the two below, only where raw and refined hold no matching row."""
    not_in_raw: tuple[BatchRecord, ...] = ()
    excluded: tuple[Exclusion, ...] = ()

    @property
    def is_found(self) -> bool:
        """Whether anything was found."""
        return bool(self.events or self.quarantined)

    @property
    def searched(self) -> str:
        """The searched tables, days and projects in words."""
        days = f"event days {self.first or 'from the first'} to {self.last or 'the last'}"
        span = days if self.first or self.last else "all event days"
        return (
            f"{_IDENTITY.send_id} and {_IDENTITY.row_id} in raw/regular_events, raw/backfill_events and refined/events "
            f"({span}), and the bytes kept of refused lines in raw/quarantine (all arrival days), of project "
            f"{', '.join(self.projects)}"
        )


def explain(
    runtime: Runtime,
    identifier: str,
    *,
    projects: Sequence[str] = (),
    first: date | None = None,
    last: date | None = None,
    now: datetime | None = None,
) -> Explanation:
    """Explain the events with this send or row id at the current snapshots; raises UsageError, SettingsError, LakehouseError."""
    if named(identifier) is None:
        hint = f"Give the {_IDENTITY.send_id} or the {_IDENTITY.row_id} of an event"
        raise UsageError("identifier", "is empty or blank, which names no event", hint)
    if first is not None and last is not None and last < first:
        raise UsageError(f"{first} to {last}", "the range ends before it begins", "Swap the two days")
    chosen = runtime.settings.require_projects(tuple(projects))
    search, slices = find_slices(Search(runtime, pin(runtime), identifier, chosen, first, last))
    found = Explanation(identifier, chosen, first, last)
    if slices:
        runtime.log(f"{identifier}: reading {len(slices)} days of raw and refined")
        rows, is_cut = raw_rows(search, slices)
        if events := _events(search, rows, live_rows(search, slices), is_cut=is_cut):
            of_day = (_with_standings(runtime, event, now or datetime.now(UTC)) for event in _published(search, events))
            return replace(found, events=tuple(of_day), is_cut=is_cut)
    batches = (batch for _, batch in sorted(runtime.ledger.batches(chosen, date.min, date.max).items()))
    return replace(
        found,
        quarantined=tuple(quarantined_lines(search)),
        not_in_raw=tuple(one for one in batches if one.verdict in (BatchVerdict.REFUSED, BatchVerdict.MOVED)),
        excluded=tuple(e for e in runtime.ledger.interventions.all_exclusions(chosen) if e.lifted_at is None),
    )


def _events(search: Search, found: Sequence[FoundRow], live: Sequence[RawRow], *, is_cut: bool) -> list[Event]:
    """Group rows into events: same key, and no gap between days wider than the dedupe window."""
    window = search.runtime.settings.dedupe_window_days
    by_key: dict[tuple[object, ...], tuple[list[FoundRow], list[RawRow]]] = {}
    for one in found:
        by_key.setdefault(one[0].key, ([], []))[0].append(one)
    for row in live:
        by_key.setdefault(row.key, ([], []))[1].append(row)
    events = []
    for key, (delivered, refined) in by_key.items():
        judged = _judge(delivered, refined, search)
        days = {row.event_date for row in (*(one.row for one in judged), *refined)}
        groups: list[list[date]] = []
        for day in sorted(_inside(days, search, window)):
            if not groups or (day - groups[-1][-1]).days > window:
                groups.append([])
            groups[-1].append(day)
        for group in groups:
            deliveries = tuple(one for one in judged if one.row.event_date in group)
            shown = tuple(row for row in refined if row.event_date in group)
            rows = (*(one.row for one in deliveries), *shown)
            is_asked = any(search.identifier in (row.send_id, row.row_id) for row in rows)
            # The event's raw rows may be among those cut.
            if is_asked and _inside(group, search, 0) and (deliveries or not is_cut):
                events.append(Event(key, deliveries, shown))
    kinds: list[object] = [*KeyKind]
    return sorted(events, key=lambda one: (one.project_id, one.days[0], kinds.index(one.key[1]), repr(one.key)))


def _judge(found: Sequence[FoundRow], live: Sequence[RawRow], search: Search) -> list[Delivered]:
    settings = search.runtime.settings
    precedence, window = settings.source_precedence, settings.dedupe_window_days
    rows, names = [row for row, _ in found], {row.name for row in live}
    judged = [
        Delivered(row, **shown, outcome=outcome, defeat=defeat)
        for row, shown in found
        for outcome, defeat in [fate_of(row, rows, precedence, window, names)]
    ]
    judged.sort(key=lambda one: rank(one.row, precedence), reverse=True)
    return sorted(judged, key=lambda one: one.outcome is not RowFate.WINNER)


def _inside(days: Iterable[date], search: Search, margin: int) -> list[date]:
    return [
        day
        for day in days
        if (search.first is None or (search.first - day).days <= margin)
        and (search.last is None or (day - search.last).days <= margin)
    ]


def _published(search: Search, events: Sequence[Event]) -> Iterator[Event]:
    window = search.runtime.settings.dedupe_window_days
    near = [neighbourhood((Slice(day, event.project_id) for day in event.days), window) for event in events]
    every = set().union(*near)
    records = [record for record in search.runtime.ledger.publications(REFINED_EVENTS.key) if record.key in every]
    kept = search.runtime.lakehouse.snapshot_ids(REFINED_EVENTS)
    readable = list(dict.fromkeys(r.snapshot_id for r in reversed(records) if r.snapshot_id in kept))
    rows = published_rows(search, every, readable[:MAX_SNAPSHOTS])
    for event, own in zip(events, near, strict=True):
        publications = []
        for record in (one for one in records if one.key in own):
            shown = None
            if record.snapshot_id in rows:
                known = rows[record.snapshot_id]
                shown = tuple(r for r in known if r.key == event.key and Slice(r.event_date, r.project_id) in own)
            day = record.key.event_date
            if day in event.days or any(row.event_date == day for row in shown or ()):
                unread = f"only the newest {MAX_SNAPSHOTS} publications are looked into"
                why = unread if record.snapshot_id in kept else "the snapshot is expired"
                publications.append(Published(record, shown, "" if shown is not None else why))
        yield replace(event, publications=tuple(publications))


def _with_standings(runtime: Runtime, event: Event, now: datetime) -> Event:
    ledger, project = runtime.ledger, event.project_id
    whole = days_between(event.days[0], event.days[-1])
    facts = Facts.read(
        ledger, runtime.settings, slices_to_look_at(ledger, runtime.settings, [project], whole), [REFINED_EVENTS], now
    )
    requested = [Slice(day, project) for day in whole]
    decided = decide_with_neighbours(ledger, facts, REFINED_EVENTS, requested, {}, now)
    plans, records = {plan.key: plan for plan in decided}, facts.records[REFINED_EVENTS.key]
    standings = []
    for day in event.days:
        key = Slice(day, project)
        expected, live = (tuple(row for row in rows if row.event_date == day) for rows in (event.winners, event.live))
        standings.append(Standing(key, expected, live, records.get(key), plans.get(key)))
    return replace(event, standings=tuple(standings))
