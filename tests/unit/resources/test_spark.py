"""The session's and the Iceberg catalog's configuration, and jars: whole, with the pinned sum, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pipeline_assets.cli.terminal import PlainConsole, downloads_shown
from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from resources.publishing import Promise, promise_of
from resources.spark import jars
from resources.spark.jars import JARS, Jar, JarError, available, default_jars_dir, fetch, jars_folder, jvm_options
from resources.spark.session import catalog_config, engine_config, spark_resource
from tests.support.s3 import served

_BOUNDS = {"socketTimeout": "300", "tcpKeepAlive": "true"}
_REST = "https://catalog.internal/api"


@pytest.mark.parametrize(("url", "jdbc", "told"), [
    ("postgresql://10.0.0.5/lake", "jdbc:postgresql://10.0.0.5:5432/lake", _BOUNDS),
    ("postgresql://db/lake?socketTimeout=9", "jdbc:postgresql://db:5432/lake?socketTimeout=9", {"tcpKeepAlive": "true"}),
    ("postgresql://tidemark:p%40ss%2F@db:6432/lake?sslmode=require&options=-csearch_path%3Dlake",
     "jdbc:postgresql://db:6432/lake?sslmode=require&options=-csearch_path%3Dlake",
     {"user": "tidemark", "password": "p@ss/", **_BOUNDS}),
    ("sqlite:////data/catalog.db", "jdbc:sqlite:/data/catalog.db?journal_mode=WAL&busy_timeout=30000", {}),
])  # fmt: skip
def test_the_catalog_is_where_the_url_says(url: str, jdbc: str, told: dict[str, str], tmp_path: Path) -> None:
    """Outcome: the JVM gets TLS and timeouts, and the password never in the address, which errors and logs repeat."""
    config = catalog_config(Settings(catalog_url=url, warehouse_url=f"file://{tmp_path}", catalog_name="lake"))
    assert config["spark.sql.catalog.lake.uri"] == jdbc
    prefix = "spark.sql.catalog.lake.jdbc."
    found = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    assert {key: value for key, value in found.items() if key != "schema-version"} == told


def test_a_rest_catalog_is_where_its_address_says(tmp_path: Path) -> None:
    """Outcome: the JVM gets no database, but the address and the warehouse; likewise for a bucket."""
    for warehouse in (f"file://{tmp_path}", "s3://lake/tidemark"):
        settings = Settings(catalog_url=_REST, ledger_url="sqlite:////data/ledger.db", warehouse_url=warehouse)
        config = catalog_config(settings)
        assert [config[f"spark.sql.catalog.lake.{name}"] for name in ("type", "uri")] == ["rest", _REST]
        assert config["spark.sql.catalog.lake.warehouse"].startswith(("file:", "s3://lake/tidemark"))
        assert not [key for key in config if "jdbc" in key]
        assert promise_of(settings) is Promise.TABLE_BY_TABLE


def test_a_person_knows_better_of_a_rest_catalog_alone() -> None:
    """Outcome: an operator's values win for REST; a database keeps ours, and gets the remaining ones."""
    names = [f"spark.sql.catalog.lake{end}" for end in ("", ".warehouse", ".header.X-Tenant")]
    theirs, other = ["acme.Catalog", "analytics", "acme"], "spark.sql.catalog.lake2.warehouse"
    ours = ["org.apache.iceberg.spark.SparkCatalog", "s3://lake/tidemark", "acme"]
    given = dict(zip([*names, other], [*theirs, "other"], strict=True))
    places = {"ledger_url": "sqlite:////data/ledger.db", "warehouse_url": "s3://lake/tidemark"}
    for url, expected in ((_REST, theirs), ("sqlite:////data/catalog.db", ours)):
        config = catalog_config(Settings(catalog_url=url, spark_config=given, **places))
        assert [config[name] for name in names] == expected
        assert other not in config


@pytest.mark.parametrize(("url", "ledger", "reason"), [
    (_REST, None, "a REST catalog holds no ledger"),
    (_REST, _REST, "use sqlite"),
    *[(url, "sqlite:////data/l.db", "a REST catalog is https://") for url in (
        "http://catalog.internal/api", "https://me:secret@catalog.internal/api", f"{_REST}?token=secret", "https://"
    )],
])  # fmt: skip
def test_what_is_no_rest_catalog_is_refused_by_name(
    url: str, ledger: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CATALOG_URL", url)
    if ledger is not None:
        monkeypatch.setenv("TIDEMARK_LEDGER_URL", ledger)
    with pytest.raises(SettingsError, match=reason) as caught:
        load_settings()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("master", "config", "host"), [
    ("local[*]", {}, "127.0.0.1"),
    ("spark://spark.internal:7077", {}, None),
    ("k8s://https://cluster", {"spark.driver.host": "driver.internal"}, "driver.internal"),
])  # fmt: skip
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
    for config, paths, sent in (({}, ours, ""), (theirs, [*ours, "/their/folder"], "their.jar")):
        found = engine_config(Settings(jars_dir=tmp_path, spark_master="local[4]", spark_config=config))
        assert (found["spark.driver.extraClassPath"], found["spark.jars"]) == (":".join(paths), sent)
        assert f"-XX:SharedArchiveFile={tmp_path}/classes.jsa" in found["spark.driver.defaultJavaOptions"]
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
        "from pipeline_assets.domain.settings import Settings\n"
        "from resources.spark.session import spark_resource\n"
        f"spark_resource(Settings(spark_config={config!r})).spark_session\n"
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(PROJECT_ROOT)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = f"EngineError: Java: is not in JAVA_HOME ({tmp_path}). Install Java 17 or 21"
    assert said in done.stderr.splitlines()[-1]


BODY = bytes(range(256)) * 4096
JAR = Jar("org.example.deep", "thing", "1.2", hashlib.sha256(BODY).hexdigest())


@dataclass
class Repository:
    """A Maven repository with the test's answers, the last one again and again."""

    url: str = ""
    answers: list[str] = field(default_factory=lambda: ["whole"])
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setattr(jars, "_FIRST_PAUSE_SECONDS", 0)
    found = Repository()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            kind = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            body = b"" if kind.isdecimal() else b"<html>sign in</html>" if kind == "other" else BODY
            self.send_response(int(kind) if kind.isdecimal() else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:262_144] if kind == "cut" else body)

        def log_message(self, *_: object) -> None: ...

    with served(Handler) as url:
        found.url = f"{url}/mirror"
        yield found


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_jar_is_fetched_once_and_again_when_it_is_not_the_pinned_one(repository: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "jars"
    told, jar = io.StringIO(), folder / "thing-1.2.jar"
    with downloads_shown(PlainConsole(file=told, width=100)):
        assert fetch(folder, [JAR], url=f"{repository.url}/") == [jar]
    assert told.getvalue() == "fetching thing-1.2.jar (1 MiB)\n"
    assert repository.asked == ["/mirror/org/example/deep/thing/1.2/thing-1.2.jar"]
    assert fetch(folder, [JAR], url=repository.url) == []
    jar.write_bytes(BODY[:-1])
    assert fetch(folder, [JAR], url=repository.url) == [jar]
    assert (jar.read_bytes(), names_in(folder), len(repository.asked)) == (BODY, ["thing-1.2.jar"], 2)


@pytest.mark.parametrize("answers", [["cut", "cut", "whole"], ["503", "429", "whole"]])
def test_a_download_that_breaks_off_begins_anew(answers: list[str], repository: Repository, tmp_path: Path) -> None:
    repository.answers = list(answers)
    fetch(tmp_path, [JAR], url=repository.url)
    assert (tmp_path / "thing-1.2.jar").read_bytes() == BODY
    assert len(repository.asked) == 3


@pytest.mark.parametrize(("answer", "tries", "said"), [
    ("404", 1, "answered 404 Not Found"),
    ("403", 1, "answered 403 Forbidden"),
    ("other", 1, "sent something else than the pinned jar"),
    ("502", 5, "could not be reached (it answered 502)"),
])  # fmt: skip
def test_a_jar_that_cannot_be_had_is_one_sentence_and_leaves_what_was_there(
    answer: str, tries: int, said: str, repository: Repository, tmp_path: Path
) -> None:
    repository.answers = [answer]
    (tmp_path / "thing-1.2.jar").write_bytes(b"old")
    with pytest.raises(JarError) as refusal:
        fetch(tmp_path, [JAR], url=repository.url.replace("http://", "http://reader:a-mirrors-password@"))
    told = refusal.value
    assert (told.subject, said in told.reason, "password" in str(told)) == ("thing-1.2.jar", True, False)
    assert "TIDEMARK_JARS_URL names a mirror" in told.hint
    assert (len(repository.asked), names_in(tmp_path)) == (tries, ["thing-1.2.jar"])
    assert (tmp_path / "thing-1.2.jar").read_bytes() == b"old"


def test_without_a_network_the_end_is_one_sentence(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("http://127.0.0.1:9/maven2", "http://no-such-host.invalid/maven2"):
        with pytest.raises(JarError, match="could not be reached"):
            fetch(tmp_path, [JAR], url=url)
    monkeypatch.setattr(jars, "_LARGEST_BYTES", 1000)
    with pytest.raises(JarError, match="sends more than"):
        fetch(tmp_path, [JAR], url=repository.url)
    assert names_in(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(JarError, match="cannot be written"):
        fetch(tmp_path / "file", [JAR], url=repository.url)


def test_what_killed_downloads_left_goes_after_a_day(repository: Repository, tmp_path: Path) -> None:
    parts = [f".thing-1.2.jar.{letter * 32}.part" for letter in "ab"]
    old, young, *others = (tmp_path / name for name in (*parts, ".thing-1.2.jar.mine.part", "mine.part"))
    long_ago = time.time() - 90_000
    for path in (old, young, *others):
        path.touch()
        os.utime(path, (long_ago, long_ago))
    os.utime(young)
    fetch(tmp_path, [JAR], url=repository.url)
    assert names_in(tmp_path) == sorted([young.name, *(one.name for one in others), "thing-1.2.jar"])


def test_a_cache_is_filled_at_first_use_and_a_folder_that_was_named_is_not(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: only the cache is filled by itself, once; other folders are refused with the command that fills them."""
    monkeypatch.setattr(jars, "JARS", (JAR, replace(JAR, name="other")))
    monkeypatch.setattr(jars, "default_jars_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(jars, "is_clone", lambda: False)
    settings = Settings(jars_url=repository.url)
    expected = [tmp_path / "cache" / name for name in ("thing-1.2.jar", "other-1.2.jar")]
    assert available(settings) == available(settings) == expected
    assert all(path.read_bytes() == BODY for path in expected)
    assert len(repository.asked) == 2
    with pytest.raises(JarError, match=r"is missing.*tidemark setup"):
        available(Settings(jars_url=repository.url, jars_dir=tmp_path / "named"))
    monkeypatch.setattr(jars, "is_clone", lambda: True)
    expected[0].unlink()
    with pytest.raises(JarError, match="is missing"):
        available(settings)
    assert len(repository.asked) == 2


def test_no_jvm_starts_on_a_jar_that_somebody_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a jar of the right name and size, with another byte. Outcome: it is named, and no session is made."""
    monkeypatch.setattr(jars, "JARS", (JAR,))
    monkeypatch.setattr("resources.spark.session.started", lambda *_: pytest.fail("a JVM starts"))
    path = tmp_path / "thing-1.2.jar"
    path.write_bytes(BODY[:-1] + b"x")
    engine = spark_resource(Settings(jars_dir=tmp_path, spark_master="local"))
    with pytest.raises(JarError, match=rf"{path}: is not the jar that is pinned.*tidemark setup"):
        _ = engine.spark_session


def test_the_cache_of_a_user_has_a_folder_for_exactly_these_jars(tmp_path: Path) -> None:
    """Scenario: the code outside of a clone, as from a wheel. Outcome: the folder follows XDG_CACHE_HOME and the pins."""
    assert jars_folder(Settings()) == default_jars_dir() == PROJECT_ROOT / ".jars"
    assert jars_folder(Settings(jars_dir=tmp_path)) == tmp_path
    for name in ("pipeline_assets", "resources"):
        (tmp_path / name).symlink_to(PROJECT_ROOT / name)
    program = (
        "import json, pathlib\n"
        # A link leads back to the clone, but the code's unresolved place counts.
        "pathlib.Path.resolve = lambda path, strict=False: path.absolute()\n"
        "from resources.spark import jars\n"
        "from dataclasses import replace\n"
        "first = jars.default_jars_dir()\n"
        "jars.JARS = (replace(jars.JARS[0], sha256='0' * 64), *jars.JARS[1:])\n"
        "print(json.dumps([str(first), str(jars.default_jars_dir())]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, other = (Path(path) for path in json.loads(done.stdout))
    assert first.parent == other.parent == tmp_path / "xdg" / "tidemark" / "jars"
    assert first != other
    assert len(JARS) == 5
