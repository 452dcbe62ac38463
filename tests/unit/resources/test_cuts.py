"""Snapshots that belong together by the ledger: the newest, a run's, at a moment; and messages where there are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.changes import Engine, cut_at, cut_of_run, newest_cut, reading_lines
from resources.ledger.schema import CUTS, RUNS
from resources.ledger.store import Ledger

RAW, REFINED = "raw/regular_events", "refined/events"
FIRST, SECOND = 7_635_660_646_343_998_149, 3_051_729_675_574_597_004
"""Snapshot ids are too large for JSON numbers."""


def record(ledger: Ledger, run_id: str, published_at: str, **snapshots: int) -> None:
    row = {"run_id": run_id, "published_at": published_at, "snapshots": {RAW: str(snapshots["raw"])}}
    with ledger.transaction() as connection:
        connection.execute(CUTS.insert(), row)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_cut_is_found_by_its_run_and_by_its_time(ledger: Ledger) -> None:
    record(ledger, "aa11", "2026-02-02T10:00:00+00:00", raw=FIRST)
    record(ledger, "bb22", "2026-02-02T10:00:00.500000+00:00", raw=SECOND)
    record(ledger, "bb22", "2026-02-02T11:00:00+00:00", raw=3)
    record(ledger, "cc33", "2026-02-02T10:30:00+00:00", raw=4)
    assert newest_cut(ledger).snapshots == {RAW: 4}
    assert (cut_of_run(ledger, "aa11").snapshots, cut_of_run(ledger, "bb").number) == ({RAW: FIRST}, 3)
    moments = {"2026-02-02T10:00:00": FIRST, "2026-02-02T10:00:00.499999": FIRST, "2026-02-02T10:00:00.5": SECOND}
    assert {text: cut_at(ledger, at(text)).snapshots[RAW] for text in moments} == moments
    assert cut_at(ledger, at("2026-02-02T10:45")).snapshots == {RAW: 4}
    assert cut_at(ledger, datetime.fromisoformat("2026-02-02T11:00:00+01:00")).snapshots == {RAW: FIRST}


def test_what_is_not_there_is_said_in_a_sentence(ledger: Ledger) -> None:
    for ask in (newest_cut, lambda of: cut_at(of, at("2026-02-02"))):
        with pytest.raises(LakehouseError, match="no publish is on record yet"):
            ask(ledger)
    for run_id in ("aa11", "aa12"):
        record(ledger, run_id, "2026-02-02T10:00:00+00:00", raw=1)
    with ledger.transaction() as connection:
        connection.execute(RUNS.insert(), {"run_id": "idle"})
    with pytest.raises(UsageError, match="lies before the first publish") as early:
        cut_at(ledger, at("2026-02-02T09:59"))
    assert early.value.hint == "Name a time after 2026-02-02T10:00:00 UTC"
    none = "no run of this id"
    for run_id, said in (("zz", none), ("", none), ("aa1", "2 runs begin so"), ("idle", "published nothing")):
        with pytest.raises(UsageError, match=said):
            cut_of_run(ledger, run_id)


def test_no_line_shows_what_opens_the_catalog() -> None:
    settings = Settings(catalog_url="postgresql://etl:hunter22@db/lake", projects=("1",))
    lines = [line for engine in Engine for line in reading_lines(engine, settings, {RAW: FIRST}, {})]
    assert 'catalog = SqlCatalog("lake", uri="postgresql://etl:***@db/lake")' in lines
    assert "SELECT * FROM lake.raw.regular_events FOR VERSION AS OF 7635660646343998149;" in lines
    assert "hunter22" not in "".join(lines)


def test_the_shell_tells_usage_from_what_is_not_there(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: 1 without a publication, 2 for an impossible state; ids in JSON are text; the lake's promise is named."""
    monkeypatch.chdir(tmp_path)
    own = f"sqlite:///{tmp_path}/ledger.db"
    places = {"CATALOG_URL": own, "WAREHOUSE_URL": str(tmp_path / "w"), "PROJECTS": "10001"}

    def shell(*words: str, **environment: str) -> Any:
        names = {f"TIDEMARK_{name}": value for name, value in (places | environment).items()}
        return CliRunner().invoke(app, words, env=names)

    empty = shell("snapshots")
    assert (empty.exit_code, "no publish is on record yet" in empty.stderr) == (1, True)
    record(ledger, "aa11", "2026-02-02T10:00:00+00:00", raw=FIRST)
    for words in ("--run x", "--at noon", "--at 2026-01-01", "--run aa11 --at 2026-02-03", "--engine x"):
        assert shell("snapshots", *words.split()).exit_code == 2, words
    told = shell("snapshots", "--run", "aa11", "--engine", "trino")
    assert told.exit_code == 0, told.output
    unknown = f"nobody can tell whether these can be read still: {RAW}"
    assert all(said in told.stdout for said in (f"FOR VERSION AS OF {FIRST};", unknown, "in one transaction"))
    assert ("spark.sql" in told.stdout, "\\n" in told.stdout) == (False, False)
    elsewhere = {"LEDGER_URL": own, "CATALOG_URL": f"sqlite:///{tmp_path}/other.db"}
    told = json.loads(shell("snapshots", "--at", "2026-02-02T11:00+01:00", "--json", **elsewhere).stdout)
    assert (told["snapshots"], told["promise"]) == ({RAW: str(FIRST)}, "table by table")
    assert set(told["lines"]) == set(Engine)
    assert "TIDEMARK_LEDGER_URL" in shell("status", **elsewhere).stdout
    assert "a load publishes all its tables" in shell("status").stdout
    status = shell("status", "--json")
    assert all(set(one) >= {"day", "table"} for one in json.loads(status.stdout))
    assert "a load publishes all its tables" in status.stderr
