"""Others read our tables, and loading our code does nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.tables.registry import ALL_TABLES, table_by_key
from resources.iceberg.procedures import Upkeep
from tests.support.builders import events_on

DAY = date(2026, 2, 2)
_READS = re.compile(r"(?:FROM \w+\.|load_table\(\")(\w+\.\w+)")
"""A line that reads a table, and which one."""

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


@pytest.mark.slow
def test_pyiceberg_opens_every_table(pipeline: Any) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    p = pipeline()
    p.deliver(DAY, [*events_on(DAY, 5), b"{broken"])
    assert p.load(DAY).success
    catalog = SqlCatalog(
        p.settings.catalog_name, uri=p.settings.catalog_url, warehouse=f"file://{p.settings.warehouse_url}"
    )
    rows = {
        table.key: catalog.load_table(table.identifier).scan().to_arrow().num_rows
        for table in ALL_TABLES
        if p.spark.catalog.tableExists(p.lakehouse.identifier(table))
    }
    catalog.close()
    assert rows.keys() == {table.key for table in ALL_TABLES}
    assert rows["raw/regular_events"] == rows["refined/events"] == 5
    assert rows["raw/quarantine"] == 1


@pytest.mark.slow
def test_printed_lines_give_the_rows_of_one_moment_after_later_loads(pipeline: Any) -> None:
    """Scenario: a day is loaded twice, the second time with more rows. Outcome: what `tidemark snapshots` prints of the first
    load gives the rows of then in Spark and PyIceberg, all tables of one state; once one has expired, a sentence names it."""
    p = pipeline()
    runs = []
    for count in (5, 9):
        p.deliver(DAY, events_on(DAY, count))
        done = p.load(DAY)
        assert done.success
        runs.append(done.result.run_id)
    names = ("landing_url", "warehouse_url", "catalog_url", "catalog_name")
    places = {f"TIDEMARK_{name.upper()}": str(getattr(p.settings, name)) for name in names}

    def shell(*words: str) -> Any:
        environment = places | {"TIDEMARK_PROJECTS": ",".join(p.settings.projects)}
        return CliRunner().invoke(app, ["snapshots", *words], env=environment)

    def rows(lines: Sequence[str]) -> dict[str, int]:
        """Table -> how many rows a line gives."""
        scope: dict[str, Any] = {"spark": p.spark}
        for line in (one for one in lines if not _READS.search(one)):
            exec(line, scope)
        found = {}
        for line in lines:
            if table := _READS.search(line):
                result = eval(line, scope)
                found[table[1]] = int(result.count() if line.startswith("spark.") else result.num_rows)
        if "catalog" in scope:
            scope["catalog"].close()
        return found

    told = [json.loads(shell(*words, "--json").stdout) for words in (("--run", runs[0][:13]), ())]
    assert [one["run_id"] for one in told] == runs
    then = json.loads(shell("--at", told[0]["published_at"], "--json").stdout)
    assert then == told[0]
    for cut, count in zip(told, (5, 9), strict=True):
        assert cut["snapshots"].keys() >= {"raw/regular_events", "refined/events", "aggregates/event_counts"}
        by_spark, by_pyiceberg = rows(cut["lines"]["spark"]), rows(cut["lines"]["pyiceberg"])
        assert by_spark == by_pyiceberg
        assert by_spark.keys() == {name.replace("/", ".") for name in cut["snapshots"]}
        assert by_spark["raw.regular_events"] == by_spark["refined.events"] == count
        scanned = [
            re.search(r"iceberg_scan\('([^']+)', snapshot_from_id = (\d+)\)", one) for one in cut["lines"]["duckdb"]
        ]
        found = {match[2]: Path(match[1]) for match in scanned if match}
        assert set(found) == set(cut["snapshots"].values())
        assert all(path.is_file() for path in found.values())
    # One state: the aggregates of then are of the rows of then.
    (line,) = [one for one in told[0]["lines"]["spark"] if "aggregates.event_counts" in one]
    counted = eval(line, {"spark": p.spark}).agg({"events": "sum"}).collect()
    assert counted[0][0] == 5

    expired = int(told[0]["snapshots"]["refined/events"])
    Upkeep(p.spark, p.settings.catalog_name).expire(table_by_key("refined/events"), [expired])
    for words in (("--run", runs[0]), ("--at", told[0]["published_at"])):
        gone = shell(*words)
        assert gone.exit_code == 1
        assert f"refined/events: the snapshot {expired}" in gone.stderr
        assert "has expired" in gone.stderr
    assert shell("--engine", "spark").exit_code == 0
