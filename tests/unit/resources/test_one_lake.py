"""Warehouse, catalog, ledger and tables' places are one lake, or only looks are allowed; without Spark."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.definitions import build_defs, run_job
from pipeline_assets.domain.errors import LakehouseError, LakehouseUnavailableError, LedgerError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.drill.sandbox import as_environment
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.tables.registry import ALL_TABLES, OPTIONAL_TABLES
from pipeline_assets.tables.table import Table
from resources.iceberg.catalog_at_rest import CatalogAtRest
from resources.iceberg.lake_identity import FORMAT, MARKER, NAMESPACE, PROPERTY, Mark, Purpose, is_one_lake, read_mark
from resources.iceberg.lake_objects import LakeObjects
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger, own_ledger
from tests.support.builders import PROJECT

ID, LAKE = str(uuid.uuid4()), str(uuid.uuid4())
TABLE = ALL_TABLES[0]
_SCHEMAS = [{"schema-id": 0, "fields": []}]
METADATA = {"location": "", "current-schema-id": 0, "schemas": _SCHEMAS, "current-snapshot-id": -1}


def _knows(settings: Settings, location: str, metadata: Path, table: Table = TABLE) -> None:
    """Let the catalog know this table alone, by a metadata file with this location."""
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text(json.dumps(METADATA | {"location": location}))
    namespace, _, name = table.identifier.rpartition(".")
    with closing(sqlite3.connect(settings.catalog_url.removeprefix("sqlite:///"))) as database:
        database.executescript(f"""
            CREATE TABLE IF NOT EXISTS iceberg_tables (catalog_name, table_namespace, table_name, metadata_location);
            CREATE TABLE IF NOT EXISTS iceberg_namespace_properties
                (catalog_name, namespace, property_key, property_value);
            DELETE FROM iceberg_tables;
            INSERT INTO iceberg_tables VALUES ('lake', '{namespace}', '{name}', 'file:{metadata}');
            INSERT INTO iceberg_namespace_properties VALUES ('lake', '{NAMESPACE}', '{PROPERTY}', '{ID}');
        """)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A lake whose parts name each other: one table, a catalog, its own ledger."""
    place = tmp_path / "production"
    settings = Settings(
        warehouse_url=str(place / "warehouse"), catalog_url=f"sqlite:///{place}/catalog.db", projects=(PROJECT,),
        ledger_url=f"sqlite:///{place}/ledger.db", landing_url=str(tmp_path / "landing"),
    )  # fmt: skip
    folder = place / "warehouse" / TABLE.identifier.replace(".", "/")
    folder.mkdir(parents=True)
    (tmp_path / "landing").mkdir()
    _knows(settings, f"file:{folder}", folder / "metadata" / "1.metadata.json")
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        ledger.lake.bind(LAKE)
        Mark(ID, LAKE).here(settings).of_ledger(ledger.lake.identity(), ledger.url).write(settings)
    return settings


def _is_one(settings: Settings, purpose: Purpose = Purpose.KEEP) -> bool:
    with closing(CatalogAtRest(settings)) as catalog, closing(Ledger(settings.ledger_database_url)) as ledger:
        known = catalog.namespace_properties(NAMESPACE)
        return is_one_lake(settings, known, lambda: catalog.outside(ALL_TABLES), purpose, ledger.lake)


def _elsewhere(settings: Settings, place: Path) -> Settings:
    old, names = settings.warehouse_url.removesuffix("/warehouse"), ("warehouse_url", "catalog_url", "ledger_url")
    return settings.model_copy(update={name: getattr(settings, name).replace(old, str(place)) for name in names})


def _copied(settings: Settings, tmp_path: Path) -> Settings:
    shutil.copytree(tmp_path / "production", tmp_path / "staging")
    return _elsewhere(settings, tmp_path / "staging")


def _remark(settings: Settings, **changes: Any) -> None:
    """Write the warehouse's mark anew, with these changes."""
    replace(read_mark(settings) or Mark("", ""), **changes).write(settings)


def _first_point(settings: Settings) -> tuple[str, str]:
    """Light and finding of the doctor's first point."""
    told = CliRunner().invoke(app, ("doctor", "--json"), env=as_environment(settings)).stdout
    first = json.loads(told)["points"][0]
    assert first["name"] == "one lake"
    return first["light"], first["found"]


def test_a_ledger_stays_with_its_lake_and_a_look_takes_none(ledger: Ledger) -> None:
    assert (ledger.lake.require(OURS), ledger.lake.require(None)) == (False, False)
    for _ in range(2):
        ledger.lake.bind(OURS)
    with pytest.raises(LedgerError, match=REFUSAL):
        ledger.lake.bind(THEIRS)
    for lake in (THEIRS, None):
        with pytest.raises(LedgerError, match=REFUSAL):
            ledger.lake.require(lake)
    assert ledger.lake.require(OURS)


def test_a_copy_may_be_looked_at_and_nothing_else(settings: Settings, tmp_path: Path) -> None:
    """Scenario: everything is copied; the original goes. Outcome: one sentence names both places; a link is the remedy."""
    assert _is_one(settings)
    copied = _copied(settings, tmp_path)
    assert _is_one(copied, Purpose.LOOK)
    refusal = rf"{copied.warehouse_url}: is a copy of a lake whose place is {settings.warehouse_url}, and nothing was touched\. "
    for _ in range(2):
        with pytest.raises(LakehouseError, match=refusal):
            _is_one(copied)
        shutil.rmtree(tmp_path / "production", ignore_errors=True)
    (tmp_path / "production").symlink_to(tmp_path / "staging")
    assert _is_one(copied)
    assert _is_one(settings)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_copy_with_a_mark_of_before_is_told_by_its_tables(settings: Settings, tmp_path: Path, is_gone: bool) -> None:
    copied = _copied(settings, tmp_path)
    _remark(copied, place=None)
    if is_gone:
        shutil.rmtree(tmp_path / "production")
    refusal = rf"is not the warehouse of catalog .*, whose tables lie in file:{tmp_path}/production"
    with pytest.raises(LakehouseError, match=refusal):
        _is_one(copied)


def test_a_table_that_writes_elsewhere_is_found_by_what_its_metadata_says(settings: Settings, tmp_path: Path) -> None:
    """Scenario: the catalog names a copied metadata file, which still has the original place."""
    copied = _copied(settings, tmp_path)
    _remark(copied, place=copied.warehouse_url)
    place = TABLE.identifier.replace(".", "/")
    metadata = Path(copied.warehouse_url, place, "metadata", "1.metadata.json")
    _knows(copied, f"file:{settings.warehouse_url}/{place}", metadata)
    with pytest.raises(LakehouseError, match="whose tables lie in"):
        _is_one(copied)


@pytest.mark.parametrize("spell", [
    lambda place: f"{place}/", lambda place: f"file://{place}", lambda place: f"{place}/../warehouse",
    lambda place: place.replace("/warehouse", "//warehouse"), lambda place: place.replace("production", "link"),
])  # fmt: skip
def test_other_spellings_of_one_place_go_on(settings: Settings, tmp_path: Path, spell: Callable[[str], str]) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "production")
    assert _is_one(settings.model_copy(update={"warehouse_url": spell(settings.warehouse_url)}))


def test_a_folder_of_the_warehouse_may_lie_on_another_disk(settings: Settings, tmp_path: Path) -> None:
    """Scenario: a namespace is linked to another disk; then all is copied. Outcome: one lake; the copy is none."""
    folder = Path(settings.warehouse_url) / NAMESPACE
    folder.rename(tmp_path / "disk")
    folder.symlink_to(tmp_path / "disk")
    assert _is_one(settings)
    with pytest.raises(LakehouseError, match="is a copy of a lake"):
        _is_one(_copied(settings, tmp_path))


def test_a_mark_that_names_no_place_is_completed_whoever_holds_the_ledger(settings: Settings) -> None:
    """Scenario: an older mark with an attached ledger. Outcome: uncertain for every run, and yellow for doctor."""
    _remark(settings, place=None)
    assert not _is_one(settings)
    light, found = _first_point(settings)
    assert (light, "has no mark that names" in found) == ("yellow", True)


def test_a_job_under_another_ledger_judges_no_run(settings: Settings, tmp_path: Path, monkeypatch: Any) -> None:
    """A copied ledger has old heartbeats: this Dagster's runs would look dead."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    alone = settings.model_copy(update={"ledger_url": None})
    with pytest.raises(LedgerError, match="is not the ledger of this lake"):
        run_job(alone, "daily_load", {}, {}, dg.LoggerDefinition(lambda _: logging.getLogger()))


def test_another_ledger_is_refused_until_the_mark_names_it(settings: Settings) -> None:
    """Scenario: a shell without TIDEMARK_LEDGER_URL. Outcome: runs and looks are refused, naming the lake's ledger."""
    alone, said = settings.model_copy(update={"ledger_url": None}), "is not the ledger of this lake"
    refusal = rf"catalog.db: {said}, which .* is {settings.ledger_url}, and nothing .*attach --ledger"
    for purpose in (Purpose.LOOK, Purpose.KEEP):
        with pytest.raises(LedgerError, match=refusal):
            _is_one(alone, purpose)
    with pytest.raises(LedgerError, match=refusal), own_ledger(alone):
        pass
    told = CliRunner().invoke(app, ("status",), env=as_environment(alone))
    assert (told.exit_code, said in told.stderr, told.stdout) == (1, True, "")
    light, found = _first_point(alone)
    assert (light, said in found) == ("red", True)
    with own_ledger(settings) as ledger:
        assert ledger.lake.lake() == LAKE


@pytest.mark.parametrize("name", ["heal", "regular_exports_arrived", "dead_runs"])
def test_a_sensor_under_another_ledger_starts_no_run(settings: Settings, name: str) -> None:
    """By an empty ledger every day would be due, and every running load dead."""
    defs = build_defs(settings.model_copy(update={"ledger_url": None}))
    needed = {"clock": Clock(), "landing": LandingStore.from_settings(settings, S3Resource())}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, definitions=defs, resources=needed) as context,
    ):
        ticked = defs.resolve_sensor_def(name).evaluate_tick(context)
    assert (ticked.run_requests, "is not the ledger of this lake" in str(ticked.skip_message)) == ([], True)


def test_the_doctor_compares_marks_and_places_before_all_else(settings: Settings, tmp_path: Path) -> None:
    def refused(seen: Settings, *words: str) -> None:
        light, found = _first_point(seen)
        assert (light, [said in found for said in words]) == ("red", [True] * len(words))

    light, found = _first_point(settings)
    assert (light, settings.warehouse_url in found) == ("green", True)
    refused(_copied(settings, tmp_path), "is a copy of a lake whose place is")
    _remark(settings, id=str(uuid.uuid4()), catalog="mistyped")
    refused(settings, "belongs to another catalog", "catalog mistyped (")
    refused(settings.model_copy(update={"catalog_name": "other"}), "does not know")
    # Dimensions are tables too, though only their own load creates them.
    _remark(settings, id=ID, catalog=settings.catalog_name)
    elsewhere = tmp_path / "elsewhere"
    _knows(settings, f"file:{elsewhere}", elsewhere / "metadata" / "1.metadata.json", OPTIONAL_TABLES[0])
    refused(settings, f"whose tables lie in file:{elsewhere}")


def test_a_warehouse_that_cannot_be_read_vouches_for_no_empty_ledger(settings: Settings, tmp_path: Path) -> None:
    """Scenario: an unreachable warehouse; then a mark that cannot be parsed, and an older one."""
    marker = Path(settings.warehouse_url) / "_tidemark" / MARKER
    empty = settings.model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/empty.db"})

    def only_the_lakes_own(error: type[Exception], match: str | None = None) -> None:
        with own_ledger(settings) as ledger:
            assert ledger.lake.lake() == LAKE
        with pytest.raises(error, match=match), own_ledger(empty):
            pass

    marker.rename(tmp_path / "away")
    marker.symlink_to(MARKER)
    only_the_lakes_own(LakehouseUnavailableError)
    marker.unlink()
    (tmp_path / "away").rename(marker)
    _remark(settings, ledger=None, place=None)
    only_the_lakes_own(LedgerError, "whose records it does not hold")
    marker.write_text("{")
    for one in (settings, empty):
        with pytest.raises(LakehouseError, match="is no identity of a warehouse"), own_ledger(one):
            pass


OURS, THEIRS = str(uuid.uuid4()), str(uuid.uuid4())
REFUSAL = r"is the ledger of another lake .*Check TIDEMARK_LEDGER_URL .*each lake needs a ledger of its own"


def test_a_ledger_has_one_identity_and_is_refused_where_the_mark_names_another(ledger: Ledger, tmp_path: Path) -> None:
    own = ledger.lake.identity()
    with closing(Ledger(ledger.url)) as again, closing(Ledger(f"sqlite:///{tmp_path}/other.db")) as other:
        assert again.lake.identity() == own
        mark = Mark(OURS, OURS).of_ledger(own, ledger.url)
        # The process that wrote the mark died before it bound the ledger.
        assert not ledger.lake.require(OURS, mark)
        ledger.lake.bind(OURS)
        assert ledger.lake.require(OURS, mark)
        for _ in range(2):
            said = f"is not the ledger of this lake, which has the identity {own} and is {ledger.url}"
            with pytest.raises(LedgerError, match=said):
                other.lake.require(OURS, mark)
            other.lake.bind(OURS)
            other.lake.identity()


def mark(settings: Settings, **fields: object) -> bytes:
    body = json.dumps({"id": ID, **fields}).encode()
    LakeObjects.of(settings).replace(MARKER, body)
    return body


def test_a_mark_tells_its_format_and_no_secret(settings: Settings) -> None:
    Mark(ID, ID).here(settings).of_ledger("L", "postgresql://me:secret@host/db?sslmode=require").write(settings)
    body = LakeObjects.of(settings).get(MARKER) or b""
    written = json.loads(body)
    assert (written["format"], written["lake"], written["place"]) == (FORMAT, ID, settings.warehouse_url)
    assert written["ledger_url"] == "postgresql://host/db"
    assert b"secret" not in body


@pytest.mark.parametrize(("written", "age", "hint"), [
    ({"format": FORMAT + 1, "added_by_then": {"id": 7}}, "a newer", "pip install --upgrade tidemark-pipeline"),
    ({"format": FORMAT - 1}, "an earlier", "into a new, empty warehouse"),
    ({}, "an earlier", "into a new, empty warehouse"),
])  # fmt: skip
def test_a_warehouse_of_another_format_is_refused_and_left_alone(
    settings: Settings, written: dict[str, object], age: str, hint: str
) -> None:
    body = mark(settings, lake=ID, **written)
    for ask in (read_mark, lambda known: is_one_lake(known, {PROPERTY: ID}, list, Purpose.LOOK, None)):
        with pytest.raises(LakehouseError) as refusal:
            ask(settings)
        assert refusal.value.subject.endswith(f"/_tidemark/{MARKER}")
        versions = f"(format {written.get('format', 1)}; this one knows {FORMAT})"
        assert refusal.value.reason == f"{age} Tidemark wrote this warehouse {versions}, and nothing was touched"
        assert hint in refusal.value.hint
    assert LakeObjects.of(settings).get(MARKER) == body


def test_a_mark_whose_format_is_no_number_is_no_mark(settings: Settings) -> None:
    mark(settings, format="new")
    with pytest.raises(LakehouseError, match="is no identity of a warehouse"):
        read_mark(settings)
