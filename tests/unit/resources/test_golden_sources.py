"""Golden totals come from a folder, a bucket or a database; unreadable ones give a sentence, the rest counts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.errors import GoldenQueryError
from pipeline_assets.domain.golden import MOST_BYTES, GoldenReading, GoldenSource
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load import golden as golden_query
from pipeline_assets.load.golden import (
    Reconciliation,
    compare_recorded,
    golden_names,
    read_landing,
    read_query,
    reconcile,
    take_golden,
)
from pipeline_assets.load.runtime import Runtime
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
SETTINGS = Settings(projects=("10001", "10002"))
NAMES = golden_names(SETTINGS)
HEADER = "day,project,measure,value\n"
SQL = "SELECT day, project, measure, value FROM totals WHERE day BETWEEN :first_day AND :last_day"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def _read(landing: Path, first: date = DAY, last: date = DAY) -> GoldenReading:
    return read_landing(LandingStore.from_settings(Settings(landing_url=str(landing))), NAMES, first, last)


def _put(landing: Path, name: str, text: str) -> None:
    (landing / "golden").mkdir(exist_ok=True)
    (landing / "golden" / name).write_text(text)


def test_a_landing_without_totals_has_none(landing: Path) -> None:
    assert _read(landing) == GoldenReading(GoldenSource.LANDING, asked=(DAY, DAY))


def test_files_of_the_days_are_read_and_what_is_none_is_named(landing: Path) -> None:
    for day in (DAY - timedelta(days=1), DAY, NEXT, NEXT + timedelta(days=1)):
        _put(landing, f"{day}.csv", f"{HEADER}{day},10001,rows,5\n")
    _put(landing, "2026-02-02.csv.bak", "x")
    found = _read(landing, DAY, NEXT)
    assert [one.key.event_date for one in found.totals] == [DAY, NEXT]
    assert found.days == {DAY, NEXT}
    (fault,) = found.faults
    assert str(fault).startswith("golden/2026-02-02.csv.bak: is not named after a day")


def test_a_huge_file_is_not_read_and_a_link_out_of_landing_is_not_followed(landing: Path) -> None:
    _put(landing, f"{DAY}.csv", f"{HEADER}{DAY},10001,rows,5\n")
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
        connection.exec_driver_sql(
            "CREATE TABLE totals (day DATE, project VARCHAR, measure VARCHAR, value NUMERIC(38, 6))"
        )
        rows = [(DAY, "rows", 5), (DAY, "revenue", Decimal("3.25")), (NEXT, "rows", 7), (date(2026, 3, 1), "rows", 9)]
        for day, measure, value in rows:
            connection.exec_driver_sql(f"INSERT INTO totals VALUES ('{day}', '10001', '{measure}', {value})")
    engine.dispose()
    return str(made)


def _asked(url: str, query: str = SQL, **settings: Any) -> GoldenReading:
    made = Settings(projects=SETTINGS.projects, golden_url=url, golden_query=query, **settings)
    return read_query(made, NAMES, DAY, NEXT)


def test_a_query_gives_totals_of_the_days(url: str) -> None:
    found = _asked(url)
    assert [(str(one.key), one.measure.name, one.value) for one in found.totals] == [
        ("2026-02-02/10001", "rows", Decimal(5)),
        ("2026-02-02/10001", "revenue", Decimal("3.25")),
        ("2026-02-03/10001", "rows", Decimal(7)),
    ]
    assert (found.days, found.faults) == ({DAY, NEXT}, ())
    assert found.totals[1].origin == "row 2 of the golden query"
    # Bad rows are named, unrequested days are left out.
    measure = "CASE value WHEN 7 THEN 'sales' ELSE measure END AS measure"
    wide = f"SELECT day, project, {measure}, value FROM totals WHERE :first_day <= :last_day ORDER BY day"
    found = _asked(url, wide)
    assert len(found.totals) == 2
    assert found.days == frozenset()
    assert [str(fault)[:46] for fault in found.faults] == ["row 3 of the golden query: sales is no measure"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "WITH x AS (SELECT 1) DELETE FROM totals WHERE day BETWEEN :first_day AND :last_day",
            "the golden query failed: ",
        ),
        (
            "SELECT day, project FROM totals WHERE day BETWEEN :first_day AND :last_day",
            "gives the columns day, project",
        ),
        ("SELECT * FROM nowhere WHERE day BETWEEN :first_day AND :last_day", "nowhere"),
    ],
)
def test_a_query_changes_nothing_and_says_what_is_wrong(url: str, query: str, said: str) -> None:
    with pytest.raises(GoldenQueryError) as refusal:
        _asked(url, query)
    assert said in refusal.value.reason
    assert "t/de:m@rk" not in str(refusal.value)
    assert len(_asked(url).totals) == 3


def test_an_endless_query_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_query, "QUERY_SECONDS", 1)
    endless = f"WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) {SQL} AND (SELECT count(*) FROM t) > 0"
    with pytest.raises(GoldenQueryError, match="the golden query failed"):
        _asked(url, endless)


def test_too_many_rows_are_refused_whole(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_query, "MOST_ROWS", 2)
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
    def values() -> dict[str, str]:
        return {f"{one.key.event_date} {one.measure.name}": str(one.value) for one in ledger.golden.of(["10001"])}

    _put(landing, f"{DAY}.csv", f"{HEADER}{DAY},10001,rows,5\n{DAY},10001,revenue,1.50\n")
    _put(landing, f"{NEXT}.csv", f"{HEADER}{NEXT},10001,rows,7\n")
    ledger.golden.replace(_read(landing, DAY, NEXT))
    assert values() == {f"{DAY} rows": "5", f"{DAY} revenue": "1.50", f"{NEXT} rows": "7"}
    _put(landing, f"{DAY}.csv", f"{HEADER}{DAY},10001,rows,6\n")
    (landing / "golden" / f"{NEXT}.csv").unlink()
    ledger.golden.replace(_read(landing, DAY, NEXT))
    assert values() == {f"{DAY} rows": "6", f"{NEXT} rows": "7"}
    # A broken file, or a header without lines, retracts nothing either.
    _put(landing, f"{DAY}.csv", "broken")
    ledger.golden.replace(_read(landing))
    assert values()[f"{DAY} rows"] == "6"
    _put(landing, f"{DAY}.csv", HEADER)
    ledger.golden.replace(_read(landing))
    assert values() == {f"{NEXT} rows": "7"}


def test_a_file_with_bad_lines_replaces_what_its_good_lines_tell_and_retracts_nothing(
    landing: Path, ledger: Ledger
) -> None:
    """Outcome: until the correction a day's other totals stay. Other sources and days are left alone."""

    def values() -> dict[str, str]:
        told = ledger.golden.of(["10001", "10002"])
        return {f"{one.source} {one.key} {one.measure.name}": str(one.value) for one in told}

    rows, revenue, other = f"{DAY},10001,rows,5\n", f"{DAY},10001,revenue,1.50\n", f"{DAY},10002,rows,8\n"
    _put(landing, f"{DAY}.csv", f"{HEADER}{rows}{revenue}{DAY},10001,active_users,3\n{other}")
    _put(landing, f"{NEXT}.csv", f"{HEADER}{NEXT},10001,rows,7\n{NEXT},10001,revenue,2\n")
    before = _read(landing, DAY, NEXT)
    ledger.golden.replace(before)
    of_a_query = tuple(one._replace(source=GoldenSource.QUERY) for one in before.totals[:1])
    ledger.golden.replace(GoldenReading(GoldenSource.QUERY, frozenset({DAY}), of_a_query))
    _put(landing, f"{DAY}.csv", f"{HEADER}{DAY},10001,rows,6\n{DAY},10001,revenue,many\n")
    _put(landing, f"{NEXT}.csv", f"{HEADER}{NEXT},10001,rows,9\n")
    found = _read(landing, DAY, NEXT)
    assert found.days == {NEXT}
    ledger.golden.replace(found)
    assert values() == {
        "landing 2026-02-02/10001 active_users": "3",
        "landing 2026-02-02/10001 revenue": "1.50",
        "landing 2026-02-02/10001 rows": "6",
        "landing 2026-02-02/10002 rows": "8",
        "landing 2026-02-03/10001 rows": "9",
        "query 2026-02-02/10001 rows": "5",
    }
    _put(landing, f"{DAY}.csv", f"{HEADER}what a mistake\n")
    said: list[str] = []
    store = LandingStore.from_settings(Settings(landing_url=str(landing)))
    take_golden(Runtime(None, ledger, store, SETTINGS, said.append), DAY, DAY)  # type: ignore[arg-type]  # no JVM
    assert len(values()) == 6
    assert [line.partition(". ")[0] for line in said] == [
        f"golden: golden/{DAY}.csv line 2: has not the four fields of the header",
        f"golden: what is on record of {DAY} stays where no good line replaces it",
    ]
    _put(landing, f"{DAY}.csv", f"{HEADER}{DAY},10001,rows,6\n")
    ledger.golden.replace(_read(landing))
    assert sorted(values()) == [
        "landing 2026-02-02/10001 rows", "landing 2026-02-03/10001 rows", "query 2026-02-02/10001 rows",
    ]  # fmt: skip


def test_a_query_retracts_the_days_that_it_no_longer_tells_and_never_all_of_them(
    landing: Path, ledger: Ledger, tmp_path: Path
) -> None:
    """Outcome: a missing total goes; all at once stay with a sentence; without a query its totals are not compared."""
    database = tmp_path / "t.db"
    url = f"sqlite:///{database}"
    asking = Settings(projects=SETTINGS.projects, golden_url=url, golden_query=SQL)

    def holds(*days: date) -> Reconciliation:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS totals (day TEXT, project TEXT, measure TEXT, value REAL)")
            connection.execute("DELETE FROM totals")
            connection.executemany("INSERT INTO totals VALUES (?, '10001', 'rows', 6)", [(str(day),) for day in days])
            connection.commit()
        return found(asking)

    def found(settings: Settings) -> Reconciliation:
        store = LandingStore.from_settings(Settings(landing_url=str(landing)))
        return reconcile(ledger, store, settings, SETTINGS.projects, DAY, NEXT)

    def compared(of: Reconciliation) -> list[date]:
        return [one.total.key.event_date for one in of.comparisons]

    # An empty answer without records has nothing to keep.
    assert (compared(holds()), holds().faults) == ([], ())
    assert compared(holds(DAY, NEXT)) == [DAY, NEXT]
    only = holds(NEXT)
    assert (compared(only), only.faults) == ([NEXT], ())
    empty = holds()
    assert compared(empty) == [NEXT]
    (fault,) = empty.faults
    assert str(fault).startswith(
        "the golden query: told of no day between 2026-02-02 and 2026-02-03; the totals on record are kept. "
    )
    assert not empty.is_good
    without = found(SETTINGS)
    assert (compared(without), without.faults) == ([], ())
    assert compared(holds(NEXT)) == [NEXT]


def test_two_sources_tell_of_a_day_beside_each_other(ledger: Ledger, landing: Path, tmp_path: Path) -> None:
    _put(landing, f"{DAY}.csv", f"{HEADER}{DAY},10001,rows,5\n")
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute("CREATE TABLE totals (day TEXT, project TEXT, measure TEXT, value REAL)")
        connection.execute("INSERT INTO totals VALUES (?, '10001', 'rows', 6.0)", [str(DAY)])
        connection.commit()
    ledger.golden.replace(_read(landing))
    ledger.golden.replace(_asked(f"sqlite:///{tmp_path}/t.db"))
    asking = SETTINGS.model_copy(update={"golden_url": f"sqlite:///{tmp_path}/t.db", "golden_query": SQL})
    found = compare_recorded(ledger, asking, SETTINGS.projects)
    assert [(one.total.source.value, str(one)) for one in found] == [
        ("landing", "rows not loaded, 5 golden"),
        ("query", "rows not loaded, 6 golden"),
    ]
