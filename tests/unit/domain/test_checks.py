"""Bounds on batches and on changes of final slices."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline_assets.domain.changes import Baseline, KeyChange, explain_change, next_baseline
from pipeline_assets.domain.checks import (
    AcceptanceKind,
    BatchFigures,
    Evaluation,
    read_acceptances,
    reconcile_batch,
)
from pipeline_assets.domain.deliveries import QuarantineReason, in_words
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice
from pipeline_assets.orchestration.assets import KINDS, SHARED
from tests.unit.load.test_batches import BATCH, DAY, PROJECT, a_delivery, a_record, absent_of, markers_of, plan_of

SETTINGS = Settings()
_next_baseline = partial(next_baseline, content="", was_final=True, settings=SETTINGS)


def _explained(
    before: Baseline | dict[str, float], after: dict[str, float], keys: KeyChange | None = None, *,
    table: str = "refined/events", reason: str | None = None, **more: Any,
) -> Evaluation:  # fmt: skip
    """The change of a final slice, by default without a reason."""
    baseline = before if isinstance(before, Baseline) else Baseline(before)
    options = {"content": "", "was_final": True, "settings": SETTINGS, **more}
    return explain_change(table, baseline, after, keys, accepted_reason=reason, cause="test", **options)


def _figures(**changes: Any) -> BatchFigures:
    values: dict[str, Any] = {"objects": 2, "unreadable": (), "lines": 1000, "rows": 1000, "quarantined": 0, "blank": 0}
    return BatchFigures(**values | changes)


@pytest.mark.parametrize(("changes", "missing", "said"), [
    ({"unreadable": ("k: not_gzip",)}, (), "k: not_gzip"),
    ({"lines": 1001}, (), "1001 lines but 1000 rows"),
    ({"rows": 989, "quarantined": 11}, (), "11 of 1000 lines are quarantined"),
    ({}, ("gone",), "deliveries missing from landing: 1, first gone"),
])  # fmt: skip
def test_a_bad_batch_is_refused_with_its_reason(changes: dict[str, Any], missing: tuple[str, ...], said: str) -> None:
    evaluation = reconcile_batch(_figures(**changes), SETTINGS, missing)
    assert not evaluation.is_passed
    assert said in str(evaluation.reason)
    assert evaluation.hint


@pytest.mark.parametrize(
    "changes", [{}, {"rows": 990, "quarantined": 10}, {"rows": 999, "blank": 1}, {"lines": 0, "rows": 0}]
)
def test_a_good_batch_passes(changes: dict[str, Any]) -> None:
    assert reconcile_batch(_figures(**changes), SETTINGS).is_passed


def test_quarantined_lines_are_said_with_their_reasons_in_words_and_never_as_a_count_alone() -> None:
    reasons = {"event_time_missing": 2, "value_unreadable:app": 4, "bad_json": 1, "reason of tomorrow": 3}
    good = reconcile_batch(_figures(rows=990, quarantined=10, line_reasons=reasons, quarantined_in=("k",)), SETTINGS)
    told = "app is unreadable (4), reason of tomorrow (3), event_time is missing (2) and 1 more"
    assert (good.is_passed, good.reason, good.hint) == (True, f"10 lines quarantined in k: {told}", None)
    assert good.figures["quarantined_value_unreadable"] == 4
    bad = _figures(rows=989, quarantined=11, line_reasons={"bad_json": 11}, quarantined_in=("k", "l"))
    said = "11 lines quarantined in 2 objects, first k: the line is not JSON (11)"
    assert str(reconcile_batch(bad, SETTINGS).reason) == f"11 of 1000 lines are quarantined (1.10%): {said}"
    unknown = reconcile_batch(_figures(rows=999, quarantined=1), SETTINGS).reason
    assert unknown == "1 line quarantined in its objects: raw.quarantine has the reasons"


def test_every_reason_has_words_of_its_own() -> None:
    assert len({in_words(reason.value) for reason in QuarantineReason}) == len(QuarantineReason)
    assert in_words("value_out_of_range") == "a value is beyond 64 bits"


@pytest.mark.parametrize(("before", "after", "was_final", "passes"), [
    ({"rows": 1000}, {"rows": 990}, True, True),
    ({"rows": 1000}, {"rows": 989}, True, False),
    ({"rows": 1000}, {"rows": 1200}, True, True),
    ({"rows": 1000}, {"rows": 1201}, True, False),
    ({"rows": 1000}, {"rows": 0}, False, True),
    ({"rows": 100}, {"rows": 0}, True, True),
    ({"rows": 101}, {"rows": 0}, True, False),
    ({}, {"rows": 5000}, True, True),
    ({"purchases": 500, "revenue": 100.0}, {"purchases": 500, "revenue": 10000.0}, True, False),
    ({"purchases": 5, "revenue": 5000.0}, {"purchases": 5, "revenue": 100.0}, True, True),
])  # fmt: skip
def test_bounds_of_a_change(before: dict[str, float], after: dict[str, float], was_final: bool, passes: bool) -> None:
    assert _explained(before, after, was_final=was_final).is_passed is passes
    assert _explained(before, after, was_final=was_final, reason="a person says so").is_passed


@pytest.mark.parametrize(("after", "added", "brought", "said"), [
    (840, 480, 480, None), (840, 480, 400, "grows by 133.3%"), (912, 552, 480, None),
    (913, 553, 480, "grows by 153.6%"), (350, 300, 300, "shrinks by 2.8%"),
], ids=["all of it", "more than that", "and 20 % more", "and a row more than that", "it hides no loss"])  # fmt: skip
def test_what_a_recovery_brought_of_missing_hours_lifts_the_growth_bound_by_just_that(
    after: int, added: int, brought: int, said: str | None
) -> None:
    keys = KeyChange(kept=360, added={"new delivery": added})
    found = _explained({"rows": 360}, {"rows": after}, keys, brought={"rows": brought})
    assert (found.is_passed, said is None or said in str(found.reason)) == (said is None, True)
    # Later publications that do not rest on it are compared with the same baseline.
    kept = _next_baseline(Baseline({"rows": 360}), {"rows": after}, keys, found, now="now")
    assert (kept.figures["rows"], kept.since) == (360, None)


def test_what_a_recovery_brought_is_part_of_the_baseline_since() -> None:
    """Scenario: a recovery completes a day, which then falls back. Outcome: it is compared with the whole day."""
    before = Baseline({"rows": 300, "revenue": 300.0}, content="three hours")
    after = {"rows": 2405, "revenue": 2405.0, "purchases": 2405}
    brought = {"rows": 2100, "revenue": 2100.0, "purchases": 2100}
    keys = KeyChange(kept=300, added={"new delivery": 2105})

    def judged(now: Baseline, figures: dict[str, float], change: KeyChange, lifted: dict[str, float]) -> Evaluation:
        content = "three hours" if figures["rows"] == 300 else "x"
        return _explained(now, figures, change, content=content, brought=lifted)

    found = judged(before, after, keys, brought)
    assert found.is_passed, found.reason
    kept = _next_baseline(before, after, keys, found, content="x", now="now", brought=brought)
    assert kept.figures == {"rows": 2400, "revenue": 2400.0, "purchases": 2405}
    assert (kept.keys, kept.totals["keys_added"], kept.since) == (2400, 5, "now")
    fallen = judged(kept, {"rows": 300, "revenue": 300.0}, KeyChange(kept=300, removed={"withdrawn": 2105}), {})
    assert "shrinks by 87.5%: revenue 2400 -> 300" in str(fallen.reason)
    assert judged(kept, after, KeyChange(kept=2400, added={"new delivery": 20}), {}).is_passed
    # A day's baseline never exceeds its content.
    assert before.grown(brought, {"rows": 1000, "revenue": 200.0}, "now").figures == {"rows": 1000, "revenue": 300.0}


KEYS = KeyChange(1000, {"new delivery": 150}, {"withdrawn": 4, "moved day": 3}, {"code": 5, "new delivery": 190})


@pytest.mark.parametrize(("changes", "bounds", "said"), [
    ({}, {}, None),
    ({"added": {"new delivery": 241}}, {}, "gains 20.0% of its 1202 keys: new delivery 241"),
    ({"removed": {"withdrawn": 12, "moved day": 3}}, {}, "loses 1.2% of its 1210 keys: withdrawn 12, moved day 3"),
    ({"changed": {"code": 300}}, {}, "changes 23.0% of its 1307 keys: code 300"),
    ({"changed": {"code": 300}}, {"refined/events:keys_changed": {"growth": 0.3}}, None),
    ({}, {"refined/events:keys_removed": {"growth": 0.0}}, "loses 0.6% of its 1202 keys"),
    ({}, {"aggregates/daily_revenue:keys_removed": {"growth": 0.0}}, None),
    ({"kept": 0, "removed": {}, "changed": {}}, {}, None),
])  # fmt: skip
def test_bounds_on_the_keys_of_a_final_slice(changes: dict[str, Any], bounds: dict[str, Any], said: str | None) -> None:
    keys, rows = replace(KEYS, **changes), {"rows": 1202}
    evaluate = partial(_explained, rows, rows, keys, settings=Settings(change_bounds=bounds))
    found = evaluate()
    assert found.is_passed is (said is None)
    assert (said or "") in str(found.reason)
    assert (evaluate(was_final=False).is_passed, evaluate(reason="a person says so").is_passed) == (True, True)
    assert found.figures["keys_removed"] == sum(keys.removed.values())


def test_bounds_of_one_measure() -> None:
    """Each side of a measure's own bound; the general bound fills the rest; a bound that says nothing is refused."""
    settings = Settings(change_bounds={"refined/events:rows": {"shrink": 0.5}})
    found = [_explained({"rows": 1000}, {"rows": after}, settings=settings) for after in (499, 500, 1200, 1201)]
    assert [one.is_passed for one in found] == [False, True, True, False]
    nothing: tuple[dict[str, float], ...] = ({"most": 1}, {"shrink": -1}, {})
    for name, bound in (*(("rows", one) for one in nothing), ("keys_removed", {"shrink": 0})):
        with pytest.raises(ValidationError):
            Settings(change_bounds={f"refined/events:{name}": bound})


@pytest.mark.parametrize(("growth", "added", "changed"), [(0.5, 0.5, 0.2), (0.1, 0.1, 0.1)])
def test_room_to_grow_lets_no_more_keys_change(growth: float, added: float, changed: float) -> None:
    settings = Settings(change_max_growth=growth)
    bounds = [settings.change_bound("refined/events", name)[1] for name in ("keys_added", "keys_changed")]
    assert bounds == [added, changed]


def test_what_comes_back_to_what_it_was_has_not_changed() -> None:
    then = Baseline({"rows": 800}, keys=800, totals={"keys_changed": 120}, content="h2:800:a:b")
    back = KeyChange(680, changed={"new delivery": 120})

    def judged(content: str) -> tuple[bool, Baseline]:
        found = _explained(then, {"rows": 800}, back, content=content)
        return found.is_passed, _next_baseline(then, {"rows": 800}, back, found, content=content)

    assert judged("h2:800:a:b") == (True, Baseline({"rows": 800}, content="h2:800:a:b"))
    assert not judged("h2:800:c:d")[0]


def _loads(change: float, count: int, *, keys: bool) -> tuple[list[bool], Baseline]:
    """Loads of a final slice, each of which changes its rows, or keys alone, by a share of the present ones."""
    baseline, rows, passed = Baseline({"rows": 10_000}), 10_000, []
    for _ in range(count):
        moved = round(rows * abs(change))
        after = rows if keys else rows + (moved if change > 0 else -moved)
        became = KeyChange(rows - moved, {"new delivery": moved}, {"withdrawn": moved}) if keys else None
        found = _explained(baseline, {"rows": after}, became)
        passed.append(found.is_passed)
        if found.is_passed:
            rows, baseline = after, _next_baseline(baseline, {"rows": after}, became, found)
    return passed, baseline


@pytest.mark.parametrize(("change", "keys"), [(-0.009, False), (0.15, False), (0.009, True)])
def test_many_small_changes_of_a_final_slice_are_bounded_as_one(change: float, keys: bool) -> None:
    passed, _ = _loads(change, 77, keys=keys)
    assert passed == [True] + [False] * 76


def test_keys_are_added_up_since_the_baseline_and_it_survives_the_ledger() -> None:
    passed, baseline = _loads(0.003, 77, keys=True)
    assert (sum(passed), baseline.totals["keys_removed"], baseline.keys) == (3, 90, 10_000)
    assert Baseline.from_json(json.loads(json.dumps(baseline.to_json()))) == baseline


@pytest.mark.parametrize(
    ("on_record", "expected"),
    [
        ({}, {"purchases": 1000, "revenue": 5000.0}),
        ({"rows": 40}, {"purchases": 1000, "revenue": 5000.0}),
        ({"purchases": 1005}, {"purchases": 1005, "revenue": 5000.0}),
    ],
    ids=["rolled back to a publication without figures", "settled, only rows counted", "a measure that is new"],
)
def test_a_measure_that_is_not_on_record_is_bounded_from_its_next_publication_on(
    on_record: dict[str, float], expected: dict[str, float]
) -> None:
    def load(before: Baseline, after: dict[str, float]) -> tuple[bool, Baseline]:
        known = before.of(after)
        change = _explained(known, after, table="aggregates/daily_revenue", content=str(after))
        return change.is_passed, _next_baseline(known, after, None, change, content=str(after))

    is_passed, baseline = load(Baseline(on_record), {"purchases": 1000, "revenue": 5000.0})
    assert (is_passed, baseline.figures) == (True, expected)
    assert not load(baseline, {"purchases": 1000, "revenue": 2500.0})[0]
    assert not load(baseline, {"purchases": 500, "revenue": 5000.0})[0]
    assert load(baseline, {"purchases": 999, "revenue": 5000.0}) == (True, baseline)


def test_what_a_person_accepts_is_named_with_its_reason() -> None:
    found = _explained({"rows": 1000}, {"rows": 500}, reason="a test device")
    assert found.is_accepted_change
    assert found.reason == "accepted: a test device (shrinks by 50.0%: rows 1000 -> 500; cause: test)"
    assert Evaluation.from_json(found.to_json()) == found


RAW, ITEMS = "raw/regular_events", "dimensions/item_snapshot"
MISSING, CHANGE = AcceptanceKind.MISSING, AcceptanceKind.CHANGE
TWO = [PROJECT, "10002"]


@pytest.mark.parametrize(("name", "projects", "kind", "project"), [
    # A loss once named among changes is a loss.
    *((f"{RAW}:{DAY}", [PROJECT], kind, PROJECT) for kind in AcceptanceKind),
    *((f"{RAW}:{DAY}/{PROJECT}", TWO, kind, PROJECT) for kind in AcceptanceKind),
    (f"refined/events:{DAY}", [PROJECT], CHANGE, PROJECT),
    *((f"{ITEMS}:{name}", TWO, CHANGE, ALL_PROJECTS) for name in (f"{DAY}", f"{DAY}/{ALL_PROJECTS}")),
])  # fmt: skip
def test_a_project_may_be_left_out_where_one_is_loaded_alone_or_all_of_a_dimension(
    name: str, projects: list[str], kind: AcceptanceKind, project: str
) -> None:
    expected = {(name.partition(":")[0], Slice(DAY, project)): "lost"}
    assert read_acceptances({kind: {name: "lost"}}, KINDS, projects, SHARED) == expected


@pytest.mark.parametrize(("name", "projects", "kind", "said"), [
    (f"{RAW}:{DAY}", TWO, MISSING, "names no project, and this run loads 10001, 10002"),
    (f"{RAW}:{DAY}/7", [PROJECT], MISSING, "names a project that this run does not load"),
    (f"{ITEMS}:{DAY}/{PROJECT}", [PROJECT], CHANGE, "names a project that this run does not load"),
    (f"{RAW}:soon/{PROJECT}", [PROJECT], MISSING, "is not `table:day/project` with a reason"),
    (f"raw/other:{DAY}", [PROJECT], MISSING, "is not `table:day/project` with a reason"),
    (f"refined/events:{DAY}", [PROJECT], MISSING, "has no deliveries that could be missing"),
])  # fmt: skip
def test_what_names_too_much_or_nothing_is_refused(
    name: str, projects: list[str], kind: AcceptanceKind, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        read_acceptances({kind: {name: "lost"}}, KINDS, projects, SHARED)


def test_a_change_and_a_loss_are_accepted_at_once() -> None:
    given = {MISSING: {f"{RAW}:{DAY}": "expired"}, CHANGE: {f"refined/events:{DAY}": "corrected"}}
    assert [*read_acceptances(given, KINDS, [PROJECT]).values()] == ["expired", "corrected"]
    twice = {f"refined/events:{DAY}": "the first", f"refined/events:{DAY}/{PROJECT}": "the second"}
    assert [*read_acceptances({CHANGE: twice}, KINDS, [PROJECT]).values()] == ["the first"]


def test_a_reason_says_what_it_lets_go_and_where_it_is_not_needed() -> None:
    lost = plan_of([a_delivery(9)], [a_record(9), a_record(10), a_record(11)], reasons={DAY: "expired"})
    told = f"lets go 2 objects with 10 rows of hours 10, 11, first {a_record(10).object_key}: expired"
    assert lost.told_loss(Settings()) == told
    whole = plan_of([a_delivery(9)], [a_record(9)], reasons={DAY: "expired"})
    assert "lacks nothing" in whole.told_loss(Settings())


@pytest.mark.parametrize(("hours", "is_let_go"), [([], True), (range(23), True), (range(24), False)])
def test_a_day_is_let_go_whole_only_where_it_lacks_anything(hours: list[int], is_let_go: bool) -> None:
    plan = plan_of(markers=markers_of(hours), reasons={DAY: "the app was down"})
    verdict = absent_of(plan)
    record = plan.record(*verdict, Settings())
    assert record.is_loss_accepted is is_let_go
    assert ("is let go whole" in replace(plan, verdict=verdict).told_loss(Settings())) is is_let_go
    assert record.key == BATCH
