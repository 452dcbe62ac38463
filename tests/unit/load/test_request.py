from __future__ import annotations

from dataclasses import replace
from datetime import date

from pipeline_assets.domain.slices import Slice, Verdict
from pipeline_assets.load.runtime import Outcome, TableReport, merged

TABLE, FIRST, SECOND, LATE = "refined/events", *(Slice(date(2026, 2, day), "10001") for day in (2, 3, 1))


def an_outcome(key: Slice, verdict: Verdict, **more: bool) -> Outcome:
    return Outcome(TABLE, key, verdict, **more)


def a_report(*outcomes: Outcome, seconds: float = 1.0, built: tuple[Slice, ...] = ()) -> TableReport:
    return TableReport(TABLE, outcomes, seconds=seconds, built=built)


def test_what_a_former_walk_published_stays_news() -> None:
    """Scenario: one of two days is lost to a writer of the same content. Outcome: it is unchanged, the other published."""
    former = a_report(
        an_outcome(FIRST, Verdict.PUBLISHED),
        an_outcome(SECOND, Verdict.PUBLISHED),
        an_outcome(LATE, Verdict.PUBLISHED, is_requested=False),
        built=(FIRST, SECOND),
    )
    later = a_report(an_outcome(FIRST, Verdict.UNCHANGED), an_outcome(SECOND, Verdict.UNCHANGED), built=(SECOND,))
    told = merged(former, later, {FIRST, LATE})
    assert {one.key: one.verdict for one in told.outcomes} == {
        FIRST: Verdict.PUBLISHED,
        SECOND: Verdict.UNCHANGED,
        LATE: Verdict.PUBLISHED,
    }
    assert (told.outcomes[-1].key, told.seconds, told.built) == (LATE, 2.0, (FIRST, SECOND))


def test_a_late_day_that_was_lost_is_not_told() -> None:
    former = a_report(an_outcome(LATE, Verdict.PUBLISHED, is_requested=False))
    assert merged(former, a_report(an_outcome(FIRST, Verdict.UNCHANGED)), ()).outcomes == (
        an_outcome(FIRST, Verdict.UNCHANGED),
    )


def test_a_refusal_fails_the_run_after_a_second_walk_too() -> None:
    """The second walk finds the refusal on record, where it looks like an old one."""
    refused = an_outcome(FIRST, Verdict.REFUSED)
    assert refused.fails_the_run
    later = a_report(replace(refused, is_repeat=True))
    assert [one.fails_the_run for one in merged(a_report(refused), later, ()).outcomes] == [True]
    assert [one.fails_the_run for one in merged(None, later, ()).outcomes] == [False]
