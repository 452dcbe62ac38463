"""A table and a check from outside the package, registered in one line; and a check that nothing evaluates."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.checks import CheckRule, Evaluation, complete, not_evaluated
from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.scenarios import city_events
from tests.support.builders import a_body, events_on
from tests.support.shell import InOneProcess, Shell

DAY = date(2026, 2, 2)
PAGE = PROJECT_ROOT / "docs" / "extending.md"
CITY = "aggregates/city_events"


def _register(shell: Shell, name: str) -> None:
    shell.environment |= {
        "TIDEMARK_EXTRA_AGGREGATES": name,
        "PYTHONPATH": str(PROJECT_ROOT),
        "TIDEMARK_CHANGE_MIN_ROWS": "5",
    }
    shell.deliver(DAY, a_body(events_on(DAY, 12, city="Bern")))


def _load(shell: Shell, *more: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, table -> its day's report, standard error."""
    done = shell("load", "--source", "regular", "--from", str(DAY), "--to", str(DAY), "--json", *more)
    return done.returncode, {line["table"]: line for line in json.loads(done.stdout)}, done.stderr


@pytest.mark.slow
def test_an_aggregate_of_a_users_own(spark: Any, tmp_path: Path) -> None:
    """Scenario: a module named in a setting: loaded, corrected, checked, rolled back. Outcome: a table like the others."""
    shell = InOneProcess(tmp_path)
    _register(shell, "tests.scenarios.city_events:CITY_EVENTS")
    with shell.started():
        code, told, said = _load(shell)
        assert (code, told[CITY]["verdict"], told[CITY]["rows"]) == (0, "published", 1), said
        began = datetime.now(UTC).isoformat()

        shell.deliver(DAY, a_body(events_on(DAY, 2, prefix="more", city="Basel")), hour=11)
        code, told, _ = _load(shell, "--accept-changes", "a late shard")
        assert (code, told[CITY]["verdict"], told[CITY]["rows"]) == (0, "published", 2)

        shell.deliver(DAY, a_body(events_on(DAY, 40, prefix="nowhere", city=None)), hour=12)
        code, told, _ = _load(shell, "--accept-changes", "another one")
        assert (code, told[CITY]["verdict"]) == (1, "refused")
        assert "cities_are_known: 40 of 54 events have no city" in str(told[CITY]["reasons"])

        looked_at = shell("diff", CITY, str(DAY))
        assert looked_at.returncode == 1
        assert "unknown" in looked_at.stdout, looked_at.stdout

        span = ("--from", str(DAY), "--to", str(DAY))
        shell.must("rollback", "--table", CITY, *span, "--back-to", began, "--reason", "look")
        history = shell("history", CITY, str(DAY), "--json")
        assert json.loads(history.stdout)[-1]["rows_after"] == 1, history.stdout


@pytest.mark.slow
def test_a_check_that_nobody_evaluates_publishes_nothing(spark: Any, tmp_path: Path) -> None:
    """Outcome: its days stay unpublished with the reason; as a warning they are published."""
    shell = InOneProcess(tmp_path)
    _register(shell, ",".join(f"tests.scenarios.forgotten_checks:{name}" for name in ("BLOCKED", "WARNED")))
    with shell.started():
        code, told, _ = _load(shell)
    assert (code, told["aggregates/blocked"]["verdict"], told["aggregates/blocked"]["rows"]) == (1, "refused", 0)
    assert "forgotten: was not evaluated" in str(told["aggregates/blocked"]["reasons"])
    assert (told["aggregates/warned"]["verdict"], told["aggregates/event_counts"]["verdict"]) == ("published",) * 2


def test_one_evaluation_for_each_listed_check() -> None:
    one, other = CheckRule("one"), CheckRule("other")
    passed = Evaluation(one, True)
    assert complete((other, one), (passed,)) == (not_evaluated(other), passed)
    assert not not_evaluated(other).is_passed
    assert Evaluation.from_json(not_evaluated(other).to_json()) == not_evaluated(other)


def test_the_page_shows_the_module_that_is_tested() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert Path(city_events.__file__).read_text("utf-8") in blocks
