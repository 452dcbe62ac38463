"""Others read our tables, and loading our code does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from typing import Any

import pytest

from pipeline_assets.tables.registry import ALL_TABLES
from tests.support.builders import events_on

DAY = date(2026, 2, 2)

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
