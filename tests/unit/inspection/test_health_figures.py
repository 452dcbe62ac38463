"""The page of health shows the ledger: days, questions, figures, revisions."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import click
import pytest
import typer

from pipeline_assets.cli.app import app
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import UNREADABLE, BatchKey
from pipeline_assets.domain.golden import GoldenMeasure, GoldenReading, GoldenSource, GoldenTotal
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.inspection.health import HealthReport, Span, percentile, read_health, times_by_day
from pipeline_assets.inspection.questions import AnswerKind, is_early
from pipeline_assets.orchestration.health_page import page_of
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from resources.ledger.summaries import CheckFigure
from tests.support.recorded_history import record_history, record_run

PROJECTS = ("10001", "10002", "10003")
LAST = date(2026, 3, 31)
NOW = datetime(2026, 4, 1, 8, tzinfo=UTC)
REFINED, REVENUE, ITEM_SNAPSHOT = "refined/events", "aggregates/daily_revenue", "dimensions/item_snapshot"


def health(ledger: Ledger, *projects: str, now: datetime = NOW) -> HealthReport:
    return read_health(ledger, Settings(projects=projects or PROJECTS), now)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> HealthReport:
    with closing(Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db")) as ledger:
        record_history(ledger, PROJECTS, LAST, 60)
        return health(ledger)


def a_batch(day: date, project: str = "10001", **values: object) -> BatchRecord:
    record = BatchRecord(BatchKey(Source.REGULAR, project, day), BatchVerdict.ACCEPTED, deliveries=24, is_closed=True)
    return replace(record, **values)  # type: ignore[arg-type]


def a_slice(day: date, rows: int, *, table: str = REFINED, project: str = "10001", **values: object) -> SliceRecord:
    figures = {"rows": rows, "raw_rows": rows, "late_rows": 0, "watermark_lag_seconds": 60}
    record = SliceRecord(table, Slice(day, project), Verdict.PUBLISHED, digest=Digest(rows, 1, 1), figures=figures)
    return replace(record, **values)  # type: ignore[arg-type]


def an_item(day: date, verdict: Verdict, rows: int = 3, *, table: str = ITEM_SNAPSHOT, **values: object) -> SliceRecord:
    return a_slice(day, rows, table=table, project=ALL_PROJECTS, verdict=verdict, **values)


def test_an_empty_ledger_is_no_error(ledger: Ledger) -> None:
    report = health(ledger)
    assert (report.calendar, report.questions, report.revisions) == (None, (), [])
    assert report.lateness[""].window(0.99) is None


def test_each_red_day_is_in_the_calendar_and_in_one_question_with_the_command_that_answers_it(
    history: HealthReport,
) -> None:
    assert history.calendar is not None
    days = {(state.table, (LAST - state.day).days, state.verdict) for state in history.calendar.red}
    derived = (REFINED, REVENUE, "aggregates/event_counts", "aggregates/active_users")
    assert days == {
        ("raw/regular_events", 3, Verdict.REFUSED), (REFINED, 12, Verdict.REFUSED), ("raw/regular_events", 21, Verdict.REFUSED),
        ("raw/regular_events", 20, Verdict.REFUSED), *((table, back, Verdict.HELD) for table in derived for back in (36, 35, 34)),
    }  # fmt: skip
    asked = {one.kind: one for one in history.for_a_person}
    assert {kind: one.commands for kind, one in asked.items()} == {
        AnswerKind.LOAD_AGAIN: ("tidemark load --source regular --from 2026-03-28 --to 2026-03-28 --project 10002",),
        AnswerKind.ACCEPT_CHANGE: (
            "tidemark diff refined/events 2026-03-19 --project 10001",
            'tidemark load --source regular --from 2026-03-19 --to 2026-03-19 --project 10001 --accept-changes "REASON"',
        ),
        AnswerKind.ACCEPT_MISSING: (
            "tidemark load --source regular --from 2026-03-10 --to 2026-03-11 --project 10001",
            "tidemark recover --from 2026-03-10 --to 2026-03-11 --project 10001 --refused --load",
            'tidemark load --source regular --from 2026-03-10 --to 2026-03-11 --project 10001 --accept-missing "REASON"',
        ),
        AnswerKind.RELEASE: (
            'tidemark release --from 2026-02-23 --to 2026-02-25 --project 10003 --reason "REASON"',
        ),
    }  # fmt: skip
    assert asked[AnswerKind.RELEASE].reason == "held: release 4.2 doubled purchases"
    assert {(one.tables, one.first, one.projects) for one in history.following} == {
        (derived, LAST - timedelta(days=3), ("10002",)), (derived[1:], LAST - timedelta(days=12), ("10001",)),
    }  # fmt: skip


def require_known(command: str) -> None:
    """Fail with a UsageError for an unknown option or argument."""
    shell: click.Group = typer.main.get_command(app)  # type: ignore[assignment]
    program, name, *words = shlex.split(command)
    assert program == "tidemark"
    shell.commands[name].make_context(name, words)


def test_the_answers_are_commands_that_the_shell_knows(history: HealthReport) -> None:
    for command in (command for question in history.questions for command in question.commands):
        require_known(command)


_START = "tidemark rebuild start --from 2026-03-31 --to 2026-03-31 --table refined/events --project 10001"


@pytest.mark.parametrize(("state", "answers"), [
    ("building", ["abandon"]), ("ready", ["show", "swap", "abandon"]), ("swapping", ["swap", "undo"]),
    ("swapped", []), ("abandoned", []),
])  # fmt: skip
def test_an_open_rebuild_waits_for_a_person(ledger: Ledger, state: str, answers: list[str]) -> None:
    commands = [f'{_START} --reason "REASON"'] if state == "building" else []
    commands += [f"tidemark rebuild {answer} 1" for answer in answers]
    asked = RebuildRecord(0, (REFINED,), LAST, LAST, ("10001",), "other meaning", "ann", RebuildState.BUILDING, "run")
    begun = ledger.rebuilds.begin(asked)
    ledger.rebuilds.change(begun, state=RebuildState(state))
    found = health(ledger).for_a_person
    assert [list(one.commands) for one in found] == ([commands] if commands else [])
    for command in commands:
        require_known(command)
    assert all(one.reason == f"rebuild 1 is {state}: other meaning" for one in found)


def test_projects_that_ask_the_same_are_answered_at_once_and_gaps_divide(ledger: Ledger) -> None:
    refused = {"verdict": BatchVerdict.REFUSED, "reason": "2 of 3 lines are quarantined", "evaluations": ()}
    days = [LAST, LAST - timedelta(days=1), LAST - timedelta(days=4)]
    batches = [a_batch(day, project, **refused) for day in days for project in PROJECTS[:2]]
    ledger.record(Changes(batches=batches), "run")
    found = [(one.first, one.last, one.projects) for one in health(ledger).for_a_person]
    assert found == [(days[1], days[0], PROJECTS[:2]), (days[2], days[2], PROJECTS[:2])]


def test_a_silent_day_may_be_let_go(ledger: Ledger) -> None:
    silent = a_batch(LAST, verdict=BatchVerdict.REFUSED, reason="no delivery of either source", deliveries=0)
    ledger.record(Changes(batches=[silent]), "run")
    (question,) = health(ledger).for_a_person
    assert question.kind is AnswerKind.ACCEPT_MISSING


def test_a_day_whose_deadline_lies_ahead_asks_nobody(ledger: Ledger) -> None:
    waiting = {"verdict": BatchVerdict.WAITING, "reason": "nothing is delivered yet", "deliveries": 0}
    waits = a_slice(LAST, 0, verdict=Verdict.WAITING, reason="the raw day waits", digest=EMPTY)
    ledger.record(Changes(batches=[a_batch(LAST - timedelta(days=1)), a_batch(LAST, **waiting)], slices=[waits]), "run")
    report = health(ledger, "10001")
    assert (report.questions, report.early) == ((), {(LAST, "10001")})
    assert report.calendar is not None
    state = report.calendar.states[REFINED, LAST]
    assert {is_early(fault, report.early) for fault in state.faults} == {True}


def test_a_project_that_is_not_loaded_and_a_red_day_before_all_deliveries_are_seen(ledger: Ledger) -> None:
    early = LAST - timedelta(days=400)
    batches = [a_batch(LAST), a_batch(LAST, "10002"), a_batch(LAST - timedelta(days=1))]
    red = a_slice(early - timedelta(days=1), 1, verdict=Verdict.REFUSED, reason="why")
    ledger.record(Changes(batches=batches, slices=[a_slice(LAST, 5), a_slice(early, 1), red]), "run")
    calendar = health(ledger).calendar
    assert calendar is not None
    present = calendar.states[REFINED, LAST]
    assert (present.projects, present.absent, calendar.first) == (1, 1, LAST - timedelta(days=1))
    assert (REFINED, early) not in calendar.states
    assert [state.day for state in calendar.red] == [red.key.event_date]


def test_rows_duplicates_late_rows_and_lag_are_sums_and_percentiles(ledger: Ledger) -> None:
    measured = {"rows": 900, "raw_rows": 1000, "late_rows": 45, "watermark_lag_seconds": 7200}
    other = {"rows": 100, "raw_rows": 1000, "late_rows": 5, "watermark_lag_seconds": 10}
    slices = [a_slice(LAST, 900, figures=measured), a_slice(LAST, 100, project="10002", figures=other)]
    ledger.record(Changes(batches=[a_batch(LAST)], slices=slices), "run")
    report = health(ledger)
    volume = report.volumes[LAST]
    assert (volume, volume.rows_a_day, volume.removed_per_1000, volume.late_per_1000) == (report.recent, 1000, 500, 50)
    assert sorted(volume.lags) == [10, 7200]
    assert {name: one.day for name, one in report.newest.items()} == {"10001": LAST, "10002": LAST}


def test_keys_twice_and_mismatches_are_those_that_checks_measured(ledger: Ledger) -> None:
    """Of published and refused slices, and of batches; zeros do not count."""
    none = (
        Evaluation(Check.UNIQUE_EVENT_KEY, True, figures={"duplicate_keys_per_1000": 0.0}),
        Evaluation(Check.RECONCILES_WITH_RAW, True, figures={"mismatch_count": 0, "raw_rows": 3}),
    )
    twice = Evaluation(Check.UNIQUE_EVENT_KEY, False, "twice", figures={"duplicate_keys_per_1000": 0.05})
    differs = Evaluation(Check.RECONCILES_WITH_RAW, False, "differs", figures={"mismatch_count": 7, "raw_rows": 3})
    lines = Evaluation(Check.DELIVERY_RECONCILES, False, "lines", figures={"mismatch_count": 2})
    why = {"verdict": Verdict.REFUSED, "evaluations": none, "refused_evaluations": (twice, differs)}
    refused = a_slice(LAST, 3, project="10002", **why)
    batch = a_batch(LAST, verdict=BatchVerdict.REFUSED, reason="lines", evaluations=(lines,))
    ledger.record(Changes(batches=[batch], slices=[a_slice(LAST, 3, evaluations=none), refused]), "run")
    report = health(ledger)
    assert [(one.table, one.project_id, one.value) for one in report.duplicate_keys] == [(REFINED, "10002", 0.05)]
    assert {(one.table, one.project_id, one.value) for one in report.mismatches} == {
        (REFINED, "10002", 7), ("raw/regular_events", "10001", 2),
    }  # fmt: skip


def test_golden_totals_on_record_count_as_mismatches_while_they_do_not_agree(ledger: Ledger) -> None:
    """Without a load: a total is compared with published rows when it is read."""

    def say(rows: int) -> None:
        key, measure = Slice(LAST, "10001"), GoldenMeasure(REFINED, "rows")
        total = GoldenTotal(GoldenSource.LANDING, key, measure, Decimal(rows), "golden/a.csv line 2")
        ledger.golden.replace(GoldenReading(GoldenSource.LANDING, frozenset({LAST}), (total,)))

    ledger.record(Changes(batches=[a_batch(LAST)], slices=[a_slice(LAST, 3)]), "run")
    say(4)
    assert health(ledger).mismatches == [CheckFigure(REFINED, LAST, "10001", 1)]
    ledger.record(Changes(slices=[a_slice(LAST, 4)]), "run")
    assert health(ledger).mismatches == []
    say(5)
    assert len(health(ledger).mismatches) == 1


def test_times_of_arrivals_and_a_window_that_is_too_narrow_are_told(ledger: Ledger) -> None:
    """Rows outside any window do not count against it."""
    key = BatchKey(Source.REGULAR, "10001", LAST)
    batches = [a_batch(LAST)]
    for shift in range(14):
        day = LAST - timedelta(days=shift)
        ordinary = BatchDay(Digest(990, 1, 1), None, LatenessSketch({100: 990}, 0, 60, 3_600))
        late = BatchDay(Digest(10, 1, 1), None, LatenessSketch({350: 10}, 0, 700_000, 800_000))
        days = {replace(key, arrival_date=day): {day: ordinary, day - timedelta(days=8): late}}
        ledger.record(Changes(batches=batches, batch_days=days), "run")
    report = health(ledger, "10001")
    assert {name: times.rows for name, times in report.late_times.items()} == {"": 14_000, "10001": 14_000}
    assert report.late_times[""].percentile(1.0) == 800_000
    (told,) = report.too_narrow
    assert "too narrow for 10001: 1 % of the rows of 14 arrival days" in told
    page = page_of(report)
    assert as_html(told) in page
    assert "9.26 d" in page


def test_run_times_are_told_by_the_exports_that_a_load_reads(ledger: Ledger) -> None:
    start = datetime(2026, 3, 2, tzinfo=UTC)
    for number, seconds in enumerate((10, 20, 30, 1000)):
        record_run(
            ledger, f"b{number}", tables=["raw/backfill_events", REFINED], first_day=LAST, last_day=LAST, verdicts={},
            snapshots={}, started_at=start.isoformat(), finished_at=(start + timedelta(seconds=seconds)).isoformat(),
        )  # fmt: skip
    record_run(ledger, "d", tables=["raw/regular_events"], started_at=start.isoformat(), finished_at=start.isoformat())
    record_run(ledger, "died", tables=["raw/backfill_events"], started_at=start.isoformat())
    times = health(ledger).run_times
    assert sorted(one.seconds for one in times if one.kind == "backfill") == [10, 20, 30, 1000]
    assert times_by_day(times, "backfill") == {start.date(): (20, 1000)}
    assert times_by_day(times, "regular") == {start.date(): (0, 0)}


def test_quarantine_is_told_by_reason_of_objects_and_by_lines(ledger: Ledger) -> None:
    """Lines also by theirs, except where an older version did not record them."""

    app = "value_unreadable:app"

    def a_delivery(number: int, lines: int, error: str | None = None, **reasons: int) -> DeliveryRecord:
        key = BatchKey(Source.REGULAR, "10001", LAST)
        counts = tuple(reasons.items())
        refused = sum(count for reason, count in counts if not reason.startswith(UNREADABLE))
        assert refused in (0, lines)
        place = (key, f"k{number}", "e", 1, None)
        return DeliveryRecord(*place, 9, 9, lines, 0, error, error is None, line_reasons=counts)

    deliveries = [
        a_delivery(1, 3), a_delivery(2, 4), a_delivery(3, 0), a_delivery(4, 0, "crc_error"),
        a_delivery(5, 3, **{app: 2}, bad_time=1), a_delivery(6, 3, **{app: 2}, bad_time=1), a_delivery(7, 1, **{app: 1}),
        a_delivery(8, 1, not_a_time=1, unreadable_values_processed_time=60), a_delivery(9, 0, unreadable_values_paying=1200),
    ]  # fmt: skip
    ledger.record(Changes(deliveries=deliveries, batches=[a_batch(LAST)]), "run")
    report = health(ledger)
    assert {one.day for one in report.refused_by_reason} == {LAST}
    found = [(one.reason, one.is_whole, one.objects, one.lines) for one in report.refused_by_reason]
    of_lines = [(app, False, 3, 5), ("bad_time", False, 2, 2), ("not_a_time", False, 1, 1), (None, False, 2, 7)]
    assert found == [("crc_error", True, 1, 0), *of_lines]
    page = page_of(report)
    assert sum(one.lines for one in report.refused_lines) == 15
    for said in (
        "<td>whole objects, a gzip with another checksum (<code>crc_error</code>)</td>",
        "<td>single lines, app is unreadable (<code>value_unreadable:app</code>)</td>",
        "<p>15 lines quarantined in the deliveries of",
        "app is unreadable (5), bad_time (2) and 1 more</p>",
        "; mostly recorded without their reasons",
        "1,200 values of paying and 60 values of processed_time could not be read and are null",
    ):
        assert said in page
    mixed = ledger.deliveries(Source.REGULAR, ["10001"], LAST, LAST)["k5"]
    assert dict(mixed.line_reasons) == {app: 2, "bad_time": 1}


def test_revisions_are_changes_of_days_that_were_final_before_the_run(ledger: Ledger) -> None:
    """Scenario: final, provisional and empty days change. Outcome: one revision, with its former figures, cause and run."""
    final, open_day = LAST - timedelta(days=9), LAST
    at = [datetime(2026, 3, day, 4, tzinfo=UTC) for day in (22, 25, 30)]
    digests = [EMPTY, Digest(10, 1, 1), Digest(12, 2, 2), Digest(13, 3, 3)]

    def a_publication(step: int, day: date) -> PublicationRecord:
        return PublicationRecord(
            REVENUE, Slice(day, "10001"), 10 * day.day + step, step, digests[step], digests[step + 1],
            Cause.of(CauseKind.INPUTS, "refined/events"), f"run{step}", accepted_reason="asked for" if step == 2 else None,
            figures={"revenue": 100.0 + step, "purchases": 5}, published_at=(at[step] + timedelta(minutes=3)).isoformat(),
        )  # fmt: skip

    for step in range(3):
        ended, rows = at[step] + timedelta(hours=1), digests[step + 1].rows
        record_run(ledger, f"run{step}", tables=[], started_at=at[step].isoformat(), finished_at=ended.isoformat())
        is_final = {"is_final": True, "final_at": at[1].isoformat()} if step else {}
        slices = [a_slice(final, rows, table=REVENUE, **is_final), a_slice(open_day, rows, table=REVENUE)]
        published = [a_publication(step, final), a_publication(step, open_day)]
        ledger.record(Changes(batches=[a_batch(final)], slices=slices, publications=published), f"run{step}")
    empty = a_slice(final - timedelta(days=1), 9, table=REVENUE, is_final=True, final_at=at[0].isoformat())
    filled = replace(a_publication(2, empty.key.event_date), digest_before=EMPTY)
    ledger.record(Changes(slices=[empty], publications=[filled]), "run2")
    report = health(ledger)
    (revision,) = report.revisions
    assert (revision.table, revision.day, revision.project_id, revision.run_id) == (REVENUE, final, "10001", "run2")
    assert (revision.cause, revision.accepted_reason) == ("changed refined/events", "asked for")
    assert (revision.rows_before, revision.rows_after, dict(revision.measures)) == (12, 13, {"revenue": (101.0, 102.0)})
    assert report.recent_revisions == 1
    assert health(ledger, now=NOW + timedelta(days=60)).recent_revisions == 0


def test_a_final_day_without_rows_that_gets_some_is_a_revision(ledger: Ledger) -> None:
    """As in notices: the ledger called it final, and readers took it for empty."""
    day = LAST - timedelta(days=9)
    empty = replace(a_slice(day, 1, table=REVENUE, is_final=True, final_at="2026-03-25T04:00:00+00:00"), digest=EMPTY)
    ledger.record(Changes(slices=[empty]), "run0")
    filled = PublicationRecord(
        REVENUE, Slice(day, "10001"), 2, 1, EMPTY, Digest(3, 1, 1), Cause.of(CauseKind.DELIVERY), "run1",
        published_at="2026-03-30T04:00:00+00:00",
    )  # fmt: skip
    ledger.record(Changes(slices=[replace(empty, digest=Digest(3, 1, 1))], publications=[filled]), "run1")
    assert [(one.day, one.rows_before, one.rows_after) for one in health(ledger).revisions] == [(day, 0, 3)]


def test_both_databases_tell_the_same(ledger: Ledger, postgres: str) -> None:
    """Each database takes figures out of JSON in its own way."""
    mismatch = Evaluation(Check.RECONCILES_WITH_RAW, False, "differs", figures={"mismatch_count": 7, "raw_rows": 3})
    refused = a_slice(LAST, 3, project="10002", verdict=Verdict.REFUSED, refused_evaluations=(mismatch,), read_hash="f")
    with closing(Ledger(postgres)) as other:
        for one in (ledger, other):
            record_history(one, PROJECTS, LAST, 56, objects=2)
            one.record(Changes(slices=[refused]), "run")
        reports = [health(one) for one in (ledger, other)]
    assert reports[0] == reports[1]
    assert [one.value for one in reports[0].mismatches] == [7]
    assert reports[0].revisions


def test_percentiles_are_values_that_were_measured() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0.01, 0.5, 0.75, 0.95, 1)] == [1, 2, 3, 4, 4]
    assert str(percentile([], 0.5)) == "nan"


def test_charts_show_each_of_the_newest_days() -> None:
    year = Span(date(2025, 1, 1), date(2025, 12, 31))
    assert (len(year.days), year.days[0], year.days[-1]) == (365, year.first, year.last)
    assert year.newest() == Span(date(2025, 7, 1), date(2025, 12, 31))
    assert len(year.newest().days) == 184
    assert Span(LAST, LAST).newest().days == [LAST]


def test_rows_of_days_before_the_charts_count_in_the_sums_of_projects(ledger: Ledger) -> None:
    old = LAST - timedelta(days=184)
    ledger.record(Changes(batches=[a_batch(old), a_batch(LAST)], slices=[a_slice(old, 7), a_slice(LAST, 5)]), "run")
    report = health(ledger)
    assert {day: volume.rows for day, volume in report.volumes.items()} == {LAST: 5}
    assert (report.of_project["10001"].rows, report.span) == (12, Span(old, LAST))


def test_red_days_of_dimensions_are_asked_for_without_a_project(ledger: Ledger) -> None:
    """Outcome: each bad snapshot is in one question, whose commands load dimensions and name no project."""
    refused, why = Verdict.REFUSED, {"reason": "is wrong", "hint": "correct it"}

    def red(days: int, verdict: Verdict, *failed: Check) -> SliceRecord:
        evaluations = tuple(Evaluation(check, False, **why) for check in failed)
        return an_item(LAST - timedelta(days=days), verdict, refused_evaluations=evaluations, **why)

    records = [red(2, refused, Check.SNAPSHOT_IS_WHOLE), red(4, refused, Check.COUNT_IS_EXPECTED), red(6, Verdict.HELD)]
    records += [red(0, Verdict.WAITING), a_slice(LAST, 3, verdict=refused, reason="shrinks", hint="look")]
    ledger.record(Changes(slices=records), "run")
    report = health(ledger)
    asked = {one.kind: one.commands for one in report.questions if one.tables == (ITEM_SNAPSHOT,)}
    load, release = "tidemark load --source dimensions", "tidemark release --from 2026-03-25 --to 2026-03-25"
    assert asked == {
        AnswerKind.FOLLOW: (f"{load} --from 2026-03-31 --to 2026-03-31",),
        AnswerKind.LOAD_AGAIN: (f"{load} --from 2026-03-29 --to 2026-03-29",),
        AnswerKind.ACCEPT_CHANGE: (f'{load} --from 2026-03-27 --to 2026-03-27 --accept-changes "REASON"',),
        AnswerKind.RELEASE: (f'{release} --table {ITEM_SNAPSHOT} --reason "REASON"',),
    }
    projects = {one.tables: one.projects for one in report.questions}
    assert projects == {(ITEM_SNAPSHOT,): ("all",), (REFINED,): ("10001",)}
    assert ITEM_SNAPSHOT in page_of(report)


def test_the_calendar_has_a_row_for_each_table_of_dimensions_and_tells_what_is_missing(ledger: Ledger) -> None:
    """Outcome: each state is a day of its table's row, without projects, and a click names its fault."""
    days = [LAST - timedelta(days=back) for back in (5, 4, 3, 2)]
    why = {"reason": "line 7: is doubled", "hint": "correct it"}
    slices = [an_item(days[0], Verdict.PUBLISHED), an_item(days[1], Verdict.UNCHANGED, 0, digest=EMPTY)]
    slices += [an_item(days[2], Verdict.REFUSED, **why), an_item(days[3], Verdict.WAITING, 0, **why)]
    slices.append(an_item(date(2026, 3, 1), Verdict.PUBLISHED, table="dimensions/item_validity"))
    ledger.record(Changes(slices=slices), "run")
    report = health(ledger)
    assert report.calendar is not None
    states = [report.calendar.states.get((ITEM_SNAPSHOT, day)) for day in days]
    told = [(one.verdict, one.absent, one.is_missing) for one in states if one is not None]
    verdicts = (Verdict.PUBLISHED, Verdict.UNCHANGED, Verdict.REFUSED, Verdict.WAITING)
    assert told == [(verdict, 0, verdict is Verdict.UNCHANGED) for verdict in verdicts]
    assert report.calendar.states.get(("dimensions/item_validity", date(2026, 3, 1))) is not None
    page = page_of(report)
    for text in ("<b>item_snapshot</b>", "<b>item_validity</b>", "the latest before it stands", "line 7: is doubled"):
        assert text in page
    assert f"tidemark load <span>--source</span> dimensions <span>--from</span> {days[2]}" in page
