"""Other engines read our tables, also during a publish, and loading our code does nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline_assets.domain.slices import Source
from pipeline_assets.operations.rebuild_swap import swap
from pipeline_assets.operations.rollback import RollbackRequest, roll_back
from pipeline_assets.tables.registry import ALL_TABLES, table_by_key
from resources.failpoints import Failpoint
from resources.iceberg.upkeep import Upkeep
from resources.publishing import Promise, promise_of
from tests.scenarios.test_rebuild import start
from tests.support.builders import events_on
from tests.support.points import OF_TABLE_BY_TABLE, watching
from tests.support.reader import Seen, a_reader
from tests.support.shell import Done, OfPipeline

DAY = date(2026, 2, 2)
_READS = re.compile(r"(?:FROM \w+\.|load_table\(\")(\w+\.\w+)|/(\w+/\w+)/metadata/")
"""A line that reads a table, and its name."""

_IMPORT = """
import sys
seen = []
def watch(event, args):
    if event == "subprocess.Popen" and args[0] == "file":
        return  # the standard library's platform.architecture(), called by a dependency
    if event in ("socket.connect", "sqlite3.connect", "subprocess.Popen", "os.mkdir"):
        seen.append((event, str(args)[:200]))
    # The settings file alone may be read: it names tables of a user's own.
    is_settings = str(args[0] if args else "").endswith("tidemark.toml") and (args[1] or "r")[0] == "r"
    if event == "open" and not is_settings and (str(args[0]).endswith((".toml", ".db", ".yaml")) or (args[1] or "r")[0] in "wax"):
        seen.append((event, str(args)[:200]))
sys.addaudithook(watch)
import pipeline_assets.definitions
ours = [s for s in seen if ".pyc" not in s[1]]
sys.exit(repr(ours) if ours else 0)
"""


def test_importing_the_definitions_does_no_io() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", _IMPORT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the locked packages' extensions installed; it loads only signed ones."""
    folder = tmp_path_factory.mktemp("extensions")
    with closing(duckdb.connect(config={"extension_directory": str(folder)})) as connection:
        ((platform,),) = connection.execute("PRAGMA platform").fetchall()
        place = folder / f"v{duckdb.__version__}" / platform
        place.mkdir(parents=True)
        for name in ("avro", "iceberg"):
            (file,) = Path(str(files(f"duckdb_extension_{name}"))).rglob("*.duckdb_extension")
            shutil.copy(file, place)
        connection.execute(f"SET TimeZone = 'UTC'; SET custom_extension_repository = '{folder}'")
        yield connection


def _shell(p: Any, *words: str) -> Done:
    return OfPipeline(p)("snapshots", *words)


def _rows(p: Any, cut: dict[str, Any], engine: str, duck: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """Table -> rows of an engine's printed line, in an own order."""
    scope: dict[str, Any] = {"spark": p.spark}
    found = {}
    for line in cut["lines"][engine]:
        table = _READS.search(line)
        if engine == "duckdb":
            result = duck.execute(line)
        elif table:
            result = eval(line, scope)
        else:
            exec(line, scope)
        if table:
            arrow = {"spark": "toArrow", "pyiceberg": "combine_chunks", "duckdb": "to_arrow_table"}[engine]
            rows = getattr(result, arrow)().to_pylist()
            found[(table[1] or table[2]).replace("/", ".")] = sorted(repr(sorted(row.items())) for row in rows)
    if "catalog" in scope:
        scope["catalog"].close()
    return found


@pytest.mark.slow
def test_printed_lines_give_the_rows_of_one_moment_after_later_loads(
    pipeline: Any, duck: duckdb.DuckDBPyConnection
) -> None:
    """Scenario: a day is loaded twice.
    Outcome: the printed lines of the first load give its rows in Spark, PyIceberg and DuckDB; an expired state is named."""
    p = pipeline()
    runs = []
    for count in (5, 9):
        p.deliver(DAY, events_on(DAY, count))
        done = p.must_load(DAY)
        runs.append(done.run_id)
    told = [json.loads(_shell(p, *words, "--json").stdout) for words in (("--run", runs[0][:13]), ())]
    assert [one["run_id"] for one in told] == runs
    then = json.loads(_shell(p, "--at", told[0]["published_at"], "--json").stdout)
    assert then == told[0]
    for cut, count in zip(told, (5, 9), strict=True):
        assert cut["snapshots"].keys() >= {"raw/regular_events", "refined/events", "aggregates/event_counts"}
        by_spark, *others = (_rows(p, cut, engine, duck) for engine in ("spark", "pyiceberg", "duckdb"))
        assert [by_spark] * 2 == others
        assert by_spark.keys() == {name.replace("/", ".") for name in cut["snapshots"]}
        assert len(by_spark["raw.regular_events"]) == len(by_spark["refined.events"]) == count
    (line,) = [one for one in told[0]["lines"]["spark"] if "aggregates.event_counts" in one]
    counted = eval(line, {"spark": p.spark}).agg({"events": "sum"}).collect()
    assert counted[0][0] == 5

    expired = int(told[0]["snapshots"]["refined/events"])
    Upkeep(p.spark, p.settings.catalog_name).expire(table_by_key("refined/events"), [expired])
    for words in (("--run", runs[0]), ("--at", told[0]["published_at"])):
        gone = _shell(p, *words)
        assert gone.returncode == 1
        assert f"refined/events: the snapshot {expired}" in gone.stderr
        assert "has expired" in gone.stderr
    OfPipeline(p).must("snapshots", "--engine", "spark")


@pytest.mark.slow
def test_duckdb_reads_live_tables_after_a_load_a_rebuild_and_a_rollback(
    pipeline: Any, duck: duckdb.DuckDBPyConnection
) -> None:
    """Outcome: after a load, a rebuild and a rollback DuckDB's printed lines give the rows that PyIceberg reads, which
    opens every table."""
    from pyiceberg.catalog.sql import SqlCatalog

    p = pipeline()
    events = events_on(DAY, 5)
    events[0]["event_properties"] = {"$revenue": 2.5, "amount": 4, "currency": "EUR"}
    p.deliver(DAY, [*events, b"{broken"])

    def seen() -> dict[str, list[str]]:
        cut = json.loads(_shell(p, "--json").stdout)
        by_pyiceberg, by_duckdb = (_rows(p, cut, engine, duck) for engine in ("pyiceberg", "duckdb"))
        print({name: len(rows) for name, rows in by_duckdb.items()})
        assert by_duckdb == by_pyiceberg
        assert by_duckdb.keys() == {name.replace("/", ".") for name in cut["snapshots"]}
        return by_duckdb

    p.must_load(DAY)
    catalog = SqlCatalog(
        p.settings.catalog_name, uri=p.settings.catalog_url, warehouse=f"file://{p.settings.warehouse_url}"
    )
    with closing(catalog):
        rows = {one.key: catalog.load_table(one.identifier).scan().to_arrow().num_rows for one in ALL_TABLES}
    assert (rows["raw/regular_events"], rows["refined/events"], rows["raw/quarantine"]) == (5, 5, 1)
    loaded, then = seen(), datetime.now(UTC)
    assert len(loaded["raw.regular_events"]) == len(loaded["refined.events"]) == 5
    assert "Decimal('2.5" in str(loaded["aggregates.daily_revenue"])

    p.change(revenue_properties=("amount",), change_min_rows=1000)
    rebuild, _ = start(p, DAY, DAY, "aggregates/daily_revenue")
    swap(p.runtime, rebuild, "ann", None, p.now)
    rebuilt = seen()
    assert "Decimal('4" in str(rebuilt["aggregates.daily_revenue"])

    roll_back(p.runtime, RollbackRequest((), p.settings.projects, DAY, DAY, then, "why", str(uuid.uuid4())))
    assert seen() == loaded != rebuilt


_PUBLISHING = {
    Failpoint.BEFORE_PUBLISH, Failpoint.AFTER_APPLY, Failpoint.IN_TRANSACTION, Failpoint.AFTER_PUBLISH,
    *OF_TABLE_BY_TABLE,
}  # fmt: skip


def _seen_beside_a_publish(pipeline: Callable[..., Any], **settings: Any) -> tuple[Promise, Seen]:
    """A late fact, a correction and a recovered hour in one load, which waits at each publish step for a reader."""
    p = pipeline(**settings)
    p.now = datetime(2026, 2, 10, tzinfo=UTC)
    next_day = DAY + timedelta(days=1)
    p.deliver(DAY, events_on(DAY, 20))
    p.deliver(next_day, events_on(next_day, 10))
    p.reports(DAY, next_day)
    p.deliver(DAY, events_on(DAY, 11))
    p.deliver(next_day, events_on(DAY, 12, prefix="late"), hour=20)
    p.deliver(next_day, events_on(next_day, 11, prefix="recovered"), hour=21, source=Source.BACKFILL)
    with a_reader(p.settings.model_dump()) as ask:
        with watching(lambda point, _: ask() if point in _PUBLISHING else None):
            p.reports(DAY, next_day)
        assert p.count("refined/events") == 11 + 10 + 12 + 11
        return promise_of(p.settings), ask()


@pytest.mark.slow
@pytest.mark.parametrize("catalog", ["sqlite", "postgresql"])
def test_a_reader_sees_all_of_a_publish_or_nothing(
    pipeline: Callable[..., Any], catalog: str, request: pytest.FixtureRequest
) -> None:
    """Outcome: a looping reader sees one change; refined, aggregates and ledger agree before and after it."""
    places = {} if catalog == "sqlite" else {"catalog_url": request.getfixturevalue("postgres")}
    promise, seen = _seen_beside_a_publish(pipeline, **places)
    assert promise is Promise.ONE_TRANSACTION
    assert (seen.changed, seen.aggregates, seen.ledger) == (1, 0, 0), seen.findings


@pytest.mark.slow
def test_the_same_reader_finds_publishes_table_by_table(pipeline: Callable[..., Any], tmp_path: Any) -> None:
    """Scenario: the ledger has its own database. Outcome: the reader sees refined before its aggregates and ledger rows."""
    promise, seen = _seen_beside_a_publish(pipeline, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    assert promise is Promise.TABLE_BY_TABLE
    assert seen.changed > 1
    assert seen.aggregates > 0
    assert seen.ledger > 0
