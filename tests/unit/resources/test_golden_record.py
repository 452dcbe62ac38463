"""Golden totals on record: mismatches with notices, faults until corrected, and their views."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.golden import GoldenFault, GoldenReading, GoldenSource
from pipeline_assets.domain.notices import Notice
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from pipeline_assets.inspection.changes import changes_since
from pipeline_assets.inspection.health import read_health
from pipeline_assets.load.golden import Reconciliation, golden_names, read_landing, reconcile
from pipeline_assets.operations.notices import envelope
from pipeline_assets.orchestration.health_page import page_of
from resources.landing.store import LandingStore
from resources.ledger import outbox
from resources.ledger.changes import Changes
from resources.ledger.outbox import write_notice
from resources.ledger.store import Ledger
from tests.scenarios.test_shell import InThisProcess
from tests.support.builders import PROJECT

DAY = date(2026, 2, 2)
NEXT, EVENTS = DAY + timedelta(days=1), "refined/events"
KEY = Slice(DAY, PROJECT)
BAD, GOOD = "rows 60", None


@pytest.fixture
def ledger(any_ledger: Ledger) -> Ledger:
    return any_ledger


def _record(ledger: Ledger, *mismatch: str | None) -> list[str]:
    told = ledger.golden.record(dict(zip([(EVENTS, KEY)], mismatch, strict=False)), [PROJECT], DAY, DAY, "run-1")
    assert told == _written(ledger)[len(_written(ledger)) - len(told) :], "each is in the outbox"
    return [notice.kind.value for notice in told]


def _written(ledger: Ledger) -> list[Notice]:
    return ledger.outbox.recorded_since(datetime(2020, 1, 1, tzinfo=UTC))


def test_a_mismatch_is_told_once_until_it_ends_and_one_whose_totals_are_retracted_ends_too(ledger: Ledger) -> None:
    assert _record(ledger, BAD) == ["golden_mismatch"]
    assert _record(ledger, BAD) == []
    assert _record(ledger, "rows 59") == ["golden_mismatch"]
    assert _record(ledger, GOOD) == ["golden_agreement"]
    assert _record(ledger, GOOD) == []
    assert _record(ledger, BAD) == ["golden_mismatch"], "the same one again is another"
    ledger.golden.record({(EVENTS, Slice(DAY, "10002")): "rows 5"}, ["10002"], DAY, DAY, None)
    assert _record(ledger) == ["golden_agreement"], "no total tells of the day any more"
    assert _record(ledger) == []
    assert len(_written(ledger)) == 6
    assert changes_since(ledger, datetime(2020, 1, 1, tzinfo=UTC)).refusals == (), "no day was refused"
    sent = envelope(_written(ledger), "run-1")
    text = sent["text"]
    assert sent["mrkdwn"] is False
    assert text.startswith("Tidemark: days that differ from golden totals: 4, days that do so no longer: 2\n")


def test_what_a_file_of_totals_says_begins_no_markup_in_a_chat(ledger: Ledger) -> None:
    """Scenario: a file's name holds a mention and links. Outcome: a chat shows them as text."""
    said = "rows 59 by golden/<!channel>@here <http://evil.example|totals>.csv"
    _record(ledger, said)
    text = envelope(_written(ledger), "run-1")["text"]
    assert "&lt;!channel&gt;@\u2060here &lt;http:\u2060//evil.example|totals&gt;.csv" in text


def test_the_notices_of_a_comparison_are_written_together_or_not_at_all(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a kill after the first of two notices. Outcome: none is written, and the next comparison sends both."""
    bad = {(EVENTS, KEY): BAD, (EVENTS, Slice(NEXT, PROJECT)): BAD}

    def killed(connection: Any, notice: Notice, stamp: Any) -> None:
        if notice.key != KEY:
            raise KeyboardInterrupt
        write_notice(connection, notice, stamp)

    monkeypatch.setattr(outbox, "write_notice", killed)
    with pytest.raises(KeyboardInterrupt):
        ledger.golden.record(bad, [PROJECT], DAY, NEXT, "run-1")
    assert _written(ledger) == []
    monkeypatch.undo()
    assert len(ledger.golden.record(bad, [PROJECT], DAY, NEXT, "run-1")) == 2


def test_faults_of_a_file_are_on_record_until_it_is_read_without_them(ledger: Ledger, tmp_path: Path) -> None:
    folder = tmp_path / "landing" / "golden"
    folder.mkdir(parents=True)
    landing = LandingStore.from_settings(Settings(landing_url=str(folder.parent)))

    def read(first: date, last: date) -> list[str]:
        ledger.golden.replace(read_landing(landing, golden_names(Settings(projects=(PROJECT,))), first, last))
        return [one.origin for one in ledger.golden.faults(list(GoldenSource))]

    head = "day,project,measure,value\n"
    (folder / f"{DAY}.csv").write_text(f"{head}{DAY},{PROJECT},rows\n{DAY},{PROJECT},rows,5\n")
    (folder / f"{NEXT}.csv").write_text("")
    (folder / f"{DAY}.csv.bak").write_text("")
    of_day, of_next, backup = f"golden/{DAY}.csv line 2", f"golden/{NEXT}.csv", f"golden/{DAY}.csv.bak"
    assert read(DAY, DAY) == [of_day]
    assert read(DAY, NEXT) == [of_day, backup, of_next]
    assert read(DAY, NEXT) == [of_day, backup, of_next]
    (folder / f"{DAY}.csv").write_text(f"{head}{DAY},{PROJECT},rows,5\n")
    assert read(DAY, DAY) == [backup, of_next], "what was not asked for stays"
    fault = GoldenFault("row 7 of the golden query", "value 'x' is not a number", "Write digits")
    ledger.golden.replace(GoldenReading(GoldenSource.QUERY, faults=(fault,), asked=(DAY, DAY)))
    (folder / f"{NEXT}.csv").unlink()
    assert read(DAY, NEXT) == [backup, fault.origin]
    assert ledger.golden.faults([GoldenSource.QUERY]) == [fault]
    ledger.golden.replace(GoldenReading(GoldenSource.QUERY, asked=(NEXT, NEXT)))
    assert ledger.golden.faults([GoldenSource.QUERY]) == [], "a query answers anew"


def test_a_reconciliation_tells_receivers_and_names_what_it_could_not_compare(ledger: Ledger, tmp_path: Path) -> None:
    """Outcome: one notice of the differing day; the page of health shows the uncompared ones until mended."""
    folder = tmp_path / "landing" / "golden"
    folder.mkdir(parents=True)
    settings = Settings(
        landing_url=str(folder.parent), projects=(PROJECT,), golden_url=f"sqlite:///{tmp_path}/none.db",
        golden_query="SELECT :first_day, :last_day",
    )  # fmt: skip
    whole = SliceRecord(EVENTS, KEY, Verdict.PUBLISHED, digest=Digest(60, 1, 1))
    ledger.record(Changes(slices=[whole, replace(whole, key=Slice(NEXT, PROJECT))]), "run-1")

    def done() -> Reconciliation:
        return reconcile(ledger, LandingStore.from_settings(settings), settings, settings.projects, DAY, NEXT)

    for day, rows in ((DAY, 61), (NEXT, 60)):
        (folder / f"{day}.csv").write_text(
            f"day,project,measure,value\n{day},{PROJECT},rows,{rows}\n{day},<x>,rows,1\n"
        )
    found = done()
    assert len(found.mismatches) == 1
    assert [(one.table, one.key, one.run_id) for one in _written(ledger)] == [(EVENTS, KEY, None)]
    assert _written(ledger)[0].reason == f"rows 60 published, 61 golden (-1, 1.64%) by golden/{DAY}.csv line 2"
    done()
    assert len(_written(ledger)) == 1
    report = read_health(ledger, settings, datetime(2026, 2, 10, tzinfo=UTC))
    assert report.golden_faults == found.faults
    assert (len(report.golden_faults), report.waiting) == (3, 3)
    page = page_of(report)
    assert "golden totals: 3 not compared" in page
    assert f"golden/{DAY}.csv line 3: project &#x27;&lt;x&gt;&#x27; is none of the configured" in page
    without_query = settings.model_copy(update={"golden_query": None})
    assert len(read_health(ledger, without_query, datetime(2026, 2, 10, tzinfo=UTC)).golden_faults) == 2


def test_status_names_what_is_no_golden_total(tmp_path: Path) -> None:
    shell = InThisProcess(tmp_path)
    folder = shell.landing / "golden"
    folder.mkdir()
    lines = "".join(f"{DAY},{PROJECT},rows\n" for _ in range(30))
    (folder / f"{DAY}.csv").write_text(f"day,project,measure,value\n{lines}")
    assert shell("reconcile", "--from", str(DAY), "--to", str(DAY)).returncode == 1
    said = shell("status", "--from", str(DAY), "--to", str(DAY)).stdout
    assert f"not compared: golden/{DAY}.csv line 2: has not the four fields of the header. Write the header" in said
    assert "more that are no golden totals: tidemark reconcile" in said
    (folder / f"{DAY}.csv").write_text("day,project,measure,value\n")
    shell("reconcile", "--from", str(DAY), "--to", str(DAY))
    assert "not compared" not in shell("status", "--from", str(DAY), "--to", str(DAY)).stdout
