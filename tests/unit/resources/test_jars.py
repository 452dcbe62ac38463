"""Jars come from a Maven repository over HTTP: whole, with the pinned sum, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline_assets.cli.terminal import PlainConsole, downloads_shown
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from resources.spark import jars
from resources.spark.jars import JARS, Jar, JarError, available, default_jars_dir, fetch, jars_folder
from resources.spark.session import spark_resource

BODY = bytes(range(256)) * 4096
JAR = Jar("org.example.deep", "thing", "1.2", hashlib.sha256(BODY).hexdigest())


@dataclass
class Repository:
    """A Maven repository with the test's answers, the last one again and again."""

    url: str
    answers: list[str] = field(default_factory=lambda: ["whole"])
    asked: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        kind = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        body = b"" if kind.isdecimal() else b"<html>sign in</html>" if kind == "other" else BODY
        handler.send_response(int(kind) if kind.isdecimal() else 200)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:262_144] if kind == "cut" else body)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setattr(jars, "_FIRST_PAUSE_SECONDS", 0)
    found = Repository("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.answer(self)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}/mirror"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_jar_is_fetched_once_and_again_when_it_is_not_the_pinned_one(repository: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "jars"
    told = io.StringIO()
    with downloads_shown(PlainConsole(file=told, width=100)):
        assert fetch(folder, [JAR], url=f"{repository.url}/") == [folder / "thing-1.2.jar"]
    assert told.getvalue() == "fetching thing-1.2.jar (1 MiB)\n"
    assert repository.asked == ["/mirror/org/example/deep/thing/1.2/thing-1.2.jar"]
    assert fetch(folder, [JAR], url=repository.url) == []
    (folder / "thing-1.2.jar").write_bytes(BODY[:-1])
    assert fetch(folder, [JAR], url=repository.url) == [folder / "thing-1.2.jar"]
    assert (folder / "thing-1.2.jar").read_bytes() == BODY
    assert names_in(folder) == ["thing-1.2.jar"]
    assert len(repository.asked) == 2


def test_a_terminal_shows_a_bar(repository: Repository, tmp_path: Path) -> None:
    told = io.StringIO()
    with downloads_shown(PlainConsole(file=told, width=100, force_terminal=True)):
        fetch(tmp_path, [JAR], url=repository.url)
    assert "thing-1.2.jar" in told.getvalue()
    assert "━" in told.getvalue()


@pytest.mark.parametrize("answers", [["cut", "cut", "whole"], ["503", "429", "whole"]])
def test_a_download_that_breaks_off_begins_anew(answers: list[str], repository: Repository, tmp_path: Path) -> None:
    repository.answers = list(answers)
    fetch(tmp_path, [JAR], url=repository.url)
    assert (tmp_path / "thing-1.2.jar").read_bytes() == BODY
    assert len(repository.asked) == 3


@pytest.mark.parametrize(
    ("answer", "tries", "said"),
    [
        ("404", 1, "answered 404 Not Found"),
        ("403", 1, "answered 403 Forbidden"),
        ("other", 1, "sent something else than the pinned jar"),
        ("502", 5, "could not be reached (it answered 502)"),
    ],
)
def test_a_jar_that_cannot_be_had_is_one_sentence_and_leaves_what_was_there(
    answer: str, tries: int, said: str, repository: Repository, tmp_path: Path
) -> None:
    repository.answers = [answer]
    (tmp_path / "thing-1.2.jar").write_bytes(b"old")
    with pytest.raises(JarError) as refusal:
        fetch(tmp_path, [JAR], url=repository.url.replace("http://", "http://reader:a-mirrors-password@"))
    assert refusal.value.subject == "thing-1.2.jar"
    assert said in refusal.value.reason
    assert "TIDEMARK_JARS_URL names a mirror" in refusal.value.hint
    assert "password" not in str(refusal.value)
    assert len(repository.asked) == tries
    assert names_in(tmp_path) == ["thing-1.2.jar"]
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
    names = (
        f".thing-1.2.jar.{'a' * 32}.part",
        f".thing-1.2.jar.{'b' * 32}.part",
        ".thing-1.2.jar.mine.part",
        "mine.part",
    )
    old, young, *others = (tmp_path / name for name in names)
    long_ago = time.time() - 90_000
    for path in (old, young, *others):
        path.touch()
        os.utime(path, (long_ago, long_ago))
    os.utime(young)
    fetch(tmp_path, [JAR], url=repository.url)
    assert names_in(tmp_path) == sorted([*names[1:], "thing-1.2.jar"])


def test_a_cache_is_filled_at_first_use_and_a_folder_that_was_named_is_not(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: only the cache is filled by itself, once; other folders are refused with the command that fills them."""
    monkeypatch.setattr(jars, "JARS", (JAR, replace(JAR, name="other")))
    monkeypatch.setattr(jars, "default_jars_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(jars, "is_clone", lambda: False)
    settings = Settings(jars_url=repository.url)
    expected = [tmp_path / "cache" / name for name in ("thing-1.2.jar", "other-1.2.jar")]
    assert available(settings) == expected
    assert all(path.read_bytes() == BODY for path in expected)
    assert available(settings) == expected
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
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, other = (Path(path) for path in json.loads(done.stdout))
    assert first.parent == other.parent == tmp_path / "xdg" / "tidemark" / "jars"
    assert first != other
    assert len(JARS) == 5
