"""Published days are built again beside main during loads, reported, swapped in by one publish, and taken back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyspark.sql.functions as F
import pytest

from pipeline_assets.domain.checks import CheckRule, Evaluation, Totals
from pipeline_assets.domain.errors import TakenOverError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.requests import Rebuild
from pipeline_assets.domain.slices import Slice
from pipeline_assets.operations.rebuild_build import begin, build, claimed
from pipeline_assets.operations.rebuild_swap import abandon, swap
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.tables.aggregates import EVENT_COUNTS
from pipeline_assets.tables.registry import DERIVED, table_by_key
from pipeline_assets.tables.table import Measure, TableColumn
from pipeline_assets.transforms.fold import EVENT_TYPE, MONEY, USER, Fold, Folded, fold_event_counts
from resources.failpoints import Failpoint
from tests.support.builders import PROJECT, Outcome, a_pipeline, an_event, events_on
from tests.support.points import OF_REBUILDS, killed_at, once
from tests.support.reference import broken_chains, measured_digests, require_known
from tests.support.shell import OfPipeline
from tests.support.small_spark import SMALL
from tests.support.upkeep import grow_old, maintained
from tests.support.victim import a_command, home_below

pytestmark = pytest.mark.slow
FIRST = date(2026, 2, 2)
REFINED, REVENUE, COUNTS = "refined/events", "aggregates/daily_revenue", "aggregates/event_counts"
NAMES = tuple(table.key for table in DERIVED)
NEW = {"revenue_properties": ("amount",), "dedupe_window_days": 2}
"""The new meaning of revenue, and the new window."""
FOR_REFINED = ("raw/regular_events", "raw/backfill_events", REFINED)
REASON = "revenue is what was paid"
OWN_ENGINE: dict[str, Any] = {"spark_master": "local[2]", "spark_driver_memory": "1g", "spark_config": SMALL}


def span(days: int) -> list[date]:
    return [FIRST + timedelta(days=shift) for shift in range(days)]


def sold(day: date, count: int = 12) -> list[dict[str, Any]]:
    """Events of a day: one has revenue by new settings alone; each third day shares an event by them."""
    events = events_on(day, count)
    for event in events:
        event["event_properties"] = {}
    events[0]["event_properties"] = {"$revenue": 2.5, "amount": 4, "currency": "EUR"}
    again = an_event(
        insert_id=f"twice-{day.toordinal() // 3}",
        device_id="d",
        uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"twice-{day}")),
        event_time=f"{day} 12:00:00.000000",
        server_upload_time=f"{day} 12:30:00.000000",
        processed_time=f"{day} 12:31:00.000000",
    )
    return events if is_alone(day) else [*events, again]


def is_alone(day: date) -> bool:
    return day.toordinal() % 3 == 1


def deliver(p: Any, days: Sequence[date]) -> None:
    for day in days:
        p.deliver(day, sold(day))


def start(p: Any, day: date, last: date, table: str, **more: Any) -> tuple[RebuildRecord, Outcome]:
    config = {"tables": [table], "from": str(day), "to": str(last), "reason": REASON, "who": "ann", **more}
    run = p.run_job("rebuild", "rebuild_slices", config)
    assert run.success, run.failure()
    found: RebuildRecord = p.ledger.rebuilds.all()[-1]
    return found, run


def derived(p: Any) -> dict[str, dict[Slice, str]]:
    return {name: found for name, found in p.digests().items() if name in NAMES}


def green(p: Any, rebuild: RebuildRecord) -> dict[str, dict[Slice, str]]:
    return {
        name: {key: str(one.record.digest) for key, one in of_table.items() if one.goes}
        for name, of_table in p.ledger.rebuilds.slices(rebuild).items()
    }


def with_green(p: Any, rebuild: RebuildRecord, main: Mapping[str, Mapping[Slice, str]]) -> dict[str, dict[Slice, str]]:
    made = green(p, rebuild)
    return {name: {**of_table, **made.get(name, {})} for name, of_table in main.items()}


def branches(p: Any) -> set[str]:
    return {
        row["name"]
        for name in NAMES
        for row in p.spark.table(f"{p.lakehouse.identifier(table_by_key(name))}.refs").collect()
    } - {"main"}


class Told(OfPipeline):
    """The shell on a pipeline's own tables."""

    def __init__(self, p: Any) -> None:
        super().__init__(p, home_below(p.landing.parent))

    def kill(self, point: str, *words: str) -> None:
        """The same command in its own process, killed by SIGKILL at a point."""
        with a_command(self.p, words, point) as victim:
            assert victim.wait_until_paused().startswith(point)


@pytest.fixture
def told(spark: Any, tmp_path: Path, is_full: bool) -> Iterator[Told]:
    # Otherwise days this small have no bounds.
    chunked = {"days_per_run": 20 if is_full else 4, "change_min_rows": 0}
    with a_pipeline(spark, tmp_path, home=home_below(tmp_path), **chunked, **OWN_ENGINE) as p:
        yield Told(p)


def test_two_months_are_rebuilt_while_loads_go_on(told: Told, is_full: bool) -> None:
    """Scenario: days (sixty with --full) are rebuilt with new settings through kills, loads and late facts.
    Outcome: main changes by the swap alone, one snapshot per table, with the loads' rows; the undo restores it."""
    p, days = told.p, span(60 if is_full else 7)
    deliver(p, days)
    p.must_run(days[0], days[-1])
    late_day = next(day for day in days[1:] if is_alone(day))
    before, rebuilt = derived(p), {Slice(day, PROJECT) for day in days}
    p.change(**NEW)
    words = ("rebuild", "start", "--from", str(days[0]), "--to", str(days[-1]), "--reason", REASON)

    told.kill("after_green:refined/events", *words)
    assert derived(p) == before
    # A daily load with a late fact, while chunks are missing. The new meaning alone is refused on closed days.
    new_day = days[-1] + timedelta(days=1)
    late = {"event_time": f"{late_day} 09:00:00.000000", "server_upload_time": f"{new_day} 15:00:00.000000"}
    deliver(p, [new_day])
    p.deliver(new_day, [an_event(**late, amplitude_id=999)], hour=15)
    run = p.run(new_day)
    assert not run.success
    assert "grows" in run.failure() or "shrinks" in run.failure()
    assert p.verdict(REFINED, late_day) == "published"
    assert p.verdict(REVENUE, late_day) == "refused"
    assert p.verdict(REVENUE, new_day) == "published"
    told.kill("after_chunk", *words)
    p.deliver(new_day, [an_event(**late, amplitude_id=998)], hour=16)
    p.run(new_day)
    assert p.verdict(REFINED, late_day) == "published"
    status = told("status", "--from", str(new_day), "--to", str(new_day)).stdout
    assert f"rebuild 1 of {', '.join(NAMES)}" in status
    meanwhile = derived(p)
    assert {key for key in rebuilt if meanwhile[REVENUE][key] != before[REVENUE][key]} == set()

    told.must(*words)
    rebuild = p.ledger.rebuilds.get(1)
    assert rebuild.state is RebuildState.READY
    assert derived(p) == meanwhile
    report = json.loads(told("rebuild", "show", "1", "--json").stdout)
    lines = {(one["table"], one["day"]): one for one in report["slices"]}
    assert len(lines) == len(NAMES) * len(days)
    assert all(one["goes"] for one in report["slices"])
    assert lines[REVENUE, str(late_day)]["difference"]["measures"]["revenue"] == [2.5, 4.0]
    assert lines[REFINED, str(late_day)]["difference"]["rows"] == [14, 14]
    assert "revenue 2.5 -> 4" in told("rebuild", "show", "1").stdout
    history, expected = p.history(), with_green(p, rebuild, meanwhile)
    assert expected != meanwhile

    told.must("rebuild", "swap", "1", "--reason", "the report is right")
    assert derived(p) == expected
    assert {name: p.history()[name] - history[name] for name in NAMES} == {
        name: int(expected[name] != meanwhile[name]) for name in NAMES
    }
    _require_never_half(p, rebuilt)
    assert branches(p) == set()
    changes = [record for record in p.ledger.publications() if record.cause.text == "rebuild"]
    assert {record.accepted_reason for record in changes} == {f"rebuild 1 by {rebuild.who}: {REASON}"}
    assert p.verdict(REVENUE, late_day) == "published"
    require_known(p)
    assert broken_chains(p.ledger) == []
    shown_days = p.instance.get_materialized_partitions(dg.AssetKey(REVENUE.split("/")))
    assert {str(day) for day in days} <= shown_days
    history = p.history()
    p.must_run(days[0], new_day)
    assert p.history() == history

    told.must("rebuild", "undo", "1")
    assert derived(p) == meanwhile
    assert p.verdict(REVENUE, days[0]) == "held"
    require_known(p)
    assert broken_chains(p.ledger) == []


def _require_never_half(p: Any, rebuilt: set[Slice]) -> None:
    """Each commit to main since the rebuild holds none or all of the rebuilt days that change."""
    for name in NAMES:
        table = table_by_key(name)
        records = [record for record in p.ledger.publications(name) if record.cause.text == "rebuild"]
        changed = {record.key for record in records}
        commits = {record.snapshot_id for record in records}
        for commit in p.lakehouse.commits(table, None):
            assert (commit.slices & rebuilt == changed) or commit.snapshot_id not in commits
        assert len(commits) == min(1, len(changed))


WHILE_BUILDING = (
    (Failpoint.AFTER_PIN, REFINED), (Failpoint.AFTER_GREEN, REFINED), (Failpoint.AFTER_AUDIT, REVENUE),
    (Failpoint.BEFORE_LEDGER, REVENUE), (Failpoint.AFTER_CHUNK, ""), (Failpoint.BEFORE_REPORT, ""),
)  # fmt: skip
WHILE_SWAPPING = (
    (Failpoint.BEFORE_SWAP, REFINED), (Failpoint.BEFORE_PUBLISH, ""), (Failpoint.AFTER_APPLY, REFINED),
    (Failpoint.IN_TRANSACTION, ""), (Failpoint.AFTER_PUBLISH, ""), (Failpoint.AFTER_SWAPS, ""),
)  # fmt: skip


def test_every_point_of_a_rebuild_is_killed_at() -> None:
    assert {point for point, _ in (*WHILE_BUILDING, *WHILE_SWAPPING)} >= OF_REBUILDS


def test_a_rebuild_killed_everywhere_is_the_same(told: Told, is_full: bool) -> None:
    """Scenario: a rebuild of two tables and its swap are killed at each point (with --full by SIGKILL).
    Outcome: both tables change by the swap or none; in the end one snapshot per table, each change once, no branch."""
    p, days = told.p, span(4)
    p.change(days_per_run=2)
    deliver(p, days)
    p.must_load(days[0], days[-1])
    before, history = derived(p), p.history()
    p.change(**NEW)
    runtime = p.runtime
    asked = Rebuild(
        tables=[REFINED, REVENUE], projects=[PROJECT], first=str(days[0]), last=str(days[-1]), reason=REASON
    )

    def go_on() -> RebuildRecord:
        return build(runtime, begin(runtime, asked, "ann", str(uuid.uuid4()), lambda _: False), p.now)

    def killed(point: Failpoint, qualifier: str, do: Callable[[], object], *words: str) -> None:
        if is_full:
            told.kill(f"{point}:{qualifier}" if qualifier else str(point), "rebuild", *words)
            return
        with killed_at(point, qualifier):
            do()

    tables = [word for name in (REFINED, REVENUE) for word in ("--table", name)]
    words = ("start", "--from", str(days[0]), "--to", str(days[-1]), *tables, "--reason", REASON)
    for point, qualifier in WHILE_BUILDING:
        killed(point, qualifier, go_on, *words)
        assert derived(p) == before
        assert p.history() == history
    rebuild = go_on()
    expected = with_green(p, rebuild, before)
    assert expected[REFINED] != before[REFINED]

    def swap_in() -> None:
        own = claimed(p.ledger, p.ledger.rebuilds.get(rebuild.number), str(uuid.uuid4()), lambda _: False)
        swap(runtime, own, "bob", None, p.now)

    for point, qualifier in WHILE_SWAPPING:
        killed(point, qualifier, swap_in, "swap", str(rebuild.number))
        found = measured_digests(p.lakehouse, [table_by_key(name) for name in (REFINED, REVENUE)])
        assert found in [{name: state[name] for name in found} for state in (before, expected)], point
        state = RebuildState.SWAPPED if found[REVENUE] == expected[REVENUE] else RebuildState.SWAPPING
        assert p.ledger.rebuilds.get(rebuild.number).state is state
    swap_in()

    assert p.ledger.rebuilds.get(rebuild.number).state is RebuildState.SWAPPED
    assert derived(p) == expected
    assert {name: p.history()[name] - history[name] for name in (REFINED, REVENUE)} == {REFINED: 1, REVENUE: 1}
    assert branches(p) == set()
    require_known(p)
    assert broken_chains(p.ledger) == []
    assert all(record.knows_inputs for record in p.ledger.slices(REFINED, None).values())


def test_a_swap_that_paused_publishes_neither_for_another_run_nor_what_is_old(pipeline: Any) -> None:
    """Scenario: another run abandons a rebuild whose swap pauses; a load publishes under a second paused swap.
    Outcome: the first publishes nothing and says so; the second meets a conflict and publishes the load's event too."""
    p = pipeline(**OWN_ENGINE)
    day, key = FIRST, Slice(FIRST, PROJECT)
    deliver(p, [day])
    p.must_load(day)
    p.change(**NEW)
    runtime = p.runtime
    asked = Rebuild(tables=[REVENUE], projects=[PROJECT], first=str(day), last=str(day), reason=REASON)
    before, history = derived(p), p.history()

    def begun() -> RebuildRecord:
        return build(runtime, begin(runtime, asked, "ann", str(uuid.uuid4()), lambda _: False), p.now)

    def swap_in(rebuild: RebuildRecord, meanwhile: Callable[[], object]) -> list[str]:
        with once(Failpoint.BEFORE_PUBLISH, meanwhile) as tries:
            swap(runtime, rebuild, "bob", None, p.now)
        return tries

    first = begun()

    def another_run_abandons() -> None:
        own = claimed(p.ledger, p.ledger.rebuilds.get(first.number), str(uuid.uuid4()), lambda _: False)
        abandon(runtime, own, "carl", "the run is dead")

    with pytest.raises(TakenOverError, match="another run works on it by now"):
        swap_in(first, another_run_abandons)
    assert p.ledger.rebuilds.get(first.number).state is RebuildState.ABANDONED
    assert (derived(p), p.history(), branches(p)) == (before, history, set())

    second = begun()
    late = an_event(event_time=f"{day} 09:00:00.000000", event_properties={"amount": 3, "currency": "EUR"})

    def a_load_brings_more() -> None:
        p.deliver(day, [late], hour=15)
        p.must_load(day, tables=FOR_REFINED)

    tries = swap_in(second, a_load_brings_more)

    assert len(tries) == 2
    assert p.ledger.rebuilds.get(second.number).state is RebuildState.SWAPPED
    refined, revenue = (p.ledger.slices(name, None)[key] for name in (REFINED, REVENUE))
    assert list(revenue.input_state.upstream.values()) == [refined.digest]
    assert sum(row["revenue"] for row in p.rows(REVENUE)) == 7.0
    history = p.history()
    p.must_load(day, tables=(REVENUE,))
    assert p.history() == history
    assert broken_chains(p.ledger) == []


def _few_events(totals: Totals) -> Evaluation:
    is_few = totals.control.get("events") == 7
    return Evaluation(FEW, not is_few, "7 events of 12" if is_few else None, "Have the day delivered again")


FEW = CheckRule("few_events", "A day has more than seven events.", evaluate=_few_events)


@contextmanager
def a_later_version() -> Iterator[None]:
    """event_counts of a later version: one column and one check more, another meaning of users."""
    known = {name: getattr(EVENT_COUNTS, name) for name in ("columns", "version", "fold", "measures", "checks")}

    def fold_later(facts: Any) -> Folded:
        found = fold_event_counts(facts)
        ((name, (events, _)),) = found.rows.items()
        paying = len(facts) - facts["revenue"].null_count
        return Folded({name: (events, 1, paying)}, {**found.controls, "paying_events": paying})

    later = {
        "columns": (*EVENT_COUNTS.columns, TableColumn("paying_events", "bigint")),
        "version": "3",
        "fold": Fold((EVENT_TYPE, USER, MONEY), fold_later),
        "measures": {**EVENT_COUNTS.measures, "paying_events": Measure(lambda: F.sum("paying_events"))},
        "checks": (*EVENT_COUNTS.checks, FEW),
    }
    try:
        for name, value in later.items():
            object.__setattr__(EVENT_COUNTS, name, value)
        yield
    finally:
        for name, value in known.items():
            object.__setattr__(EVENT_COUNTS, name, value)


def test_a_column_more_comes_by_a_rebuild_and_what_cannot_go_stays(pipeline: Any) -> None:
    """Scenario: a table gets a column and another meaning; a day is held, one fails a check; loads and maintenance run.
    Outcome: old days have null until the swap; the held and the refused day stay, with reason and cure; the branch
    outlives maintenance alone; the released day goes by the next start."""
    p = pipeline(**OWN_ENGINE)
    days = span(4)
    for number, day in enumerate(days):
        p.deliver(day, sold(day)[: 7 if number == 2 else 12])
    p.must_load(days[0], days[-1])
    p.ledger.interventions.hold({COUNTS: [Slice(days[1], PROJECT)]}, "looked at", "somebody")
    before = dict(derived(p)[COUNTS].items())

    with a_later_version():
        fresh = days[-1] + timedelta(days=1)
        deliver(p, [fresh])
        p.must_load(fresh)
        rebuild, run = start(p, days[0], days[-1], COUNTS)
        assert rebuild.state is RebuildState.READY
        assert {key: digest for key, digest in derived(p)[COUNTS].items() if key.event_date != fresh} == before
        assert _paying(p) == {**dict.fromkeys(days), fresh: 1}
        of_table = p.ledger.rebuilds.slices(rebuild)[COUNTS]
        assert {key.event_date: one.why_not for key, one in of_table.items() if not one.goes} == {
            days[1]: "held: looked at",
            days[2]: "few_events: 7 events of 12",
        }
        told = of_table[Slice(days[0], PROJECT)].difference
        assert told is not None
        assert (told.rows, told.measures["paying_events"], told.keys and told.keys.totals) == (
            (1, 1), (None, 1), {"keys_added": 0, "keys_removed": 0, "keys_changed": 1},
        )  # fmt: skip
        assert "not known" in str(run.output["report"])
        assert run.output["state"] == "ready"

        grow_old(p)
        own = str(uuid.uuid4())
        maintained(p, is_live=liveness(p.instance, p.ledger, own), own=own)
        assert branches(p) == {f"tidemark_{rebuild.branch}"}
        shell = Told(p)
        heads = len(p.lakehouse.commits(EVENT_COUNTS, None))

        def a_load_wins() -> None:
            late = {"event_time": f"{days[3]} 09:00:00.000000", "server_upload_time": f"{fresh} 15:00:00.000000"}
            p.deliver(fresh, [an_event(**late)], hour=15)
            p.must_load(fresh)

        with once(Failpoint.BEFORE_SWAP, a_load_wins):
            done = shell("rebuild", "swap", str(rebuild.number))

        assert len(p.lakehouse.commits(EVENT_COUNTS, None)) == heads + 2
        assert done.returncode == 1
        assert f"left out: {days[2]}/{PROJECT} {COUNTS}: few_events: 7 events of 12" in done.stdout
        assert "fix: Have the day delivered again" in done.stdout
        assert _paying(p) == {days[0]: 1, days[1]: None, days[2]: None, days[3]: 1, fresh: 1}
        after = derived(p)[COUNTS]
        assert {key.event_date for key in before if after[key] != before[key]} == {days[0], days[3]}
        assert branches(p) == set()

        p.ledger.interventions.release({COUNTS: [Slice(days[1], PROJECT)]}, "seen", "somebody")
        again, _ = start(p, days[1], days[1], COUNTS)
        shell.must("rebuild", "abandon", str(again.number), "--reason", "not now")
        assert p.ledger.rebuilds.get(again.number).state is RebuildState.ABANDONED
        assert (derived(p)[COUNTS], branches(p)) == (after, set())
        once_more, run = start(p, days[1], days[1], COUNTS, swap=True)
        assert once_more.state is RebuildState.SWAPPED
        assert _paying(p)[days[1]] == 1
        assert run.materialized(COUNTS) == {str(days[1])}
        # The remaining day was recorded without the column; all others are recorded as measured.
        recorded = p.ledger.slices(COUNTS, None)
        for key, digest in measured_digests(p.lakehouse, [EVENT_COUNTS])[COUNTS].items():
            assert key.event_date == days[2] or str(recorded[key].digest) == digest
        for verb in ("swap", "undo"):
            assert shell("rebuild", verb, str(again.number)).returncode == 1, "only the job finds out"


def test_days_are_audited_beside_what_their_neighbours_are_now(pipeline: Any) -> None:
    """Scenario: a longer window lets days share events, across chunks and across the range's end; loads run meanwhile.
    Outcome: the pair in the chunks goes first; the day at the end is refused until its neighbour gave the event up."""
    p = pipeline(**OWN_ENGINE, days_per_run=2)
    days = span(6)

    def sent(name: str, day: date, uploaded: date, hour: int) -> dict[str, Any]:
        times = {"event_time": f"{day} 10:00:00.000000", "server_upload_time": f"{uploaded} {hour}:30:00.000000"}
        return an_event(insert_id=name, device_id="d", **times)

    shared = {
        days[0]: [sent("before", days[0], days[0], 10)],
        days[4]: [sent("chunks", days[2], days[4], 11), sent("chunks", days[4], days[4], 10)],
        days[5]: [sent("edge", days[3], days[5], 11), sent("edge", days[5], days[5], 10)],
    }
    for day in days:
        p.deliver(day, [*events_on(day, 3), *shared.get(day, [])])
    p.must_load(days[0], days[-1], tables=FOR_REFINED)
    p.change(dedupe_window_days=2)

    rebuild, _ = start(p, days[1], days[4], REFINED)

    built = p.ledger.rebuilds.slices(rebuild)[REFINED]
    assert {key.event_date for key, one in built.items() if one.goes} == {days[1], days[2], days[4]}
    edge = built[Slice(days[3], PROJECT)]
    assert edge.why_not == "unique_event_key: 1 rows share a key with another row"
    change = built[Slice(days[4], PROJECT)].difference
    assert change is not None
    assert (change.rows, change.keys and change.keys.removed) == ((4, 3), {"moved day": 1})
    start(p, days[1], days[4], REFINED)
    assert p.ledger.rebuilds.slices(rebuild)[REFINED] == built

    p.deliver(days[5], [sent("before", days[1], days[5], 15)], hour=15)
    p.must_load(days[0], days[-1], tables=FOR_REFINED)
    rows = {day: p.count(REFINED, day) for day in days}
    assert rows == {days[0]: 3, days[1]: 4, days[2]: 4, days[3]: 4, days[4]: 3, days[5]: 3}
    again, _ = start(p, days[1], days[4], REFINED)

    assert again.number == rebuild.number
    built = p.ledger.rebuilds.slices(again)[REFINED]
    assert {key.event_date: one.record.digest.rows for key, one in built.items() if one.goes} == {
        day: rows[day] for day in days[1:5]
    }


def _paying(p: Any) -> dict[date, int | None]:
    return {row["event_date"]: row["paying_events"] for row in p.rows(COUNTS)}
