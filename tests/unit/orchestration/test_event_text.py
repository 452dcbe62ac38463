"""Text in Dagster's event log is bounded, and holds no delivered value, id or time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.plain_text import LONGEST
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from pipeline_assets.inspection.diff import Difference, Sample, lines_of
from pipeline_assets.load.deliveries.arrivals import plan_arrivals
from pipeline_assets.load.runtime import LoadRequest, Outcome, Runtime
from pipeline_assets.orchestration.events import (
    LONGEST_DESCRIPTION,
    LONGEST_TAG,
    data_version,
    description,
    failure_of,
    markdown_list,
    markdown_table,
    told_backfill,
)
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

DAY = date(2026, 2, 2)
LONG = "k" * 100_000


def _outcomes(count: int) -> list[Outcome]:
    keys = [Slice(DAY + timedelta(days=number), "10001") for number in range(count)]
    why = (Verdict.REFUSED, f"{LONG} ![x](http://evil.example/x)", LONG)
    return [Outcome("refined/events", key, *why, digest=Digest(of + 1, of, of)) for of, key in enumerate(keys)]


def test_a_failure_names_the_first_and_counts_the_rest() -> None:
    failure = failure_of(_outcomes(5_000))
    assert len(str(failure.description)) <= LONGEST_DESCRIPTION
    reasons = str(failure.metadata["reasons"].value)
    assert len(reasons) <= 4 * LONGEST_DESCRIPTION
    short = failure_of([Outcome("refined/events", one.key, one.verdict, "because", "do") for one in _outcomes(150)])
    assert "- and 50 more" in str(short.metadata["reasons"].value)
    assert "and 50 more" in str(short.description)
    assert len(data_version(_outcomes(500))) <= LONGEST_TAG


def test_the_run_of_a_backfill_says_how_dagster_ends_it_over_days_that_wait() -> None:
    """Dagster has no state for such a day (test_dagster.py); a separate run ends well."""
    backfill = {"dagster/backfill": "abc"}
    waits = [Outcome("refined/events", Slice(DAY, "10001"), Verdict.WAITING, "nothing is delivered yet", is_early=True)]
    good = Outcome("refined/events", Slice(DAY + timedelta(days=1), "10001"), Verdict.UNCHANGED)
    told = str(told_backfill(backfill, [*waits, *waits, good]))
    assert told.startswith(f"{DAY}: no materialization")
    for said in ("shows the backfill as failed", "dagster-io/dagster#34219", "`daily_load`"):
        assert said in told
    assert told_backfill({}, waits) is None
    assert told_backfill(backfill, [good]) is None
    assert told_backfill(backfill, [replace(waits[0], is_requested=False)]) is None
    assert "and 140 more" in str(told_backfill(backfill, _outcomes(150)))


class _LeftOut:
    """Invisible text that is costly to make."""

    def __str__(self) -> str:
        raise AssertionError("it is made all the same")


def test_what_is_left_out_is_only_counted() -> None:
    parts = [*["a"] * 100, *[_LeftOut()] * 3]
    assert description(parts).endswith("and 3 more")
    assert str(markdown_list(parts).value).endswith("- and 3 more")
    assert "3 more rows" in str(markdown_table(("a",), [(part,) for part in parts]).value)


def test_lists_and_descriptions_are_counted_out() -> None:
    assert len(description([LONG] * 10)) <= LONGEST_DESCRIPTION
    table = str(markdown_table(("a", "b"), [("x", "y|z")] * 5_000, lists={"Orphans": ["o"] * 5_000}).value)
    assert len(table) < LONGEST_DESCRIPTION
    assert "4,900 more rows" in table
    assert "- and 4,980 more" in table


def test_what_is_kept_of_a_verdict_is_bounded_where_it_is_made() -> None:
    one = Evaluation(Check.DELIVERY_RECONCILES, False, LONG, LONG)
    assert max(len(str(one.reason)), len(str(one.hint))) <= LONGEST
    assert Evaluation.from_json(one.to_json()) == one


def test_a_difference_tells_dagster_columns_and_no_value_id_or_time() -> None:
    """Outcome: the terminal shows the row; Dagster's text has columns and causes alone."""
    told = "insert_id i-7, uuid u-7, event_type bought, event_time 2026-02-02 10:00:00"
    sample = Sample("changed", "new delivery", told, {"platform": ("ios", "web")})
    passed = Evaluation(Check.CHANGE_IS_EXPLAINED, True)
    words = "refined/events", Slice(DAY, "10001"), "published", "would build it"
    found = Difference(*words, EMPTY, EMPTY, {"rows": (1, 2)}, KeyChange(), passed, False, (sample,))
    assert told in "\n".join(lines_of(found))
    kept = "\n".join(lines_of(found, with_values=False))
    assert "changed (new delivery): platform" in kept
    for delivered in ("i-7", "u-7", "bought", "10:00:00", "ios", "web"):
        assert delivered not in kept


def test_a_folder_of_strangers_is_counted(tmp_path: Path) -> None:
    """Scenario: 5,000 objects with unknown names. Outcome: twenty names and a count, in bounded lines."""
    folder = tmp_path / "landing" / "10001"
    folder.mkdir(parents=True)
    for number in range(5_000):
        (folder / f"odd-{number:04}\x1b").touch()
    settings = Settings(landing_url=str(tmp_path / "landing"), projects=("10001",))
    said: list[str] = []
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        nothing: Any = None
        runtime = Runtime(nothing, ledger, LandingStore.from_settings(settings), settings, said.append)
        now = datetime(2026, 2, 20, tzinfo=UTC)
        plan_arrivals(runtime, LoadRequest((DAY,), ("10001",), frozenset(), "run", now), Source.REGULAR, {})
    assert len(said) < 30
    assert "and 4,980 more objects are not loaded: 4,980 unknown_name" in said[-1]
    assert all(line.isprintable() and len(line) <= LONGEST for line in said)
