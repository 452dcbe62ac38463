"""Rules of the compose file: one-time jobs, and each service's own keys, roles and disk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.support.postgres import PASSWORD, Server, a_postgres
from tests.unit.deploy.test_files import COMPOSE, DEPLOY, SERVICES, ran

POLICIES = {"POLICIES": str(DEPLOY / "policies")}
DOCUMENTED = (PROJECT_ROOT / "docs/deployment.md").read_text("utf-8")


def _environment(name: str) -> dict[str, str]:
    return SERVICES[name].get("environment", {})


def _secrets(name: str) -> set[str]:
    return set(re.findall(r"\$\{(\w*(?:PASSWORD|USER))", json.dumps(_environment(name))))


def test_each_service_is_given_the_secrets_of_its_work_alone() -> None:
    store = {"OBJECTS_USER", "OBJECTS_PASSWORD"}
    assert {name: _secrets(name) for name in SERVICES} == {
        "postgres": {"POSTGRES_ADMIN_PASSWORD"},
        "databases": {"POSTGRES_ADMIN_PASSWORD", "CATALOG_PASSWORD", "DAGSTER_PASSWORD"},
        "objects": {"OBJECTS_ADMIN_USER", "OBJECTS_ADMIN_PASSWORD"},
        "buckets": {"OBJECTS_ADMIN_USER", "OBJECTS_ADMIN_PASSWORD", *store},
        "spark-master": set(),
        "spark-worker": store,
        "code-server": {"CATALOG_PASSWORD", "DAGSTER_PASSWORD", *store},
        "webserver": {"DAGSTER_PASSWORD"},
        "daemon": {"DAGSTER_PASSWORD"},
    }
    for name in ("code-server", "webserver", "daemon"):
        told = _environment(name)
        assert "://dagster:" in told["DAGSTER_POSTGRES_URL"]
        assert "://tidemark:" in told.get("TIDEMARK_CATALOG_URL", "://tidemark:")


def test_every_secret_of_the_file_is_documented() -> None:
    needed = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text("utf-8")))
    (block,) = re.findall(r"sets\n```sh\n(.*?)```", DOCUMENTED, re.DOTALL)
    assert set(re.findall(r"^(\w+)=", block, re.MULTILINE)) == needed


def test_no_secret_is_on_a_command_line() -> None:
    for service in SERVICES.values():
        words = json.dumps([service.get("command"), service.get("entrypoint"), service.get("healthcheck")])
        assert not re.search(r"PASSWORD|SECRET", words), words


@pytest.mark.parametrize("name", ["code-server", "spark-worker"])
def test_what_spills_spills_to_a_disk(name: str) -> None:
    assert not any(place.startswith("/tmp") for place in SERVICES[name].get("tmpfs", []))
    assert any(volume.endswith(":/tmp") for volume in SERVICES[name]["volumes"])


def test_a_database_that_is_being_made_is_not_taken_for_one_that_answers() -> None:
    """Until then, the image's server listens to its socket alone."""
    words = SERVICES["postgres"]["healthcheck"]["test"]
    assert words[words.index("-h") + 1] == "127.0.0.1"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with a_postgres("postgres") as server:
        yield server


def _make_databases(server: Server, **passwords: str) -> None:
    place = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres", "PGPASSWORD": PASSWORD}
    environment = {"PATH": f"{server.tools}:{os.environ['PATH']}", **place, **POLICIES, **passwords}
    done = ran("sh", DEPLOY / "compose/databases.sh", env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    assert not set(passwords.values()) & set((done.stdout + done.stderr).split())


def test_databases_have_roles_of_their_own(server: Server) -> None:
    """Scenario: the script runs again with an awkward new password. Outcome: each role has its own database alone."""
    _make_databases(server, CATALOG_PASSWORD="first", DAGSTER_PASSWORD="second")
    _make_databases(server, CATALOG_PASSWORD="it's \\ 'new'", DAGSTER_PASSWORD="second")
    place = {"host": "127.0.0.1", "port": server.port}
    for role, password in (("tidemark", "it's \\ 'new'"), ("dagster", "second")):
        opened = psycopg2.connect(**place, user=role, password=password, dbname=role)
        with closing(opened) as connection, connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE mine (x INT)")
            cursor.execute("SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
            assert cursor.fetchone() == (False,)
    for role, password, name in (
        ("tidemark", "first", "tidemark"), ("tidemark", "it's \\ 'new'", "dagster"), ("dagster", "second", "tidemark"),
    ):  # fmt: skip
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(**place, user=role, password=password, dbname=name)


_MC = """#!/bin/sh
echo "$*" >>"$TOLD/words"
case $* in
    "admin user add here") cat >>"$TOLD/user" ;;
    "admin policy create here "*) cp "$6" "$TOLD/$5" ;;
    "admin policy attach here "*) exit "${ATTACH:-0}" ;;
    "admin user info here "*) echo "PolicyName: ${POLICY_NAMES:-}" ;;
esac
"""


def _make_buckets(folder: Path, **more: str) -> int:
    (folder / "bin").mkdir(exist_ok=True)
    fake = folder / "bin" / "mc"
    fake.write_text(_MC)
    fake.chmod(0o755)
    environment = {"PATH": f"{fake.parent}:/usr/bin:/bin", "TOLD": str(folder), "TMPDIR": str(folder)}
    keys = {"OBJECTS_USER": "loads", "OBJECTS_PASSWORD": "of-the-user"}
    admin = {"MC_HOST_here": "http://a:of-the-admin@objects:9000"}
    return ran(
        "sh", DEPLOY / "compose/buckets.sh", env=environment | keys | admin | POLICIES | more, cwd="/"
    ).returncode


def test_the_user_of_the_store_has_the_rights_of_the_policies(tmp_path: Path) -> None:
    """In the code server's places; its keys are on no command line."""
    assert _make_buckets(tmp_path) == 0
    words = (tmp_path / "words").read_text()
    assert "of-the-" not in words
    assert (tmp_path / "user").read_text() == "loads\nof-the-user\n"
    told = _environment("code-server")
    landing, warehouse = (told[f"TIDEMARK_{name}_URL"].removeprefix("s3://") for name in ("LANDING", "WAREHOUSE"))
    for work in ("load", "recover"):
        assert f"admin policy attach here tidemark-{work} --user loads" in words
        expected = (DEPLOY / "policies" / f"s3-{work}.json").read_text("utf-8")
        for theirs, ours in (
            ("company-exports/analytics", landing), ("company-lake/tidemark", warehouse),
            ("company-exports", landing.partition("/")[0]), ("company-lake", warehouse.partition("/")[0]),
            ('"analytics/', f'"{landing.partition("/")[2]}/'),
        ):  # fmt: skip
            expected = expected.replace(theirs, ours)
        assert json.loads((tmp_path / f"tidemark-{work}").read_text()) == json.loads(expected)


def test_a_right_that_cannot_be_given_ends_the_start(tmp_path: Path) -> None:
    assert _make_buckets(tmp_path, ATTACH="1") == 1
    assert _make_buckets(tmp_path, ATTACH="1", POLICY_NAMES="tidemark-load,tidemark-recover") == 0
