"""Explain one event: all of its deliveries, which row won, why the others lost, and where it was published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.identity import KeyKind, RawRow, RowFate, defeat, named, outcomes, rank
from pipeline_assets.domain.slices import BatchVerdict, Slice, neighbourhood
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.trace.explanation import Delivered, Event, Explanation, Published, Standing
from pipeline_assets.inspection.trace.rows import (
    FoundRow,
    Search,
    find_slices,
    kept_snapshots,
    live_rows,
    pin,
    published_rows,
    quarantined_lines,
    raw_rows,
)
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.facts import Facts, slices_to_look_at
from pipeline_assets.load.staleness.scan import decide_with_neighbours
from pipeline_assets.tables.refined_events import REFINED_EVENTS

MAX_SNAPSHOTS = 50
"""How many publications are examined, newest first; each is a read of the table."""


def explain(
    runtime: Runtime,
    identifier: str,
    *,
    projects: Sequence[str] = (),
    first: date | None = None,
    last: date | None = None,
    now: datetime | None = None,
) -> Explanation:
    """Everything about the events whose send id or row id is `identifier`, at the current snapshots.

    Writes nothing. `first` and `last` bound the event days. Raises UsageError, SettingsError, and LakehouseError
    before the first load.
    """
    if named(identifier) is None:
        ids = EXPORT_FORMAT.identity
        hint = f"Give the {ids.send_id} or the {ids.row_id} of an event"
        raise UsageError("identifier", "is empty or blank, which names no event", hint)
    if first is not None and last is not None and last < first:
        raise UsageError(f"{first} to {last}", "the range ends before it begins", "Swap the two days")
    chosen = runtime.settings.require_projects(tuple(projects))
    search, slices = find_slices(Search(runtime, pin(runtime), identifier, chosen, first, last))
    if slices:
        runtime.log(f"{identifier}: reading {len(slices)} days of raw and refined")
        found_rows, is_cut = raw_rows(search, slices)
        sketches = _sketch(search, found_rows, live_rows(search, slices), is_cut=is_cut)
        if sketches:
            published = _published(search, sketches)
            events = tuple(_event(search, sketch, published, now or datetime.now(UTC)) for sketch in sketches)
            return Explanation(identifier, chosen, first, last, events, is_cut)
    ledger = runtime.ledger
    batches = (batch for _, batch in sorted(ledger.batches(chosen, date.min, date.max).items()))
    not_in_raw = tuple(one for one in batches if one.verdict in (BatchVerdict.REFUSED, BatchVerdict.MOVED))
    excluded = tuple(one for one in ledger.interventions.all_exclusions(chosen) if one.lifted_at is None)
    quarantined = tuple(quarantined_lines(search))
    found_nothing = Explanation(identifier, chosen, first, last)
    return replace(found_nothing, quarantined=quarantined, not_in_raw=not_in_raw, excluded=excluded)


@dataclass(frozen=True)
class _Sketch:
    """An event before its publications and states are looked up."""

    key: tuple[object, ...]
    deliveries: tuple[Delivered, ...]
    live: tuple[RawRow, ...]

    @property
    def project_id(self) -> str:
        return str(self.key[0])

    @property
    def days(self) -> list[date]:
        return sorted(
            {delivered.row.event_date for delivered in self.deliveries} | {row.event_date for row in self.live}
        )

    def near(self, window: int) -> set[Slice]:
        """Slices that hold the event or may have held it: a row further away is another event."""
        return neighbourhood((Slice(day, self.project_id) for day in self.days), window)


def _sketch(search: Search, found_rows: Sequence[FoundRow], live: Sequence[RawRow], *, is_cut: bool) -> list[_Sketch]:
    """Group rows into events: same key, and no gap between days wider than the dedupe window."""
    window = search.runtime.settings.dedupe_window_days
    by_key: dict[tuple[object, ...], tuple[list[FoundRow], list[RawRow]]] = {}
    for row in found_rows:
        by_key.setdefault(row.row.key, ([], []))[0].append(row)
    for shown in live:
        by_key.setdefault(shown.key, ([], []))[1].append(shown)
    sketches = []
    for key, (delivered, refined) in by_key.items():
        judged = _judge(delivered, refined, search)
        days = {d.row.event_date for d in judged} | {row.event_date for row in refined}
        for group in _groups(_inside(days, search, window), window):
            deliveries = tuple(d for d in judged if d.row.event_date in group)
            of_event = tuple(row for row in refined if row.event_date in group)
            rows = [*(d.row for d in deliveries), *of_event]
            is_asked = any(search.identifier in (row.send_id, row.row_id) for row in rows)
            # An event without raw rows is skipped if rows were cut: its own may be among those.
            if is_asked and _inside(group, search, 0) and (deliveries or not is_cut):
                sketches.append(_Sketch(key, deliveries, of_event))
    kinds: list[object] = [*KeyKind]
    return sorted(sketches, key=lambda one: (one.project_id, one.days[0], kinds.index(one.key[1]), repr(one.key)))


def _judge(found_rows: Sequence[FoundRow], live: Sequence[RawRow], search: Search) -> list[Delivered]:
    """The fate of each row of one key, of which refined.events shows `live`; winners first, then by rank."""
    settings = search.runtime.settings
    precedence, window = settings.source_precedence, settings.dedupe_window_days
    rows, names = [delivered.row for delivered in found_rows], {row.name for row in live}
    judged = [
        Delivered(delivered, outcome, defeat(delivered.row, outcome, rows, precedence, window, names))
        for delivered, outcome in zip(found_rows, outcomes(rows, precedence, window, names), strict=True)
    ]
    judged.sort(key=lambda delivered: rank(delivered.row, precedence), reverse=True)
    return sorted(judged, key=lambda delivered: delivered.outcome is not RowFate.WINNER)


def _inside(days: Iterable[date], search: Search, margin: int) -> list[date]:
    """The days within the requested range, or at most `margin` days outside."""
    return [
        day
        for day in days
        if (search.first is None or (search.first - day).days <= margin)
        and (search.last is None or (day - search.last).days <= margin)
    ]


def _groups(days: Iterable[date], window: int) -> list[list[date]]:
    groups: list[list[date]] = []
    for day in sorted(days):
        if groups and (day - groups[-1][-1]).days <= window:
            groups[-1].append(day)
        else:
            groups.append([day])
    return groups


def _published(search: Search, sketches: Sequence[_Sketch]) -> list[Published]:
    """All recorded publications of the slices near the events, with the rows that each one showed."""
    window = search.runtime.settings.dedupe_window_days
    near = {key for sketch in sketches for key in sketch.near(window)}
    records = [record for record in search.runtime.ledger.publications(REFINED_EVENTS.key) if record.key in near]
    kept = kept_snapshots(search.runtime)
    readable = list(dict.fromkeys(r.snapshot_id for r in reversed(records) if r.snapshot_id in kept))
    rows = published_rows(search, near, readable[:MAX_SNAPSHOTS])
    published = []
    for record in records:
        if record.snapshot_id in rows:
            published.append(Published(record, tuple(rows[record.snapshot_id])))
            continue
        why = f"only the newest {MAX_SNAPSHOTS} publications are looked into"
        published.append(Published(record, None, why if record.snapshot_id in kept else "the snapshot is expired"))
    return published


def _event(search: Search, sketch: _Sketch, published: Sequence[Published], now: datetime) -> Event:
    near, days = sketch.near(search.runtime.settings.dedupe_window_days), set(sketch.days)
    publications = []
    for publication in published:
        key = publication.record.key
        rows = publication.rows
        if rows is not None:
            rows = tuple(row for row in rows if row.key == sketch.key and Slice(row.event_date, row.project_id) in near)
        # A neighbouring day is listed only where that publication showed the event on it.
        was_here = any(row.event_date == key.event_date for row in rows or ())
        if key in near and (key.event_date in days or was_here):
            publications.append(Published(publication.record, rows, publication.obstacle))
    standings = _standings(search.runtime, sketch, now)
    return Event(sketch.project_id, sketch.key, sketch.deliveries, tuple(publications), standings)


def _standings(runtime: Runtime, sketch: _Sketch, now: datetime) -> tuple[Standing, ...]:
    days = sketch.days
    whole = tuple(days[0] + timedelta(days=shift) for shift in range((days[-1] - days[0]).days + 1))
    # Decides what a load of these days would do, without loading.
    ledger, settings = runtime.ledger, runtime.settings
    slices = slices_to_look_at(ledger, settings, [sketch.project_id], whole)
    facts = Facts.read(ledger, settings, slices, [REFINED_EVENTS], now)
    requested = [Slice(day, sketch.project_id) for day in whole]
    plans = {
        plan.key: plan for plan in decide_with_neighbours(ledger, facts, REFINED_EVENTS, requested, Acceptances(), now)
    }
    records = facts.records[REFINED_EVENTS.key]
    winners = [delivered.row for delivered in sketch.deliveries if delivered.outcome is RowFate.WINNER]
    standings = []
    for day in days:
        key = Slice(day, sketch.project_id)
        expected = tuple(row for row in winners if row.event_date == day)
        live = tuple(row for row in sketch.live if row.event_date == day)
        standings.append(Standing(key, expected, live, records.get(key), plans.get(key)))
    return tuple(standings)
