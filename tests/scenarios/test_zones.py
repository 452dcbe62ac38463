"""A day is a day of UTC wherever the machine stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.drill.sandbox import as_environment
from pipeline_assets.tables.registry import ALL_TABLES
from resources.spark.session import configure_catalog
from tests.support.builders import Pipeline, an_event
from tests.support.small_spark import FIRST_COMPILER, small_config

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)
APIA = "Pacific/Apia"
"""Thirteen hours ahead of UTC today, eleven behind it before 30 December 2011, a day that it skipped."""
MOMENTS = ("2011-12-30 12:00:00.000000", f"{DAY} 00:30:00.000000", f"{DAY} 12:00:00.000000", f"{DAY} 23:30:00.000000")
_TWICE = """
import sys
from typer.testing import CliRunner
from pipeline_assets.cli.app import app
for words in ("load --source regular --from {day} --to {day}", "maintenance --dry-run"):
    done = CliRunner().invoke(app, words.format(day=sys.argv[1]).split())
    print(done.stdout, done.stderr, done.exit_code)
"""


def _delivered(p: Pipeline) -> Pipeline:
    uuids = [f"00000000-0000-0000-0000-00000000000{number}" for number in range(len(MOMENTS))]
    p.deliver(
        DAY, [an_event(event_time=moment, uuid=one, insert_id=one) for moment, one in zip(MOMENTS, uuids, strict=True)]
    )
    return p


def _in_apia(p: Pipeline, folder: Path) -> str:
    """Load the day and plan maintenance in one process there, whose JVM has that zone too."""
    (folder / "home").mkdir()
    config = small_config(f"{FIRST_COMPILER} -Duser.timezone={APIA}")
    known = p.settings.model_copy(
        update={"spark_master": "local[2]", "spark_driver_memory": "1g", "spark_config": config}
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    done = subprocess.run(
        [sys.executable, "-c", _TWICE, str(DAY)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**inherited, **as_environment(known), "DAGSTER_HOME": str(folder / "home"), "TZ": APIA},
    )
    return done.stdout + done.stderr


def _told(p: Pipeline) -> dict[str, Any]:
    """Each table's slices on record, and its rows without the lake's own columns."""
    configure_catalog(p.spark, p.settings)
    own = {"_object_etag"}
    return {
        table.key: (
            {key: (str(r.digest), r.verdict) for key, r in p.ledger.slices(table.key, None).items()},
            sorted(json.dumps({k: str(v) for k, v in row.items() if k not in own}) for row in p.rows(table.key)),
        )
        for table in ALL_TABLES
    }


def test_another_zone_shifts_no_day(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: events around midnight and on a skipped day. Outcome: records, rows and maintenance equal UTC's."""
    here, there = _delivered(pipeline()), _delivered(pipeline())
    assert here.load(DAY).success

    said = _in_apia(there, tmp_path)

    assert _told(there) == _told(here), said
    assert said.count("nothing to do") == len(ALL_TABLES), said


def test_a_session_that_would_shift_days_is_refused(pipeline: Any) -> None:
    """Outcome: one sentence names the zone and the cure."""
    p = pipeline()
    zones = getattr(p.spark._jvm, "java.util.TimeZone")
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(APIA))
    try:
        with pytest.raises(SettingsError, match=f"counts days in {APIA}, where dates shift"):
            configure_catalog(p.spark, p.settings)
    finally:
        zones.setDefault(before)
    configure_catalog(p.spark, p.settings)
