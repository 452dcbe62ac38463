"""Golden totals come from a folder, a bucket or a database; unreadable ones give a sentence, the rest counts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.errors import GoldenQueryError
from pipeline_assets.domain.golden import MOST_BYTES, GoldenFault, GoldenReading, GoldenSource
from pipeline_assets.domain.notices import Notice
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from pipeline_assets.inspection.changes import changes_since
from pipeline_assets.inspection.health import read_health
from pipeline_assets.load import golden
from pipeline_assets.load.runtime import Runtime
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
NEXT = DAY + timedelta(days=1)
SETTINGS = Settings(projects=("10001", "10002"))
NAMES = golden.golden_names(SETTINGS)
HEADER = "day,project,measure,value\n"
SQL = "SELECT day, project, measure, value FROM totals WHERE day BETWEEN :first_day AND :last_day"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def _read(landing: Path, first: date = DAY, last: date = DAY) -> GoldenReading:
    return golden.read_landing(_store(landing), NAMES, first, last)


def _put(landing: Path, name: str, *lines: str) -> None:
    """A file of totals, with the header and these lines."""
    (landing / "golden").mkdir(exist_ok=True)
    (landing / "golden" / name).write_text(HEADER + "".join(f"{line}\n" for line in lines))


def _store(landing: Path) -> LandingStore:
    return LandingStore.from_settings(Settings(landing_url=str(landing)))


def _totals(database: Path, *days: date) -> str:
    """URL of a database with six rows a day, and nothing else."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS totals (day TEXT, project TEXT, measure TEXT, value REAL)")
        connection.execute("DELETE FROM totals")
        connection.executemany("INSERT INTO totals VALUES (?, '10001', 'rows', 6)", [(str(day),) for day in days])
        connection.commit()
    return f"sqlite:///{database}"


def test_files_of_the_days_are_read_and_what_is_none_is_named(landing: Path) -> None:
    assert _read(landing) == GoldenReading(GoldenSource.LANDING, asked=(DAY, DAY))
    for day in (DAY - timedelta(days=1), DAY, NEXT, NEXT + timedelta(days=1)):
        _put(landing, f"{day}.csv", f"{day},10001,rows,5")
    _put(landing, "2026-02-02.csv.bak", "x")
    found = _read(landing, DAY, NEXT)
    assert ([one.key.event_date for one in found.totals], found.days) == ([DAY, NEXT], {DAY, NEXT})
    (fault,) = found.faults
    assert str(fault).startswith("golden/2026-02-02.csv.bak: is not named after a day")


def test_a_huge_file_is_not_read_and_a_link_out_of_landing_is_not_followed(landing: Path) -> None:
    _put(landing, f"{DAY}.csv", f"{DAY},10001,rows,5")
    (landing / "golden" / f"{NEXT}.csv").write_bytes(b"x" * (MOST_BYTES + 1))
    outside = landing.parent / "secret.csv"
    outside.write_text(f"{HEADER}2026-02-04,10001,rows,5\n")
    (landing / "golden" / "2026-02-04.csv").symlink_to(outside)
    found = _read(landing, DAY, date(2026, 2, 4))
    assert [one.key.event_date for one in found.totals] == [DAY]
    huge, link = (str(fault) for fault in found.faults)
    assert f"golden/{NEXT}.csv: has 1,048,577 bytes, more than the 1,048,576 of a file of totals" in huge
    assert "golden/2026-02-04.csv: is a link that leads out of landing" in link


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/totals #1.db" if request.param == "sqlite" else request.getfixturevalue("postgres")
    engine = sa.create_engine(made.replace("postgresql:", "postgresql+psycopg2:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS totals")
        columns = "day DATE, project VARCHAR, measure VARCHAR, value NUMERIC(38, 6)"
        connection.exec_driver_sql(f"CREATE TABLE totals ({columns})")
        rows = [(DAY, "rows", 5), (DAY, "revenue", Decimal("3.25")), (NEXT, "rows", 7), (date(2026, 3, 1), "rows", 9)]
        for day, measure, value in rows:
            connection.exec_driver_sql(f"INSERT INTO totals VALUES ('{day}', '10001', '{measure}', {value})")
    engine.dispose()
    return str(made)


def _asked(url: str, query: str = SQL, **settings: Any) -> GoldenReading:
    made = Settings(projects=SETTINGS.projects, golden_url=url, golden_query=query, **settings)
    return golden.read_query(made, NAMES, DAY, NEXT)


def test_a_query_gives_totals_of_the_days(url: str) -> None:
    found = _asked(url)
    assert [(str(one.key), one.measure.name, one.value) for one in found.totals] == [
        ("2026-02-02/10001", "rows", Decimal(5)),
        ("2026-02-02/10001", "revenue", Decimal("3.25")),
        ("2026-02-03/10001", "rows", Decimal(7)),
    ]
    assert (found.days, found.faults, found.totals[1].origin) == ({DAY, NEXT}, (), "row 2 of the golden query")
    # Bad rows are named, unrequested days are left out.
    measure = "CASE value WHEN 7 THEN 'sales' ELSE measure END AS measure"
    wide = f"SELECT day, project, {measure}, value FROM totals WHERE :first_day <= :last_day ORDER BY day"
    found = _asked(url, wide)
    assert (len(found.totals), found.days) == (2, frozenset())
    assert [str(fault)[:46] for fault in found.faults] == ["row 3 of the golden query: sales is no measure"]


@pytest.mark.parametrize(("what", "said"), [
    ("WITH x AS (SELECT 1) DELETE FROM totals", "the golden query failed: "),
    ("SELECT day, project FROM totals", "gives the columns day, project"),
    ("SELECT * FROM nowhere", "nowhere"),
])  # fmt: skip
def test_a_query_changes_nothing_and_says_what_is_wrong(url: str, what: str, said: str) -> None:
    with pytest.raises(GoldenQueryError) as refusal:
        _asked(url, f"{what} WHERE day BETWEEN :first_day AND :last_day")
    assert said in refusal.value.reason
    assert "t/de:m@rk" not in str(refusal.value)
    assert len(_asked(url).totals) == 3


def test_an_endless_query_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "QUERY_SECONDS", 1)
    endless = f"WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) {SQL} AND (SELECT count(*) FROM t) > 0"
    with pytest.raises(GoldenQueryError, match="the golden query failed"):
        _asked(url, endless)


def test_too_many_rows_are_refused_whole(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "MOST_ROWS", 2)
    with pytest.raises(GoldenQueryError, match="more than 2 rows; none of them was compared"):
        _asked(url)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(GoldenQueryError, match="unable to open database file"):
        _asked(f"sqlite:///{tmp_path}/none.db")
    assert not list(tmp_path.iterdir())
    with pytest.raises(GoldenQueryError) as refusal:
        _asked("postgresql://reader:hush-hush@127.0.0.1:1/d")
    assert "hush-hush" not in str(refusal.value)
    assert "postgresql://reader:***@127.0.0.1:1/d" in str(refusal.value)
    shown = repr(Settings(golden_url="postgresql://reader:hush-hush@db/d", golden_query=SQL))
    assert "hush-hush" not in shown


def test_a_corrected_file_replaces_its_day_and_one_that_is_gone_retracts_nothing(landing: Path, ledger: Ledger) -> None:
    def values(last: date = NEXT) -> dict[str, str]:
        ledger.golden.replace(_read(landing, DAY, last))
        return {f"{one.key.event_date} {one.measure.name}": str(one.value) for one in ledger.golden.of(["10001"])}

    _put(landing, f"{DAY}.csv", f"{DAY},10001,rows,5", f"{DAY},10001,revenue,1.50")
    _put(landing, f"{NEXT}.csv", f"{NEXT},10001,rows,7")
    assert values() == {f"{DAY} rows": "5", f"{DAY} revenue": "1.50", f"{NEXT} rows": "7"}
    _put(landing, f"{DAY}.csv", f"{DAY},10001,rows,6")
    (landing / "golden" / f"{NEXT}.csv").unlink()
    assert values() == {f"{DAY} rows": "6", f"{NEXT} rows": "7"}
    # A broken file retracts nothing either, and a header without lines its day.
    (landing / "golden" / f"{DAY}.csv").write_text("broken")
    assert values(DAY)[f"{DAY} rows"] == "6"
    _put(landing, f"{DAY}.csv")
    assert values(DAY) == {f"{NEXT} rows": "7"}


def test_a_file_with_bad_lines_replaces_what_its_good_lines_tell_and_retracts_nothing(
    landing: Path, ledger: Ledger
) -> None:
    """Outcome: until the correction a day's other totals stay. Other sources and days are left alone."""

    def values() -> dict[str, str]:
        told = ledger.golden.of(["10001", "10002"])
        return {f"{one.source} {one.key} {one.measure.name}": str(one.value) for one in told}

    first = [f"{DAY},10001,{what}" for what in ("rows,5", "revenue,1.50", "active_users,3")]
    _put(landing, f"{DAY}.csv", *first, f"{DAY},10002,rows,8")
    _put(landing, f"{NEXT}.csv", f"{NEXT},10001,rows,7", f"{NEXT},10001,revenue,2")
    before = _read(landing, DAY, NEXT)
    ledger.golden.replace(before)
    of_a_query = tuple(one._replace(source=GoldenSource.QUERY) for one in before.totals[:1])
    ledger.golden.replace(GoldenReading(GoldenSource.QUERY, frozenset({DAY}), of_a_query))
    _put(landing, f"{DAY}.csv", f"{DAY},10001,rows,6", f"{DAY},10001,revenue,many")
    _put(landing, f"{NEXT}.csv", f"{NEXT},10001,rows,9")
    found = _read(landing, DAY, NEXT)
    assert found.days == {NEXT}
    ledger.golden.replace(found)
    assert values() == {
        "landing 2026-02-02/10001 active_users": "3", "landing 2026-02-02/10001 revenue": "1.50",
        "landing 2026-02-02/10001 rows": "6", "landing 2026-02-02/10002 rows": "8",
        "landing 2026-02-03/10001 rows": "9", "query 2026-02-02/10001 rows": "5",
    }  # fmt: skip
    _put(landing, f"{DAY}.csv", "what a mistake")
    said: list[str] = []
    golden.take_golden(Runtime(None, ledger, _store(landing), SETTINGS, said.append), DAY, DAY)  # type: ignore[arg-type]  # no JVM
    assert len(values()) == 6
    assert [line.partition(". ")[0] for line in said] == [
        f"golden: golden/{DAY}.csv line 2: has not the four fields of the header",
        f"golden: what is on record of {DAY} stays where no good line replaces it",
    ]
    _put(landing, f"{DAY}.csv", f"{DAY},10001,rows,6")
    ledger.golden.replace(_read(landing))
    kept = ["landing 2026-02-02/10001 rows", "landing 2026-02-03/10001 rows", "query 2026-02-02/10001 rows"]
    assert sorted(values()) == kept


def test_a_query_retracts_the_days_that_it_no_longer_tells_and_never_all_of_them(
    landing: Path, ledger: Ledger, tmp_path: Path
) -> None:
    """Outcome: a missing total goes; all at once stay with a sentence; without a query its totals are not compared."""

    def holds(*days: date) -> golden.Reconciliation:
        url = _totals(tmp_path / "t.db", *days)
        return found(Settings(projects=SETTINGS.projects, golden_url=url, golden_query=SQL))

    def found(settings: Settings) -> golden.Reconciliation:
        return golden.reconcile(ledger, _store(landing), settings, SETTINGS.projects, DAY, NEXT)

    def compared(of: golden.Reconciliation) -> tuple[list[date], list[str]]:
        return [one.total.key.event_date for one in of.comparisons], [str(one) for one in of.faults]

    # An empty answer without records has nothing to keep.
    assert compared(holds()) == ([], [])
    assert compared(holds(DAY, NEXT)) == ([DAY, NEXT], [])
    assert compared(holds(NEXT)) == ([NEXT], [])
    empty = holds()
    days, (fault,) = compared(empty)
    said = "the golden query: told of no day between 2026-02-02 and 2026-02-03; the totals on record are kept. "
    assert (days, fault.startswith(said), empty.is_good) == ([NEXT], True, False)
    assert compared(found(SETTINGS)) == ([], [])
    assert compared(holds(NEXT)) == ([NEXT], [])


def test_two_sources_tell_of_a_day_beside_each_other(ledger: Ledger, landing: Path, tmp_path: Path) -> None:
    _put(landing, f"{DAY}.csv", f"{DAY},10001,rows,5")
    url = _totals(tmp_path / "t.db", DAY)
    ledger.golden.replace(_read(landing))
    ledger.golden.replace(_asked(url))
    asking = SETTINGS.model_copy(update={"golden_url": url, "golden_query": SQL})
    assert [
        (one.total.source.value, str(one)) for one in golden.compare_recorded(ledger, asking, SETTINGS.projects)
    ] == [
        ("landing", "rows not loaded, 5 golden"),
        ("query", "rows not loaded, 6 golden"),
    ]


EVENTS = "refined/events"
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
    told = [_record(ledger, one) for one in (BAD, BAD, "rows 59", GOOD, GOOD, BAD)]
    assert told == [["golden_mismatch"], [], ["golden_mismatch"], ["golden_agreement"], [], ["golden_mismatch"]]
    ledger.golden.record({(EVENTS, Slice(DAY, "10002")): "rows 5"}, ["10002"], DAY, DAY, None)
    assert _record(ledger) == ["golden_agreement"], "no total tells of the day any more"
    assert _record(ledger) == []
    assert len(_written(ledger)) == 6
    assert changes_since(ledger, datetime(2020, 1, 1, tzinfo=UTC)).refusals == (), "no day was refused"
    sent = envelope(_written(ledger), "run-1")
    assert sent["mrkdwn"] is False
    assert sent["text"].startswith("Tidemark: days that differ from golden totals: 4, days that do so no longer: 2\n")


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


def test_faults_of_a_file_are_on_record_until_it_is_read_without_them(ledger: Ledger, landing: Path) -> None:
    def read(first: date, last: date) -> list[str]:
        ledger.golden.replace(_read(landing, first, last))
        return [one.origin for one in ledger.golden.faults(list(GoldenSource))]

    _put(landing, f"{DAY}.csv", f"{DAY},{PROJECT},rows", f"{DAY},{PROJECT},rows,5")
    for name in (f"{NEXT}.csv", f"{DAY}.csv.bak"):
        (landing / "golden" / name).write_text("")
    of_day, of_next, backup = f"golden/{DAY}.csv line 2", f"golden/{NEXT}.csv", f"golden/{DAY}.csv.bak"
    assert read(DAY, DAY) == [of_day]
    for _ in range(2):
        assert read(DAY, NEXT) == [of_day, backup, of_next]
    _put(landing, f"{DAY}.csv", f"{DAY},{PROJECT},rows,5")
    assert read(DAY, DAY) == [backup, of_next], "what was not asked for stays"
    fault = GoldenFault("row 7 of the golden query", "value 'x' is not a number", "Write digits")
    ledger.golden.replace(GoldenReading(GoldenSource.QUERY, faults=(fault,), asked=(DAY, DAY)))
    (landing / "golden" / f"{NEXT}.csv").unlink()
    assert read(DAY, NEXT) == [backup, fault.origin]
    assert ledger.golden.faults([GoldenSource.QUERY]) == [fault]
    ledger.golden.replace(GoldenReading(GoldenSource.QUERY, asked=(NEXT, NEXT)))
    assert ledger.golden.faults([GoldenSource.QUERY]) == [], "a query answers anew"


def test_a_reconciliation_tells_receivers_and_names_what_it_could_not_compare(
    ledger: Ledger, landing: Path, tmp_path: Path
) -> None:
    """Outcome: one notice of the differing day; the page of health shows the uncompared ones until mended."""
    query = {"golden_url": f"sqlite:///{tmp_path}/none.db", "golden_query": "SELECT :first_day, :last_day"}
    settings = Settings(landing_url=str(landing), projects=(PROJECT,), **query)
    whole = SliceRecord(EVENTS, KEY, Verdict.PUBLISHED, digest=Digest(60, 1, 1))
    ledger.record(Changes(slices=[whole, replace(whole, key=Slice(NEXT, PROJECT))]), "run-1")
    for day, rows in ((DAY, 61), (NEXT, 60)):
        _put(landing, f"{day}.csv", f"{day},{PROJECT},rows,{rows}", f"{day},<x>,rows,1")
    for _ in range(2):
        found = golden.reconcile(ledger, _store(landing), settings, settings.projects, DAY, NEXT)
        assert len(found.mismatches) == 1
        reason = f"rows 60 published, 61 golden (-1, 1.64%) by golden/{DAY}.csv line 2"
        (told,) = _written(ledger)
        assert (told.table, told.key, told.run_id, told.reason) == (EVENTS, KEY, None, reason)
    report = read_health(ledger, settings, datetime(2026, 2, 10, tzinfo=UTC))
    assert (report.golden_faults, len(report.golden_faults), report.waiting) == (found.faults, 3, 3)
    page = page_of(report)
    assert "golden totals: 3 not compared" in page
    assert f"golden/{DAY}.csv line 3: project &#x27;&lt;x&gt;&#x27; is none of the configured" in page
    without_query = settings.model_copy(update={"golden_query": None})
    assert len(read_health(ledger, without_query, datetime(2026, 2, 10, tzinfo=UTC)).golden_faults) == 2


def test_status_names_what_is_no_golden_total(tmp_path: Path) -> None:
    shell = InThisProcess(tmp_path)
    days = ("--from", str(DAY), "--to", str(DAY))
    _put(shell.landing, f"{DAY}.csv", *[f"{DAY},{PROJECT},rows"] * 30)
    assert shell("reconcile", *days).returncode == 1
    said = shell("status", *days).stdout
    assert f"not compared: golden/{DAY}.csv line 2: has not the four fields of the header. Write the header" in said
    assert "more that are no golden totals: tidemark reconcile" in said
    _put(shell.landing, f"{DAY}.csv")
    shell("reconcile", *days)
    assert "not compared" not in shell("status", *days).stdout
