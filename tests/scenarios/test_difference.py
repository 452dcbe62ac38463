"""A slice is published as its difference: equal rows stay in their files, despite other names and writers."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.slices import Slice, Source, Verdict
from pipeline_assets.load.build import refined
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from resources.failpoints import Failpoint
from tests.scenarios.test_random_histories import require_lineage
from tests.support.builders import PROJECT, RAW_AND_REFINED, Loaded, Pipeline, events_on
from tests.support.points import once
from tests.support.random_exports import DAYS
from tests.support.reference import raw_rows, refined_rows, require_known, winners
from tests.support.world import SOON

pytestmark = pytest.mark.slow
REFINED = REFINED_EVENTS.key


def _load(p: Pipeline, day: date) -> Loaded:
    done = p.load(day, tables=RAW_AND_REFINED)
    # Where raw refuses, refined waits and does not equal raw.
    assert all(one.verdict.is_good for one in done.outcomes("raw/regular_events")), done.failure()
    return done


def test_only_days_with_files_of_another_format_pass_through_spark(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: another program rewrites one raw day of three in Avro; late facts, duplicates and a moved event come
    for all. Outcome: refined follows raw, in our Parquet files; the other days do not pass through Spark's rows."""
    p, days = pipeline(only=RAW_AND_REFINED), DAYS[:3]
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
    return set(Path(p.settings.warehouse_url).glob(f"{REFINED}/data/**/*.parquet"))


def test_equal_rows_under_other_names_write_nothing(pipeline: Any) -> None:
    """Scenario: a day comes under other names, then under the other prefix; its regular objects go; late facts come.
    Outcome: equal rows write nothing; the first fact adds its row alone; the second renames the rows' origins."""
    p = pipeline(only=RAW_AND_REFINED)
    p.now = SOON
    day = DAYS[0]
    hours = {hour: events_on(day, 20, prefix=f"h{hour}") for hour in (1, 2)}
    first = [p.deliver(day, lines, hour=hour) for hour, lines in hours.items()]
    _load(p, day)
    files, written, history, digests = p.files(REFINED, day), _written(p), p.history_of(REFINED), p.digests_of(REFINED)
    assert written

    def require_nothing_written() -> None:
        outcome = _load(p, day).outcome(REFINED, day)
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
    require_lineage(p, [day])


def test_an_object_in_another_line_order_is_named_anew_with_the_next_change(pipeline: Any) -> None:
    """Scenario: an object's lines are reordered. Outcome: refined takes the new lines with the next late fact."""
    p = pipeline(only=RAW_AND_REFINED)
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
    require_lineage(p, [day])


def test_files_that_vanish_meanwhile_are_noticed(pipeline: Any) -> None:
    """Scenario: other programs join, then delete files under a load. Outcome: the load notices and builds again."""
    p = pipeline(publish_attempts=3, only=RAW_AND_REFINED)
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

        def meddle(statement: str = statement, met: list[int] = met) -> None:
            met.append(len(p.lakehouse.commits(REFINED_EVENTS, None)))
            p.spark.sql(statement)

        with once(Failpoint.BEFORE_PUBLISH, meddle):
            outcome = _load(p, day).outcome(REFINED, day)
        assert outcome.verdict.value == "published", hand
        # The foreign commit, then ours, with none between.
        ours = [commit.run_id is not None for commit in p.lakehouse.commits(REFINED_EVENTS, None)]
        assert ours[:2] == [True, False], hand
        assert len(ours) == met[0] + 2
        assert refined_rows(p.lakehouse) == winners(raw_rows(p.lakehouse), p.settings), hand
        require_known(p)
    assert p.count(REFINED) == 36
