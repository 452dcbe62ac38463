"""The session's and the Iceberg catalog's configuration from the settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from resources.publishing import Promise, promise_of
from resources.spark.jars import JARS, default_jars_dir, jvm_options
from resources.spark.session import catalog_config, engine_config

_BOUNDS = {"socketTimeout": "300", "tcpKeepAlive": "true"}


@pytest.mark.parametrize(
    ("url", "jdbc", "told"),
    [
        ("postgresql://10.0.0.5/lake", "jdbc:postgresql://10.0.0.5:5432/lake", _BOUNDS),
        (
            "postgresql://db/lake?socketTimeout=9",
            "jdbc:postgresql://db:5432/lake?socketTimeout=9",
            {"tcpKeepAlive": "true"},
        ),
        (
            "postgresql://tidemark:p%40ss%2F@db:6432/lake?sslmode=require&options=-csearch_path%3Dlake",
            "jdbc:postgresql://db:6432/lake?sslmode=require&options=-csearch_path%3Dlake",
            {"user": "tidemark", "password": "p@ss/", **_BOUNDS},
        ),
        ("sqlite:////data/catalog.db", "jdbc:sqlite:/data/catalog.db?journal_mode=WAL&busy_timeout=30000", {}),
    ],
)
def test_the_catalog_is_where_the_url_says(url: str, jdbc: str, told: dict[str, str], tmp_path: Path) -> None:
    """Outcome: the JVM gets TLS and timeouts, and the password never in the address, which errors and logs repeat."""
    settings = Settings(catalog_url=url, warehouse_url=f"file://{tmp_path}", catalog_name="lake")

    config = catalog_config(settings)

    assert config["spark.sql.catalog.lake.uri"] == jdbc
    prefix = "spark.sql.catalog.lake.jdbc."
    found = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    assert {key: value for key, value in found.items() if key != "schema-version"} == told


def test_a_rest_catalog_is_where_its_address_says(tmp_path: Path) -> None:
    """Outcome: the JVM gets no database, but the address and the warehouse; likewise for a bucket."""
    for warehouse in (f"file://{tmp_path}", "s3://lake/tidemark"):
        settings = Settings(
            catalog_url="https://catalog.internal/api", ledger_url="sqlite:////data/ledger.db", warehouse_url=warehouse
        )
        config = catalog_config(settings)
        assert config["spark.sql.catalog.lake.type"] == "rest"
        assert config["spark.sql.catalog.lake.uri"] == "https://catalog.internal/api"
        assert config["spark.sql.catalog.lake.warehouse"].startswith(("file:", "s3://lake/tidemark"))
        assert not [key for key in config if "jdbc" in key]
        assert promise_of(settings) is Promise.TABLE_BY_TABLE


def test_a_person_knows_better_of_a_rest_catalog_alone() -> None:
    """Outcome: an operator's values win for REST; a database keeps ours, and gets the remaining ones."""
    prefix, rest, database = "spark.sql.catalog.lake", "https://catalog.internal/api", "sqlite:////data/catalog.db"
    theirs = {prefix: "acme.Catalog", f"{prefix}.warehouse": "analytics", f"{prefix}.header.X-Tenant": "acme"}
    for url, wins in ((rest, True), (database, False)):
        config = catalog_config(
            Settings(
                catalog_url=url,
                ledger_url="sqlite:////data/ledger.db",
                warehouse_url="s3://lake/tidemark",
                spark_config=theirs | {f"{prefix}2.warehouse": "other"},
            )
        )
        assert config[prefix] == ("acme.Catalog" if wins else "org.apache.iceberg.spark.SparkCatalog")
        assert config[f"{prefix}.warehouse"] == ("analytics" if wins else "s3://lake/tidemark")
        assert config[f"{prefix}.header.X-Tenant"] == "acme"
        assert f"{prefix}2.warehouse" not in config


@pytest.mark.parametrize(
    ("url", "ledger", "reason"),
    [
        ("https://catalog.internal/api", None, "a REST catalog holds no ledger"),
        ("https://catalog.internal/api", "https://catalog.internal/api", "use sqlite"),
        ("http://catalog.internal/api", "sqlite:////data/l.db", "a REST catalog is https://"),
        ("https://me:secret@catalog.internal/api", "sqlite:////data/l.db", "a REST catalog is https://"),
        ("https://catalog.internal/api?token=secret", "sqlite:////data/l.db", "a REST catalog is https://"),
        ("https://", "sqlite:////data/l.db", "a REST catalog is https://"),
    ],
)
def test_what_is_no_rest_catalog_is_refused_by_name(
    url: str, ledger: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CATALOG_URL", url)
    if ledger is not None:
        monkeypatch.setenv("TIDEMARK_LEDGER_URL", ledger)
    with pytest.raises(SettingsError, match=reason) as caught:
        load_settings()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("master", "config", "host"),
    [
        ("local[*]", {}, "127.0.0.1"),
        ("spark://spark.internal:7077", {}, None),
        ("k8s://https://cluster", {"spark.driver.host": "driver.internal"}, "driver.internal"),
    ],
)
def test_workers_elsewhere_can_reach_the_driver(master: str, config: dict[str, str], host: str | None) -> None:
    """Outcome: only on one machine the driver listens for itself alone."""
    found = engine_config(Settings(spark_master=master, spark_config=config))
    assert found.get("spark.driver.host") == host
    assert ("spark.driver.bindAddress" in found) == master.startswith("local")


def test_jars_lie_where_an_archive_of_classes_can_hold_them(tmp_path: Path) -> None:
    """Outcome: in one process the jars are on the class path, an operator's follow; a cluster is sent the jars."""
    for jar in JARS:
        (tmp_path / jar.file_name).touch()
    ours = [str(tmp_path / jar.file_name) for jar in JARS]
    theirs = {"spark.jars": "their.jar", "spark.driver.extraClassPath": "/their/folder"}
    assert jvm_options(tmp_path) == ""
    (tmp_path / "classes.jsa").touch()
    found = engine_config(Settings(jars_dir=tmp_path, spark_master="local[4]"))
    assert (found["spark.driver.extraClassPath"], found["spark.jars"]) == (":".join(ours), "")
    assert f"-XX:SharedArchiveFile={tmp_path}/classes.jsa" in found["spark.driver.defaultJavaOptions"]
    found = engine_config(Settings(jars_dir=tmp_path, spark_master="local", spark_config=theirs))
    assert (found["spark.driver.extraClassPath"], found["spark.jars"]) == (
        ":".join([*ours, "/their/folder"]),
        "their.jar",
    )
    for elsewhere in ("spark://spark.internal:7077", "local-cluster[2,1,1024]"):
        found = engine_config(Settings(jars_dir=tmp_path, spark_master=elsewhere))
        assert found["spark.jars"] == ",".join(ours)
        assert "SharedArchiveFile" not in str(found)
        # An executor would look for the class before the jar has reached it.
        assert "spark.hadoop.fs.file.impl" not in found


def test_an_archive_of_classes_that_others_may_write_is_not_given_to_a_jvm(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    archive.touch(0o444)
    tmp_path.chmod(0o700)
    assert str(archive) in jvm_options(tmp_path)
    for place, rights in ((archive, 0o666), (tmp_path, 0o777)):
        before = place.stat().st_mode
        place.chmod(rights)
        assert jvm_options(tmp_path) == ""
        place.chmod(before)
    assert str(archive) in jvm_options(tmp_path)


def test_nothing_that_a_person_sets_moves_the_zone() -> None:
    """Outcome: an operator's JVM options are kept, and UTC comes last."""
    theirs = {
        "spark.driver.extraJavaOptions": "-Xss8m -Duser.timezone=America/New_York",
        "spark.executor.defaultJavaOptions": "-Dhttps.proxyHost=proxy",
        "spark.sql.session.timeZone": "America/New_York",
    }
    found = engine_config(Settings(spark_config=theirs))
    assert found["spark.driver.extraJavaOptions"] == "-Xss8m -Duser.timezone=America/New_York -Duser.timezone=UTC"
    assert found["spark.driver.defaultJavaOptions"] == f"{jvm_options(default_jars_dir())} -Duser.timezone=UTC".strip()
    assert found["spark.executor.defaultJavaOptions"] == "-Dhttps.proxyHost=proxy -Duser.timezone=UTC"
    # Spark's defaults file may hold them, and any value here would hide these.
    assert "spark.executor.extraJavaOptions" not in found
    assert found["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize("config", [{}, {"spark.hadoop.fs.s3a.secret.key": "kept"}])
def test_without_java_the_engine_says_so(config: dict[str, str], tmp_path: Path) -> None:
    """Outcome: without Java, one sentence instead of an exited gateway, also with a secret among Spark's settings."""
    program = (
        "from pipeline_assets.domain.errors import EngineError\n"
        "from pipeline_assets.domain.settings import Settings\n"
        "from resources.spark.session import spark_resource\n"
        "try:\n"
        f"    spark_resource(Settings(spark_config={config!r})).spark_session\n"
        "except EngineError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"Java: is not in JAVA_HOME ({tmp_path}). Install Java 17 or 21")
