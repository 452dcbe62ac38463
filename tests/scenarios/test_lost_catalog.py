"""An empty, mistyped, lost or old catalog harms no file of the lake, and the lake is attached again."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import uuid
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import LakehouseError, LedgerError
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.maintenance import TableUpkeep, maintain
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import ALL_TABLES
from resources.iceberg.lake_identity import FORMAT, MARKER, Purpose, attach, attachable
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog
from tests.support.builders import Pipeline, a_body, an_orphan_below, events_on
from tests.support.s3 import BUCKET
from tests.support.shell import InThisProcess

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
RAW, REFINED = "raw/regular_events", REFINED_EVENTS.key


def _loaded(pipeline: Any, **settings: Any) -> Pipeline:
    p: Pipeline = pipeline(**settings)
    p.deliver(DAY, events_on(DAY, 10))
    run = p.load(DAY)
    assert run.success, run.failure()
    return p


def _maintain(p: Pipeline, *, is_dry_run: bool = False) -> dict[str, TableUpkeep]:
    configure_catalog(p.spark, p.settings)
    runtime = Runtime(p.lakehouse, p.ledger, LandingStore.from_settings(p.settings), p.settings)
    now = datetime.now(UTC)
    return {one.table: one for one in maintain(runtime, str(uuid.uuid4()), now, lambda _: False, is_dry_run=is_dry_run)}


def _with_another_catalog(p: Pipeline, **changes: Any) -> None:
    """A session remembers a catalog by its name, so the name differs."""
    p.change(catalog_name=f"lake_{uuid.uuid4().hex[:8]}", **changes)
    configure_catalog(p.spark, p.settings)


def _grow_old(p: Pipeline) -> None:
    old = (datetime.now(UTC) - timedelta(days=40)).timestamp()
    for path in Path(p.settings.warehouse_url).rglob("*"):
        os.utime(path, (old, old))


def _metadata(p: Pipeline) -> set[Path]:
    return set(Path(p.settings.warehouse_url).rglob("*.metadata.json"))


def _made(files: set[Path], ago: timedelta) -> None:
    at = round((datetime.now(UTC) - ago).timestamp() * 1000)
    for path in files:
        text = re.sub(r'"last-updated-ms"\s*:\s*\d+', f'"last-updated-ms":{at}', path.read_text(), count=1)
        path.write_text(text)
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def _files(p: Pipeline) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in Path(p.settings.warehouse_url).rglob("*") if path.is_file()}


def _look(p: Pipeline, purpose: Purpose = Purpose.LOOK) -> None:
    configure_catalog(p.spark, p.settings)
    p.lakehouse.require_own(p.settings, ALL_TABLES, purpose, p.ledger.lake)


def test_another_catalog_touches_nothing_and_attach_brings_the_lake_back(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: an empty catalog meets a used warehouse. Outcome: refused until attached, then equal digests."""
    p = _loaded(pipeline)
    digests, own = p.digests(), p.settings
    _grow_old(p)
    files = _files(p)
    for changes in ({"catalog_url": f"sqlite:///{tmp_path}/mistyped.db"}, {}):
        _with_another_catalog(p, **changes)
        with pytest.raises(LakehouseError, match=r"does not know, and nothing was touched\. .*tidemark attach"):
            _maintain(p)
        run = p.load(DAY)
        assert not run.success
        assert "tidemark attach" in run.failure()
        assert _files(p) == files

    found = attachable(p.lakehouse.tables, p.settings, ALL_TABLES)
    assert {one.table.key: one.rows for one in found if one.rows}[REFINED] == 10
    assert not any(p.lakehouse.knows(table) for table in ALL_TABLES)
    assert _files(p) == files
    assert len(attach(p.lakehouse.tables, p.settings, found)) == len(ALL_TABLES)
    assert attach(p.lakehouse.tables, p.settings, attachable(p.lakehouse.tables, p.settings, ALL_TABLES)) == []
    commits = p.history()
    run = p.load(DAY)
    assert run.success, run.failure()
    assert (p.digests(), p.history(), p.count(REFINED)) == (digests, commits, 10)
    assert all(report.failure is None for report in _maintain(p).values())

    p.deliver(DAY, events_on(DAY, 12))
    assert p.load(DAY).success
    # The lost catalog comes back: the other one's files look like orphans to it.
    other, p.settings, files = p.settings, own, _files(p)
    with pytest.raises(LakehouseError, match=f"belongs to another catalog than .* of catalog {other.catalog_name} "):
        _maintain(p)
    run = p.load(DAY)
    assert not run.success
    assert "belongs to another catalog than" in run.failure()
    assert "take it back: tidemark attach" in run.failure()
    assert _files(p) == files

    found, digests = attachable(p.lakehouse.tables, p.settings, ALL_TABLES), p.digests()
    behind = {one.table.key for one in found if not one.is_attached}
    assert REFINED in behind
    assert {one.table.key for one in attach(p.lakehouse.tables, p.settings, found)} == behind
    run = p.load(DAY)
    assert run.success, run.failure()
    assert (p.digests(), p.count(REFINED)) == (digests, 12)
    assert all(report.failure is None for report in _maintain(p).values())
    p.settings = other
    assert "belongs to another catalog than" in p.load(DAY).failure()


def _another_mark() -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "lake": str(uuid.uuid4()), "format": FORMAT}


def test_catalog_and_warehouse_tell_whether_they_belong_together(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: mistyped, missing, foreign, half-written marks. Outcome: only mismatches are refused."""
    fresh = pipeline()
    _look(fresh)
    marker = Path(fresh.settings.warehouse_url) / "_tidemark" / MARKER
    assert not marker.exists()
    marker.parent.mkdir()
    marker.write_text(json.dumps(_another_mark()))
    _look(fresh, Purpose.BEGIN)
    _look(fresh)

    p = _loaded(pipeline)
    marker = Path(p.settings.warehouse_url) / "_tidemark" / MARKER
    known = marker.read_text()
    own = p.settings
    p.change(warehouse_url=str(tmp_path / "mistyped"))
    with pytest.raises(LakehouseError, match=r"is not the warehouse of catalog .*Check TIDEMARK_WAREHOUSE_URL"):
        _look(p, Purpose.BEGIN)
    assert not (tmp_path / "mistyped" / "_tidemark").exists()
    p.settings = own
    marker.write_text(json.dumps(_another_mark()))
    with pytest.raises(LakehouseError, match="belongs to another catalog than"):
        _look(p, Purpose.BEGIN)
    marker.write_text("{")
    with pytest.raises(LakehouseError, match="is no identity of a warehouse"):
        _look(p)
    # A mark without a ledger: the ledger that knows the lake is accepted, an empty one is not.
    before = json.dumps({name: json.loads(known)[name] for name in ("id", "lake", "catalog", "format")})
    marker.write_text(before)
    own_ledger = p.ledger
    with closing(Ledger(f"sqlite:///{tmp_path}/empty.db")) as p.ledger:
        for purpose in (Purpose.LOOK, Purpose.KEEP):
            with pytest.raises(LedgerError, match=r"is not the ledger of this lake, whose records it does not hold"):
                _look(p, purpose)
    p.ledger = own_ledger
    assert marker.read_text() == before
    _look(p, Purpose.KEEP)
    names = ("id", "lake", "place", "ledger", "format")
    assert [json.loads(marker.read_text())[name] for name in names] == [json.loads(known)[name] for name in names]
    # A first load died after it named the ledger in the mark, before the ledger knew the lake.
    with closing(sqlite3.connect(p.settings.catalog_url.removeprefix("sqlite:///"))) as database:
        database.execute("DELETE FROM tidemark_lake WHERE number = 1")
        database.commit()
    _look(p, Purpose.BEGIN)
    assert p.ledger.lake.lake() == json.loads(known)["lake"]
    marker.unlink()
    _look(p)
    assert not marker.exists()
    _look(p, Purpose.KEEP)
    assert json.loads(marker.read_text())["id"] == json.loads(known)["id"]
    marker.unlink()
    with closing(sqlite3.connect(p.settings.catalog_url.removeprefix("sqlite:///"))) as database:
        database.execute("DELETE FROM iceberg_namespace_properties WHERE property_key = 'tidemark.warehouse-id'")
        database.commit()
    assert p.load(DAY).success
    assert marker.exists()
    moved = Path(p.settings.warehouse_url).rename(tmp_path / "not mounted")
    with pytest.raises(LakehouseError, match="is not in the warehouse"):
        _maintain(p)
    moved.rename(p.settings.warehouse_url)
    _look(p)


def test_no_table_is_created_where_anything_lies(pipeline: Any) -> None:
    """Outcome: leftovers of a dead creation are no obstacle; a forgotten table's files refuse load and maintenance."""
    p: Pipeline = pipeline()
    place = Path(p.settings.warehouse_url) / REFINED / "metadata"
    place.mkdir(parents=True)
    died = {"format-version": 2, "table-uuid": str(uuid.uuid4()), "last-sequence-number": 0, "last-updated-ms": 1}
    (place / "00000-died.metadata.json").write_text(json.dumps(died))
    (place / "00000-broken.metadata.json").write_text('{"format')
    p.deliver(DAY, events_on(DAY, 10))
    run = p.load(DAY)
    assert run.success, run.failure()

    p.spark.sql(f"DROP TABLE {p.lakehouse.identifier(REFINED_EVENTS)}")
    files = _files(p)
    run = p.load(DAY)
    assert not run.success
    assert "refined.events: is not known to the catalog, while its place holds files" in run.failure()
    with pytest.raises(LakehouseError, match=r"refined/events.* does not know"):
        _maintain(p)
    assert _files(p) == files
    (one,) = attach(p.lakehouse.tables, p.settings, attachable(p.lakehouse.tables, p.settings, ALL_TABLES))
    assert one.table.key == REFINED
    assert p.load(DAY).success
    assert p.count(REFINED) == 10


def test_orphans_that_history_does_not_explain_stay(pipeline: Any) -> None:
    """Outcome: one orphan goes alone; foreign files and many orphans are named; a higher bound removes the latter."""
    p = _loaded(pipeline)
    warehouse = Path(p.settings.warehouse_url)
    newest = max((warehouse / REFINED / "metadata").glob("*.metadata.json"))
    foreign = json.loads(newest.read_text()) | {"table-uuid": str(uuid.uuid4())}
    (newest.parent / "00009-foreign.metadata.json").write_text(json.dumps(foreign))
    bulk = [an_orphan_below(warehouse / RAW) for _ in range(12)]
    single = an_orphan_below(warehouse / "aggregates/event_counts")
    for path in (*bulk, single, an_orphan_below(warehouse / REFINED)):
        path.write_bytes(b"x")
    _grow_old(p)
    files = _files(p)

    told = _maintain(p, is_dry_run=True)
    assert (len(told[RAW].orphans), len(told["aggregates/event_counts"].orphans)) == (12, 1)
    assert _files(p) == files
    reports = _maintain(p)

    failures = {key: str(report.failure) for key, report in reports.items() if report.failure is not None}
    assert set(failures) == {RAW, REFINED}
    assert "its folder also holds the files of another table of this name" in failures[REFINED]
    assert "no snapshot knows 12 of the" in failures[RAW]
    assert set(files) - set(_files(p)) == {str(single)}
    with pytest.raises(LakehouseError, match="holds the files of 2 tables"):
        attachable(p.lakehouse.tables, p.settings, ALL_TABLES)
    p.change(max_orphan_share=1.0)
    _maintain(p)
    assert not any(path.exists() for path in bulk)
    assert p.load(DAY).success
    assert p.count(RAW) == 10


def test_a_catalog_restored_from_a_backup_loads_on(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: catalog and ledger go back several loads. Outcome: equal digests; maintenance keeps the forgotten state."""
    p = _loaded(pipeline)
    catalog = p.settings.catalog_url.removeprefix("sqlite:///")
    backup, known = tmp_path / "backup.db", _metadata(p)
    with closing(sqlite3.connect(catalog)) as live, closing(sqlite3.connect(backup)) as copy:
        live.backup(copy)
    for hour in range(1, 8):
        p.deliver(DAY, events_on(DAY, 5, prefix=f"h{hour}"), hour=hour)
        assert p.load(DAY).success
    digests, files = p.digests(), _files(p)
    with closing(sqlite3.connect(backup)) as copy, closing(sqlite3.connect(catalog)) as live:
        copy.backup(live)
    assert p.count(REFINED) == 10
    forgotten = _metadata(p) - known
    with pytest.raises(LakehouseError, match=r"lake_\w+\.\S+: is known to the catalog at .*, while the newest"):
        attachable(p.lakehouse.tables, p.settings, ALL_TABLES)

    run = p.load(DAY)

    assert run.success, run.failure()
    assert p.digests() == digests
    assert p.count(REFINED) == 45
    # It looks like a catalog that still works elsewhere, until a day of silence.
    report = _maintain(p)[REFINED]
    assert "another catalog commits to it" in str(report.failure)
    assert (report.snapshots, report.orphans, report.compacted) == (0, (), ())
    _made(forgotten, timedelta(days=2))
    # Orphans by age, but an operator may want the forgotten state back.
    two_days_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    for path in Path(p.settings.warehouse_url).rglob("*.parquet"):
        os.utime(path, (two_days_ago, two_days_ago))
    reports = _maintain(p)
    assert all(report.failure is None for report in reports.values())
    assert "orphans are kept for 30 days" in reports[REFINED].note
    # The rewriting removed the checksums of the rewritten metadata.
    assert {path for path in files if not path.endswith(".metadata.json.crc")} <= set(_files(p))

    metadata = {path for path in _files(p) if path.endswith(".metadata.json")}
    _grow_old(p)
    p.change(max_orphan_share=1.0)
    reports = _maintain(p)
    left = {path for path in _files(p) if path.endswith(".metadata.json")}
    assert {path.removeprefix("file:") for path in reports[REFINED].metadata} <= metadata - left
    assert len(metadata - left) > 20
    assert p.count(REFINED) == 45
    assert p.load(DAY).success


def test_a_bucket_with_another_catalog(pipeline: Any, bucket: Any) -> None:
    """Scenario: an empty catalog meets a bucket. Outcome: refused without a change until attached."""
    p = _loaded(pipeline, warehouse_url=f"s3://{BUCKET}/warehouse")
    objects = {item.key: item.e_tag for item in bucket.objects.all()}
    assert f"warehouse/_tidemark/{MARKER}" in objects
    _with_another_catalog(p)
    run = p.load(DAY)
    assert not run.success
    assert "tidemark attach" in run.failure()
    assert {item.key: item.e_tag for item in bucket.objects.all()} == objects
    assert len(attach(p.lakehouse.tables, p.settings, attachable(p.lakehouse.tables, p.settings, ALL_TABLES))) == len(
        ALL_TABLES
    )
    assert p.load(DAY).success
    assert p.count(REFINED) == 10


def test_the_shell_refuses_shows_and_attaches(spark: Any, tmp_path: Path, capfd: Any) -> None:
    """Outcome: load, maintenance and prove exit 1 with one sentence; attach takes the lake only by its owner's name."""
    shell = InThisProcess(tmp_path)
    shell.deliver(DAY, a_body(events_on(DAY, 12)))
    span = ("--from", str(DAY), "--to", str(DAY))
    load = ("load", "--source", "regular", *span)
    assert shell(*load).returncode == 0
    owner = shell.environment
    shell.environment = owner | {
        "TIDEMARK_CATALOG_NAME": f"lake_{uuid.uuid4().hex[:8]}",
        "TIDEMARK_LEDGER_URL": f"sqlite:///{tmp_path}/ledger.db",
    }
    for words in (load, ("maintenance",), ("maintenance", "--dry-run"), ("verify", *span)):
        done = shell(*words)
        assert done.returncode == 1, done.stdout + done.stderr
        # A job's own words go to the descriptor, past the runner.
        said = " ".join((done.stderr + capfd.readouterr().err).split())
        # A job judges its ledger's runs before it opens a table.
        refusal = "does not know, and nothing" if words[0] == "verify" else "is not the ledger of this lake"
        assert (refusal in said, said.count("nothing was touched")) == (True, 1), said
        assert "tidemark attach" in said
        assert "Traceback" not in said
    shown = shell("attach")
    assert shown.returncode == 0, shown.stderr
    assert (
        f"the lake is of catalog {owner['TIDEMARK_CATALOG_NAME']} (sqlite:///{tmp_path}/catalog.db): marked 20"
        in shown.stdout
    )
    assert "7 tables can be attached" in shown.stdout
    for words in (("--apply",), ("--apply", "--ledger", "--take", shell.environment["TIDEMARK_CATALOG_NAME"])):
        refused = shell("attach", *words)
        assert (refused.returncode, "the lake is of catalog" in refused.stderr) == (2, True), refused.stderr
    taken, mine = ("attach", "--apply", "--ledger", "--take"), shell.environment
    for environment, name, tables in ((mine, owner, 7), (owner, mine, 0), (mine, owner, 0)):
        shell.environment = environment
        done = shell(*taken, name["TIDEMARK_CATALOG_NAME"])
        assert done.returncode == 0, done.stderr
        assert f"{tables} tables attached" in done.stdout
        assert "which days were final" in done.stdout
    assert "nothing to attach" in shell("attach").stdout
    assert shell(*load).returncode == 0
    assert shell("maintenance").returncode == 0
    shell.environment |= {
        "TIDEMARK_CATALOG_NAME": f"lake_{uuid.uuid4().hex[:8]}",
        "TIDEMARK_WAREHOUSE_URL": f"file://{tmp_path}/empty",
    }
    done = shell("maintenance")
    assert done.returncode == 1
    assert "is the ledger of another lake" in " ".join((done.stderr + capfd.readouterr().err).split())
    shell.environment |= {
        "TIDEMARK_CATALOG_NAME": f"lake_{uuid.uuid4().hex[:8]}",
        "TIDEMARK_LEDGER_URL": f"sqlite:///{tmp_path}/empty.db",
    }
    for words, said in (
        (("maintenance",), "knows none of our tables"),
        (("attach",), "holds no metadata of our tables"),
    ):
        done = shell(*words)
        assert done.returncode == 1
        assert said in " ".join((done.stderr + capfd.readouterr().err).split())
    assert not list((tmp_path / "empty").rglob("*.metadata.json"))
