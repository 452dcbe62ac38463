"""Loads that would spoil closed days are refused before anything is visible, with the changes by cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import pyspark.sql.functions as F
import pytest

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.amplitude.columns import TRANSPORT_COLUMNS
from pipeline_assets.load.build import refined as build_refined
from pipeline_assets.tables.events import CONTENT, REFINED_EVENTS
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import with_row_hashes
from tests.support.builders import PROJECT, RAW_AND_REFINED, events_on, sent_again
from tests.support.reference import require_known
from tests.support.world import SOON, Steps, Story, stories_in, tell

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
RAW, REFINED, REVENUE = "raw/regular_events", REFINED_EVENTS.key, "aggregates/daily_revenue"
DERIVED_TABLES = (REFINED, REVENUE)
TABLES = (*RAW_AND_REFINED, REVENUE)
SHARDS = 4
Lines = list[dict[str, Any]]


def _good(shard: int) -> Lines:
    """Every seventh is a purchase: enough to be bounded, too few to count as too many changed events."""
    bags: list[dict[str, Any]] = [{"$revenue": 2.5, "currency": "EUR"} if n % 7 == 0 else {} for n in range(200)]
    events = events_on(DAY, 200, prefix=f"s{shard}")
    return [{**line, "device_type": "phone", "event_properties": bag} for line, bag in zip(events, bags, strict=True)]


@dataclass(frozen=True)
class BadLoad:
    what: str
    spoil: Callable[[int, Lines], Lines | None]
    """Shard and its lines -> lines delivered instead; None = the object is deleted."""
    table: str
    said: str


def _dearer(_: int, lines: Lines) -> Lines:
    def price(line: dict[str, Any]) -> dict[str, Any]:
        bag = line["event_properties"]
        return {**line, "event_properties": {**bag, "$revenue": 250} if bag else bag}

    return [price(line) for line in lines]


BAD_LOADS = (
    BadLoad(
        "history doubled with new ids", lambda n, lines: lines + events_on(DAY, 200, prefix=f"again{n}"), REFINED,
        "grows by 100.0%: rows 800 -> 1600; gains 100.0% of its 800 keys: new delivery 800",
    ),
    BadLoad(
        "halved", lambda _, lines: lines[::2], REFINED,
        "shrinks by 50.0%: rows 800 -> 400; loses 50.0% of its 800 keys: withdrawn 400",
    ),
    BadLoad(
        "a shard lost",
        # The others are written again: a missing delivery would make raw refuse.
        lambda n, lines: None if n == 2 else lines[::-1],
        REFINED,
        "shrinks by 25.0%: rows 800 -> 600; loses 25.0% of its 800 keys: withdrawn 200",
    ),
    BadLoad(
        "projects mixed up", lambda n, _: [{**line, "app": 7} for line in events_on(DAY, 200, prefix=f"other{n}")], RAW,
        "800 of 800 lines are quarantined (100.00%)",
    ),
    BadLoad(
        "a key column of nulls", lambda _, lines: [{**line, "$insert_id": None} for line in lines], REFINED,
        "gains 100.0% of its 800 keys: new delivery 800; loses 100.0% of its 800 keys: withdrawn 800",
    ),
    BadLoad(
        "a property that is no longer sent", lambda _, lines: [{**line, "device_type": None} for line in lines],
        REFINED, "changes 100.0% of its 800 keys: new delivery 800",
    ),
    BadLoad("amounts times a hundred", _dearer, REVENUE, "grows by 9900.0%: revenue 290 -> 29000"),
)  # fmt: skip


def a_bad_load_is_refused(p: Story, bad: BadLoad) -> Steps:
    """Outcome: the load fails with the changes by cause, and the published rows stay; a good delivery heals the day."""
    good = {shard: _good(shard) for shard in range(SHARDS)}
    for shard, lines in good.items():
        p.deliver(DAY, lines, shard=shard)
    yield p.must_load(DAY)
    published = p.digests()
    for shard, lines in good.items():
        spoilt = bad.spoil(shard, lines)
        key = p.deliver(DAY, lines if spoilt is None else spoilt, shard=shard)
        if spoilt is None:
            p.remove(key)
    run = yield p.load(DAY)
    said = run.failure()
    assert f"{DAY} {bad.table} {p.project} refused: " in said
    assert bad.said in said
    if bad.table != RAW:
        assert p.verdict(bad.table, DAY) == "refused"
        assert bad.said in str(p.record(bad.table, DAY).reason)
    kept = DERIVED_TABLES if bad.table != REVENUE else (REVENUE,)
    assert {table: p.digests()[table] for table in kept} == {table: published[table] for table in kept}
    for shard, lines in good.items():
        p.deliver(DAY, lines, shard=shard)
    yield p.must_load(DAY)
    assert p.count(REFINED) == 800
    (revenue,) = [row["revenue"] for row in p.rows(REVENUE)]
    assert float(revenue) == 290


def bounds_of_one_measure_and_a_person_let_it_through(p: Story) -> Steps:
    """Outcome: refused by general bounds, published by the measure's own, beyond those published once accepted."""
    p.deliver(DAY, events_on(DAY, 200))
    yield p.must_load(DAY)
    bounds = Settings(change_bounds={"refined/events:keys_changed": {"growth": 1.0}}).change_bounds
    p.change(change_bounds=bounds)
    p.deliver(DAY, [{**line, "device_type": "phone"} for line in events_on(DAY, 200)])
    yield p.must_load(DAY)
    p.deliver(DAY, events_on(DAY, 190))
    assert "shrinks by 5.0%: rows 200 -> 190" in (yield p.load(DAY)).failure()
    yield p.must_load(DAY, accept={f"{table}:{DAY}": "ten were test events" for table in DERIVED_TABLES})
    assert p.publications(REFINED)[-1].accepted_reason == "ten were test events"
    assert p.count(REFINED) == 190


def a_closed_day_does_not_melt_in_small_steps(p: Story) -> Steps:
    """Scenario: a closed day loses 0.7 % twice. Outcome: the second loss is measured against the final day."""
    for count in (300, 298):
        p.deliver(DAY, events_on(DAY, count))
        yield p.must_load(DAY)
    p.deliver(DAY, events_on(DAY, 296))
    melted = (yield p.load(DAY)).failure()
    assert "shrinks by 1.3%: rows 300 -> 296" in melted
    assert "loses 1.3% of its 300 keys since it was final or last accepted: now withdrawn 2" in melted
    yield p.must_load(DAY, accept={f"{table}:{DAY}": "test events" for table in DERIVED_TABLES})
    baseline = p.record(REFINED, DAY).baseline
    assert baseline is not None
    assert (baseline.figures, baseline.totals) == ({"rows": 296}, {})


def an_event_that_moves_is_told_as_moved(p: Story) -> Steps:
    """Scenario: events of a closed day change, move over midnight, are new. Outcome: published, counted by cause."""
    after = date(2026, 2, 3)
    for day in (DAY, after):
        p.deliver(day, events_on(day, 300))
    yield p.must_load(DAY, after)
    first = events_on(DAY, 300)
    moved = [sent_again(line, after, to=after, at="00:10") for line in first[:2]]
    corrected = [sent_again(line, after, city="Elsewhere") for line in first[10:17]]
    p.deliver(after, [*moved, *corrected, *events_on(DAY, 5, prefix="late")], hour=13)
    yield p.must_load(DAY, after)

    def keys(day: date) -> dict[str, float]:
        (found,) = [one.figures for one in p.record(REFINED, day).evaluations if one.check == Check.CHANGE_IS_EXPLAINED]
        return {name: value for name, value in found.items() if name.startswith("keys_")}

    assert keys(DAY) == {
        "keys_kept": 291, "keys_added": 5, "keys_removed": 2, "keys_changed": 7, "keys_added_new_delivery": 5,
        "keys_removed_moved_day": 2, "keys_changed_new_delivery": 7,
    }  # fmt: skip
    assert keys(after) == {
        "keys_kept": 300, "keys_added": 2, "keys_removed": 0, "keys_changed": 0, "keys_added_moved_day": 2,
    }  # fmt: skip


def test_changes_of_closed_days(pipeline: Any, subtests: Any) -> None:
    bad = {bad.what: partial(a_bad_load_is_refused, bad=bad) for bad in BAD_LOADS}
    tell(pipeline, subtests, bad | {one.__name__: one for one in stories_in(globals())}, only=TABLES)


def test_a_code_change_that_drops_a_property_is_refused(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: code that loses a property loads a closed day, with and without a change of row hashes.
    Outcome: refused as rows that raw does not hold, then with every key changed by code alone."""
    p = pipeline(only=TABLES)
    p.now = SOON
    for shard in range(SHARDS):
        p.deliver(DAY, _good(shard), shard=shard)
    p.must_load(DAY)
    require_known(p)
    published = p.digests()
    whole, version = build_refined.raw_rows, Table.code_version

    is_hashed = False

    def without_device_type(*arguments: Any) -> Any:
        frame = whole(*arguments)
        if "device_type" not in frame.columns:
            return frame
        bare = frame.withColumn("device_type", F.lit(None).cast("string"))
        meaning = [name for name in CONTENT if name not in TRANSPORT_COLUMNS]
        hashed = with_row_hashes(with_row_hashes(bare, meaning, ("_meaning_hash", "_other_half")), CONTENT)
        return hashed.drop("_other_half") if is_hashed else bare

    monkeypatch.setattr(build_refined, "raw_rows", without_device_type)
    # Workers have code of their own, so Spark takes the slices.
    monkeypatch.setattr(build_refined, "raw_files", lambda _, __, slices: ([], frozenset(slices)))
    monkeypatch.setattr(Table, "code_version", lambda table, settings: f"new {version(table, settings)}")

    assert "800 rows are not what raw holds: their hashes differ" in p.load(DAY).failure()
    assert p.digests() == published
    is_hashed = True
    monkeypatch.setattr(Table, "code_version", lambda table, settings: f"newer {version(table, settings)}")
    run = p.load(DAY)

    assert not run.success
    assert "changes 100.0% of its 800 keys: code 800 (cause: code)" in run.failure()
    assert p.digests() == published
    (refused,) = [
        one
        for one in p.ledger.slices(REFINED, [PROJECT], [DAY])[Slice(DAY, PROJECT)].refused_evaluations
        if one.check == Check.CHANGE_IS_EXPLAINED
    ]
    assert refused.figures["keys_changed_code"] == 800
    assert refused.figures["keys_kept"] == 0
