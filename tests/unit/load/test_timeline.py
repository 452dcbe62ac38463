"""Steps of a load follow from the points that it passes, whoever else watches them."""

from __future__ import annotations

import itertools

from pipeline_assets.domain.steps import Step
from pipeline_assets.load.timeline import STEP_ENDED_BY, Timeline
from resources.failpoints import Failpoint, failpoint, watch, watching


def test_a_step_lasts_from_one_point_to_the_next_and_what_callers_do_between_is_none() -> None:
    timeline = Timeline(itertools.count(1_000, 1_000).__next__)
    with watching(timeline.passed):
        failpoint(Failpoint.AFTER_PIN, "raw/x")
        failpoint(Failpoint.MID_PARSE, "10001/object")
        failpoint(Failpoint.AFTER_STAGE, "raw/x")
        assert timeline.take() == (Step("raw/x", "decide", 1_000, 2_000), Step("raw/x", "stage", 2_000, 3_000))
        timeline.resume()
        failpoint(Failpoint.BEFORE_LEDGER, "refined/x")
        assert timeline.take() == (Step("refined/x", "conclude", 4_000, 5_000),)
    failpoint(Failpoint.AFTER_PIN, "raw/x")
    assert timeline.take() == ()


def test_a_clock_that_is_set_back_makes_no_step_negative() -> None:
    timeline = Timeline(iter([5_000, 4_000, 6_000]).__next__)
    timeline.passed(Failpoint.AFTER_PIN, "a")
    timeline.passed(Failpoint.AFTER_STAGE, "a")
    assert [step.seconds for step in timeline.take()] == [0.0, 1e-6]


def test_watching_outlives_neither_its_block_nor_watchers_that_are_named_anew() -> None:
    seen: list[str] = []
    with watching(lambda point, _: seen.append(point.value)):
        watch()
        failpoint(Failpoint.AFTER_PIN)
    assert seen == []


def test_every_step_has_a_name_of_its_own() -> None:
    assert len(set(STEP_ENDED_BY.values())) == len(STEP_ENDED_BY)
