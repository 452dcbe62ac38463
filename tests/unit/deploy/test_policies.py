"""Each policy file grants its work's requests, refuses the rest, and is the documented one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from resources.ledger.store import Ledger
from tests.support.builders import a_body, events_on
from tests.support.policies import FOLDER, Asked, database_of, policy, recorded_requests, refused, unneeded
from tests.support.postgres import Server, a_postgres
from tests.support.s3 import BUCKET

ALL = sorted(path.stem for path in FOLDER.glob("*.json"))
PLACE = f"arn:aws:s3:::{BUCKET}"
REFINED = "warehouse/refined/events/data/a.parquet"
RECOVERED = "exports/10001-backfill/10001-backfill_2026-02-02_4#0.json.gz"


def test_policies_grant_no_more_than_their_place() -> None:
    """No access beyond landing and warehouse, no listing of a whole bucket, no other services."""
    assert ALL == ["s3-inspect", "s3-load", "s3-recover", "s3-split"]
    for name in ALL:
        grants = policy(name)
        for action in {grant.action for grant in grants}:
            for key in ("other/x", "warehouse-2/x", "exports-2/x", "x"):
                assert refused(grants, [Asked(action, f"{PLACE}/{key}")]), (name, action, key)
        assert refused(grants, [Asked("s3:ListBucket", PLACE, prefix) for prefix in ("", "other/")])
        assert all(grant.action.startswith("s3:") for grant in grants)


@pytest.mark.parametrize(
    ("name", "may_write"),
    [("s3-load", {REFINED}), ("s3-recover", {RECOVERED}), ("s3-split", {RECOVERED}), ("s3-inspect", set())],
)
def test_each_writes_its_own_place_alone(name: str, may_write: set[str]) -> None:
    keys = {REFINED, RECOVERED, "exports/10001/10001_2026-02-02_4#0.json.gz"}
    grants = policy(name)
    assert {key for key in keys if not refused(grants, [Asked("s3:PutObject", f"{PLACE}/{key}")])} == may_write


def test_the_evaluator_names_what_is_refused_and_what_is_granted_for_nothing() -> None:
    asked = [Asked("s3:GetObject", f"{PLACE}/exports/a"), Asked("s3:PutObject", f"{PLACE}/exports/a")]
    assert refused(policy("s3-load"), asked) == [f"s3:PutObject {PLACE}/exports/a"]
    written = [f"WriteRecovered s3:{verb}Object" for verb in ("Get", "Put")]
    assert unneeded(policy("s3-recover"), asked) == ["ListLanding s3:ListBucket", *written]


def _make_ledger(url: str) -> None:
    with closing(Ledger(url)) as ledger:
        assert ledger.engine.url


@pytest.mark.slow
def test_looking_needs_no_right_to_write(spark: Any, bucket: Any, tmp_path: Path) -> None:
    """Scenario: read-only commands on buckets. Outcome: the policy to inspect is enough."""
    bucket.put_object(Key="exports/10001/10001_2026-02-02_10#1.json.gz", Body=a_body(events_on(date(2026, 2, 2), 3)))
    bucket.put_object(Key="warehouse/refined/events/metadata/00000-x.metadata.json", Body=b"{}")
    told = {
        "TIDEMARK_LANDING_URL": f"s3://{BUCKET}/exports",
        "TIDEMARK_WAREHOUSE_URL": f"s3://{BUCKET}/warehouse",
        "TIDEMARK_CATALOG_URL": f"sqlite:///{tmp_path}/c.db",
        "TIDEMARK_CATALOG_NAME": f"lake_{uuid.uuid4().hex[:8]}",
        "TIDEMARK_PROJECTS": "10001",
        "DAGSTER_HOME": str(tmp_path),
    }
    _make_ledger(told["TIDEMARK_CATALOG_URL"])
    with recorded_requests(tmp_path) as requests:
        # `doctor` asks a bucket for its time by an object that it deletes again, and so needs a load's rights.
        for words in (("status",), ("attach",), ("recover", "--from", "2026-02-02", "--to", "2026-02-02", "--dry-run")):
            done = CliRunner().invoke(app, words, env=told)
            assert done.exit_code in (0, 1), done.output
        asked = requests.rights()
    assert refused(policy("s3-inspect"), asked) == []
    assert unneeded(policy("s3-inspect"), asked) == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with a_postgres("superuser") as found:
        database_of(found, "tidemark", "tidemark", "tidemark_reader")
        database_of(found, "dagster", "dagster")
        yield found


def _url(server: Server, role: str, database: str = "tidemark") -> str:
    return f"postgresql://{role}:word@127.0.0.1:{server.port}/{database}"


def _refusal(server: Server, role: str, statement: str, database: str = "tidemark") -> str:
    engine = sa.create_engine(_url(server, role, database).replace("postgresql:", "postgresql+psycopg2:"))
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(statement))
        return ""
    except sa.exc.DBAPIError as error:
        return str(error.orig)
    finally:
        engine.dispose()


def test_the_role_that_loads_makes_its_tables_and_nothing_else(server: Server, tmp_path: Path) -> None:
    """Outcome: the loading role has its ledger, the other reads it; neither leaves its schema, database or rank."""
    _make_ledger(_url(server, "tidemark"))
    told = {"TIDEMARK_CATALOG_URL": _url(server, "tidemark_reader"), "TIDEMARK_PROJECTS": "10001"}
    places = {"TIDEMARK_LANDING_URL": str(tmp_path), "TIDEMARK_WAREHOUSE_URL": str(tmp_path / "w")}
    for words in (("status",), ("changes", "--since", "2026-02-02"), ("report", "--out", str(tmp_path / "page.html"))):
        done = CliRunner().invoke(app, words, env={**told, **places, "DAGSTER_HOME": str(tmp_path)})
        assert done.exit_code == 0, done.output
    for statement in (
        "DELETE FROM tidemark_schema",
        "SET default_transaction_read_only = off; DELETE FROM tidemark_schema",
        "SET default_transaction_read_only = off; CREATE TABLE x (y INT)",
        "SET default_transaction_read_only = off; CREATE TABLE public.x (y INT)",
    ):
        said = _refusal(server, "tidemark_reader", statement)
        assert "read-only transaction" in said or "permission denied" in said, (statement, said)
    for role in ("tidemark", "tidemark_reader"):
        for statement in (
            "CREATE TABLE public.x (y INT)",
            "CREATE SCHEMA x",
            "CREATE ROLE x",
            "SELECT * FROM pg_authid",
        ):
            said = _refusal(server, role, statement)
            assert "permission denied" in said or "read-only transaction" in said, (role, statement, said)
        assert "permission denied for database" in _refusal(server, role, "SELECT 1", "dagster")
    assert "permission denied for database" in _refusal(server, "dagster", "SELECT 1")
    assert _refusal(server, "dagster", "CREATE TABLE runs (id INT)", "dagster") == ""


def test_documents_name_every_policy() -> None:
    root = FOLDER.parents[1]
    text = "".join((root / "docs" / name).read_text("utf-8") for name in ("deployment.md", "security.md"))
    for path in FOLDER.iterdir():
        assert f"deploy/policies/{path.name}" in text, path.name
    for path in FOLDER.glob("*.json"):
        assert {one["Effect"] for one in json.loads(path.read_text("utf-8"))["Statement"]} == {"Allow"}
