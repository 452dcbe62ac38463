"""A slice published as its difference is the slice built whole, whatever came before, and whoever else writes."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice, Source, Verdict
from pipeline_assets.load.build import refined
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime, TableReport
from pipeline_assets.operations.decisions import exclude, lift, preview, release
from pipeline_assets.operations.maintenance import maintain, require_done
from pipeline_assets.operations.rollback import RollbackRequest, roll_back
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms import refine_task
from resources import failpoints
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from resources.spark.session import configure_catalog
from tests.support.builders import PROJECT, Pipeline, a_pipeline, events_on
from tests.support.random_exports import DAYS, KINDS, WINDOW, Vendor, change, first_exports
from tests.support.reference import raw_rows, refined_rows, require_known, winners

pytestmark = pytest.mark.slow
REFINED = REFINED_EVENTS.key
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Inside the redelivery horizon, so that what is withdrawn leaves raw."""
LOADED = frozenset(("raw/regular_events", "raw/backfill_events", REFINED))
STEPS, FULL_STEPS = 6, 110
OTHER_KINDS = ("exclusion", "inclusion", "compaction", "rollback", "delivered again", "moved objects", "moved prefix")
_LINEAGE = ("_source", "_object_key", "_line_number")


def _runtime(p: Pipeline) -> Runtime:
    return Runtime(p.lakehouse, p.ledger, LandingStore.from_settings(p.settings), p.settings)


def _rows(p: Pipeline) -> Counter[Any]:
    """All that refined holds, stored hashes included. Which of equal rows it names depends on what was published before."""
    return Counter(tuple(sorted(row.items(), key=str)) for row in map(_plain, p.rows(REFINED)))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) for name, value in row.items() if name not in _LINEAGE}


def _require_lineage(p: Pipeline, published: Collection[date]) -> None:
    """Each row of these days names a row of raw, and is equal to it."""
    raw = {(row.event_date, row.name) for row in raw_rows(p.lakehouse)}
    for row in p.rows(REFINED):
        source, key, line = (row[name] for name in _LINEAGE)
        name = (Source(source), key, line, (row["_hash_a"], row["_hash_b"]))
        assert row["event_date"] not in published or (row["event_date"], name) in raw


class _TwoLakes:
    """The same history, published as differences in one lake and whole in the other."""

    def __init__(self, by_difference: Pipeline, whole: Pipeline) -> None:
        self.lakes = (by_difference, whole)
        self.kept = 0
        """Publications that left files of their slice where they were."""

    def deliver(self, day: date, lines: list[dict[str, Any]], hour: int, source: Source, shard: int = 1) -> str:
        """One object to both; returns its key."""
        key, _ = (p.deliver(day, lines, hour=hour, source=source, shard=shard) for p in self.lakes)
        return key

    def load(self, first: date, last: date | None = None) -> None:
        """Load raw and refined in both, and compare all that is told and all that is held."""
        p, whole = self.lakes
        known = [len(lake.ledger.publications()) for lake in self.lakes]
        files = {day: p.files(REFINED, day) for day in DAYS} if known[0] else {}

        told = [self._told(p, first, last or first) for p in self.lakes]

        assert told[0] == told[1]
        assert _rows(p) == _rows(whole)
        assert p.digests() == whole.digests()
        assert refined_rows(p.lakehouse) == winners(raw_rows(p.lakehouse), p.settings)
        for lake, before in zip(self.lakes, known, strict=True):
            later = lake.ledger.publications()[before:]
            published = {record.key.event_date for record in later if record.table == REFINED}
            _require_lineage(lake, published)
        self.kept += sum(bool(files.get(day, frozenset()) & p.files(REFINED, day)) for day in published)

    @staticmethod
    def _told(p: Pipeline, first: date, last: date) -> dict[Slice, Any]:
        """What a load says of each slice of refined: verdict, figures, checks, and what becomes of its keys."""
        return {
            one.key: (one.verdict, one.reason, one.digest, one.figures, [e.to_json() for e in one.evaluations])
            for one in _load(p, first, last).outcomes
        }


def _load(p: Pipeline, first: date, last: date | None = None) -> TableReport:
    """What a load of raw and refined tells of refined."""
    configure_catalog(p.spark, p.settings)
    reports = {one.table: one for one in run_load(_runtime(p), _request(p, first, last or first), lambda _: False)}
    # Where raw refuses what came, refined waits, and is no longer what raw holds.
    assert all(outcome.verdict.is_good for outcome in reports["raw/regular_events"].outcomes)
    return reports[REFINED]


def _request(p: Pipeline, first: date, last: date) -> LoadRequest:
    days = tuple(first + timedelta(days=n) for n in range((last - first).days + 1))
    return LoadRequest(days, p.settings.projects, LOADED, str(uuid.uuid4()), p.now)


def _exclude(key: str, arrival: date) -> Callable[[Pipeline], None]:
    def act(p: Pipeline) -> None:
        exclude(_runtime(p), {key: "ruled out"}, _request(p, arrival, arrival), even_if_gone=False)

    return act


def _include(key: str, arrival: date) -> Callable[[Pipeline], None]:
    return lambda p: lift(_runtime(p), {key: "right after all"}, _request(p, arrival, arrival))


def _nothing(_: Pipeline) -> None:
    """What was delivered is all."""


def _roll_back_and_release(day: date, then: datetime, refused: list[str]) -> Callable[[Pipeline], None]:
    def act(p: Pipeline) -> None:
        runtime = _runtime(p)
        request = RollbackRequest((REFINED,), (PROJECT,), day, day, then, "a look back", str(uuid.uuid4()))
        try:
            roll_back(runtime, request)
        except LakehouseError as torn:
            # Keys that other days share since: in both lakes alike.
            refused.append(torn.reason)
            return
        held = preview(runtime.ledger, runtime.settings, (), (PROJECT,), DAYS[0], DAYS[-1], p.now, is_load_next=True)
        release(runtime.ledger, held, "go on", str(uuid.uuid4()))

    return act


def _compact(p: Pipeline) -> None:
    require_done(list(maintain(_runtime(p), str(uuid.uuid4()), SOON, lambda _: False, is_dry_run=False)))


def test_random_histories_end_in_the_same_rows(
    spark: Any, tmp_path: Path, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: late facts, corrections, withdrawals, exclusions and inclusions, days that events move to, objects under another
    name, in the other prefix or in both, rollbacks and compactions, one after another, through both sources. Outcome: after each,
    every row, digest, verdict, figure and check is the same as in a lake where slices are built whole and as the pure rule gives
    for raw as it is; rows of published days name rows of raw; and most publications left files where they were."""
    window = {"dedupe_window_days": WINDOW, "reprocessing_window_days": 3}
    bounds = {"change_min_rows": 1, "change_max_shrink": 9, "change_max_growth": 9}
    with (
        a_pipeline(spark, tmp_path / "difference", **window, **bounds) as p,
        a_pipeline(spark, tmp_path / "whole", local_bytes=0, **window, **bounds) as q,
    ):
        by_difference = refined.held_files
        monkeypatch.setattr(
            refined,
            "held_files",
            lambda runtime, *rest: {} if runtime.settings is q.settings else by_difference(runtime, *rest),
        )
        # So that late rows of these small days lie apart; tasks of the lake of differences run in this process.
        monkeypatch.setattr(refine_task, "_LEAST_ROWS", 3)
        p.now = q.now = SOON
        lakes, vendor = _TwoLakes(p, q), Vendor(random.Random(7))
        files = first_exports(vendor)
        for (day, hour), lines in files.items():
            lakes.deliver(day, lines, hour, Source.REGULAR)
        lakes.load(DAYS[0], DAYS[-1])
        seen: Counter[str] = Counter()
        started, refused = datetime.now(UTC), list[str]()
        for number in range(FULL_STEPS if is_full else STEPS):
            kind = (*KINDS, *OTHER_KINDS)[number * 5 % (len(KINDS) + len(OTHER_KINDS))]
            early = sorted(name for name in files if name[1] < 16)
            if len(early) == 1 and kind in ("exclusion", "moved prefix"):
                # Both take an hour away, and the last one is needed.
                kind = "delivered again"
            seen[kind] += 1
            if kind in KINDS:
                day, hour = change(vendor, files, kind)
                # The last hours are recovered ones, so that both sources take part.
                lakes.deliver(day, files[day, hour], hour, Source.BACKFILL if hour > 19 else Source.REGULAR)
                lakes.load(day)
                continue
            day, hour = vendor.rng.choice(early)
            if kind in ("exclusion", "inclusion"):
                key = lakes.deliver(day, files[day, hour], hour, Source.REGULAR)
                act = _exclude(key, day)
                if kind == "inclusion":
                    for lake in lakes.lakes:
                        act(lake)
                    lakes.load(DAYS[0], DAYS[-1])
                    act = _include(key, day)
                else:
                    del files[day, hour]
            elif kind in ("delivered again", "moved prefix"):
                key = lakes.deliver(day, files[day, hour], hour, Source.REGULAR)
                lakes.deliver(day, files[day, hour], hour, Source.BACKFILL)
                act = _nothing
                if kind == "moved prefix":
                    act = lambda p, key=key: p.remove(key)  # noqa: E731 - one of the acts above
                    del files[day, hour]
            elif kind == "rollback":
                act = _roll_back_and_release(day, started, refused)
            elif kind == "compaction":
                act = _compact
            else:
                key = lakes.deliver(day, files[day, hour], hour, Source.REGULAR)
                lakes.deliver(day, files[day, hour], hour, Source.REGULAR, shard=2)
                act = lambda p, key=key: p.remove(key)  # noqa: E731 - one of the acts above
            for lake in lakes.lakes:
                act(lake)
            lakes.load(DAYS[0], DAYS[-1])
        assert lakes.kept >= 2, seen
        assert refused[::2] == refused[1::2]
        assert all("events have moved between these days" in reason for reason in refused), refused
        require_known(p)
        print(f"\n{dict(seen)}: {lakes.kept} publications left files of their slice where they were")


def test_only_days_with_files_of_another_format_pass_through_spark(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: another program writes the raw files of one day of three anew, in Avro; late facts come for all three, duplicates
    and an event that moved among them. Outcome: refined is what raw says, in Parquet files of ours, and the other days never
    pass through Spark's rows."""
    p, days = pipeline(), DAYS[:3]
    for day in days:
        p.deliver(day, events_on(day, 30), hour=1)
    p.reports(days[0], days[-1])
    raw = RAW_TABLES[Source.REGULAR]
    p.spark.sql(f"ALTER TABLE {p.lakehouse.identifier(raw)} SET TBLPROPERTIES ('write.format.default' = 'avro')")
    p.spark.sql(
        f"CALL {p.settings.catalog_name}.system.rewrite_data_files(table => '{raw.identifier}', "
        f"where => \"event_date = DATE '{days[1]}'\", options => map('rewrite-all', 'true'))"
    )
    assert {path.rpartition(".")[2] for path in p.files(raw.key, days[1])} == {"avro"}
    through_spark: list[Slice] = []
    winning = refined.winning_rows

    def watched(runtime: Runtime, pins: Any, slices: Any, losers: Any) -> Any:
        through_spark.extend(slices)
        return winning(runtime, pins, slices, losers)

    monkeypatch.setattr(refined, "winning_rows", watched)
    for day in days:
        again = [{**event, "uuid": f"again-{event['uuid']}"} for event in events_on(day, 10)]
        at = {"event_time": f"{day} 11:00:00.000000", "server_upload_time": f"{day} 23:00:00.000000"}
        moved = [{**event, **at, "uuid": f"{day}-{event['uuid']}"} for event in events_on(days[0], 2, prefix="m")]
        p.deliver(day, [*events_on(day, 3, prefix="late"), *again, *moved], hour=2)

    reports = p.reports(days[0], days[-1])

    assert reports[REFINED].built == tuple(Slice(day, PROJECT) for day in days)
    assert through_spark == [Slice(days[1], PROJECT)]
    assert refined_rows(p.lakehouse) == winners(raw_rows(p.lakehouse), p.settings)
    assert [p.count(REFINED, day) for day in days] == [33, 33, 35]
    for day in days:
        assert {path.rpartition(".")[2] for path in p.files(REFINED, day)} == {"parquet"}
    require_known(p)


def _written(p: Pipeline) -> set[Path]:
    """All data files that anybody ever wrote for refined, published or not."""
    return set(Path(p.settings.warehouse_url).glob(f"{REFINED}/data/**/*.parquet"))


def test_equal_rows_under_other_names_write_nothing(pipeline: Any) -> None:
    """Scenario: a day is exported again under other names, then copied to the other prefix; then its regular objects go; a late
    fact comes before and after that. Outcome: equal rows write no file of refined and publish nothing there, nor does the
    delivery that is shown when it goes. The first late fact adds its own row alone; the second has the rows name the least of
    what is there."""
    p = pipeline()
    p.now = SOON
    day = DAYS[0]
    hours = {hour: events_on(day, 20, prefix=f"h{hour}") for hour in (1, 2)}
    first = [p.deliver(day, lines, hour=hour) for hour, lines in hours.items()]
    _load(p, day)
    files, written, history, digests = p.files(REFINED, day), _written(p), p.history_of(REFINED), p.digests_of(REFINED)
    assert written

    def require_nothing_written() -> None:
        (outcome,) = _load(p, day).outcomes
        assert outcome.verdict is Verdict.UNCHANGED
        assert (p.files(REFINED, day), _written(p)) == (files, written)
        assert (p.history_of(REFINED), p.digests_of(REFINED)) == (history, digests)
        assert refined_rows(p.lakehouse) == winners(raw_rows(p.lakehouse), p.settings)

    again = [p.deliver(day, lines, hour=hour, shard=2) for hour, lines in hours.items()]
    require_nothing_written()
    for shard in (1, 2):
        for hour, lines in hours.items():
            p.deliver(day, lines, hour=hour, shard=shard, source=Source.BACKFILL)
    require_nothing_written()

    p.deliver(day, events_on(day, 1, prefix="late"), hour=12)
    _load(p, day)
    assert files < p.files(REFINED, day)
    assert {row["_object_key"] for row in p.rows(REFINED)} > set(first)

    files, written, history, digests = p.files(REFINED, day), _written(p), p.history_of(REFINED), p.digests_of(REFINED)
    p.remove(*first, *again)
    require_nothing_written()
    assert {row["_object_key"] for row in p.rows(REFINED)} > set(first)
    p.deliver(day, events_on(day, 1, prefix="later"), hour=13)
    _load(p, day)
    assert not files <= p.files(REFINED, day)
    assert Counter(row["_source"] for row in p.rows(REFINED)) == {"backfill": 40, "regular": 2}
    _require_lineage(p, [day])


def test_an_object_in_another_line_order_is_named_anew_with_the_next_change(pipeline: Any) -> None:
    """Scenario: an object is overwritten with its lines in another order; then a late fact comes. Outcome: refined is left alone,
    until it is published for the late fact: its file is written again, with the lines as they are now."""
    p = pipeline()
    day = DAYS[0]
    lines = events_on(day, 20)
    p.deliver(day, lines, hour=1)
    _load(p, day)
    files, written = p.files(REFINED, day), _written(p)

    p.deliver(day, reversed(lines), hour=1)
    _load(p, day)
    assert (p.files(REFINED, day), _written(p)) == (files, written)

    p.deliver(day, events_on(day, 1, prefix="late"), hour=12)
    _load(p, day)
    assert not files & p.files(REFINED, day)
    _require_lineage(p, [day])


def test_files_that_vanish_meanwhile_are_noticed(pipeline: Any) -> None:
    """Scenario: a late fact is published into a day whose files another hand joins meanwhile, then into one that it empties.
    Outcome: both loads see it before anything is published, and build from what is there; nothing is lost or doubled."""
    p = pipeline(publish_attempts=3)
    day = DAYS[0]
    p.deliver(day, events_on(day, 30), hour=1)
    _load(p, day)
    name = p.lakehouse.identifier(REFINED_EVENTS)
    hands = {
        "joined": f"CALL {p.settings.catalog_name}.system.rewrite_data_files(table => '{REFINED_EVENTS.identifier}', "
        "options => map('rewrite-all', 'true'))",
        "emptied": f"DELETE FROM {name} WHERE event_date = DATE '{day}'",
    }
    for number, (hand, statement) in enumerate(hands.items(), 2):
        p.deliver(day, events_on(day, 3, prefix=hand), hour=number)
        met: list[int] = []

        def meddle(point: Failpoint, _: str, statement: str = statement, met: Any = met) -> None:
            if point is Failpoint.BEFORE_PUBLISH and not met:
                met.append(len(p.lakehouse.commits(REFINED_EVENTS, None)))
                p.spark.sql(statement)

        failpoints.watch(meddle)
        try:
            (outcome,) = _load(p, day).outcomes
        finally:
            failpoints.watch()

        assert outcome.verdict.value == "published", hand
        # The foreign commit, then one of ours: none came between.
        ours = [commit.run_id is not None for commit in p.lakehouse.commits(REFINED_EVENTS, None)]
        assert ours[:2] == [True, False], hand
        assert len(ours) == met[0] + 2
        assert refined_rows(p.lakehouse) == winners(raw_rows(p.lakehouse), p.settings), hand
        require_known(p)
    assert p.count(REFINED) == 36
