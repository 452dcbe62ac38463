"""From a wheel to a deployment: `init`, `setup`, `dev`, `--version`, completion."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline_assets.cli import install
from pipeline_assets.cli.app import app
from pipeline_assets.cli.install import deployment_files
from pipeline_assets.config import TEMPLATES, dagster_home, load_settings
from pipeline_assets.domain.errors import EngineError, UsageError
from pipeline_assets.domain.machine import GROUP, living
from pipeline_assets.domain.settings import PROJECT_ROOT
from resources.spark.jars import require_java

FILES = ("tidemark.toml", "workspace.yaml", "dagster.yaml", "NEXT_STEPS.md")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Commands set it themselves; monkeypatch removes their value with the test.
    monkeypatch.setenv("DAGSTER_HOME", "")


def tidemark(*words: str) -> Any:
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def everything_below(folder: Path) -> dict[str, bytes | str | None]:
    """Name -> content, a link's target, None for anything else."""

    def told(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return str(path.readlink())
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): told(path) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["tidemark.toml", "dagster.yaml", "workspace.yaml"])
def test_what_is_installed_is_what_the_repository_uses(name: str) -> None:
    assert (TEMPLATES / name).read_bytes() == (PROJECT_ROOT / name).read_bytes()
    if name != "tidemark.toml":
        assert deployment_files(is_s3=False)[name] == (PROJECT_ROOT / name).read_text("utf-8")


@pytest.mark.parametrize(
    ("option", "landing", "warehouse"),
    [
        ((), "{here}/data/landing", "{here}/data/warehouse"),
        (("--local",), "{here}/data/landing", "{here}/data/warehouse"),
        (("--s3",), "s3://company-exports/analytics", "s3://company-lake/warehouse"),
    ],
)
def test_a_new_deployment_has_settings_that_differ_from_the_repositorys_in_its_places_alone(
    option: tuple[str, ...], landing: str, warehouse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tidemark("init", "new/folder", *option)
    assert (done.exit_code, "next: cd new/folder, then read NEXT_STEPS.md" in done.stdout) == (0, True)
    here = tmp_path / "new" / "folder"
    assert sorted(path.name for path in here.iterdir()) == sorted(FILES)
    monkeypatch.chdir(PROJECT_ROOT)
    known = load_settings().model_dump()
    monkeypatch.chdir(here)
    found = load_settings()
    assert (found.landing_url, found.warehouse_url) == (landing.format(here=here), warehouse.format(here=here))
    assert found.catalog_url == f"sqlite:///{here}/data/catalog.db"
    places = {"landing_url", "warehouse_url", "catalog_url", "ledger_url", "health_report"}
    assert {name: value for name, value in found.model_dump().items() if known[name] != value}.keys() <= places
    # In force, not as comments: an operator changes these first.
    lines = Path("tidemark.toml").read_text("utf-8").splitlines()
    in_force = [line.split(" = ")[0] for line in lines if line[:1].isalpha()]
    assert in_force == ["projects", "calendar_start", "landing_url", "warehouse_url", "catalog_url"]


@pytest.mark.parametrize("taken", FILES)
@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_nothing_is_overwritten(taken: str, kind: str, tmp_path: Path) -> None:
    place = tmp_path / "d" / taken
    place.parent.mkdir()
    if kind == "file":
        place.write_bytes(b"mine")
    elif kind == "folder":
        (place / "x").mkdir(parents=True)
    else:
        place.symlink_to(tmp_path / "elsewhere")
    before = everything_below(tmp_path)
    done = tidemark("init", "d")
    assert (done.exit_code, f"d/{taken}: is there already, and nothing was written" in done.stderr) == (2, True)
    assert len(done.stderr.splitlines()) == 2
    assert everything_below(tmp_path) == before


STRANGE = ("x" * 300, "/proc/d", "a\0b", "we?ird", "line\nbreak", "\x1b[31mred", "\udcff", "")


@pytest.mark.parametrize(
    ("before", "place"),
    [
        (lambda: Path("plain").write_text("mine"), "plain"),
        (lambda: Path("plain").write_text("mine"), "plain/d"),
        (lambda: Path("link").symlink_to("nowhere"), "link"),
        (lambda: os.mkfifo("pipe"), "pipe"),
        *((lambda: None, name) for name in STRANGE),
    ],
    ids=["file", "below a file", "link", "pipe", "long", "proc", "nul", "query", "break", "escape", "bytes", "empty"],
)
def test_a_place_that_cannot_be_one_is_refused_in_one_sentence(
    before: Callable[[], Any], place: str, tmp_path: Path
) -> None:
    before()
    there = everything_below(tmp_path)
    done = tidemark("init", place)
    assert done.exit_code == 2
    said = done.stderr.splitlines()
    assert len(said) == 2, said
    assert "nothing was written" in said[0]
    assert said[1].startswith("  fix: Name another folder")
    assert all(line.isprintable() for line in said)
    assert everything_below(tmp_path) == there


@pytest.mark.parametrize("name", ["-rf", "a b'c\"d", "ünïcode", "$(touch x)", "%41#b;c"])
def test_a_strange_name_is_only_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tidemark("init", "--", name)
    assert done.exit_code == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    monkeypatch.chdir(name)
    assert load_settings().landing_url == str(tmp_path / name / "data" / "landing")


def test_what_cannot_be_written_whole_is_not_left_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a full disk, another writer's file. Outcome: this call's files are gone, the other's is there."""
    opened = Path.open

    def full(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "dagster.yaml" and args[:1] == ("x",):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", full)
    done = tidemark("init", "d")
    assert (done.exit_code, everything_below(tmp_path)) == (2, {"d": None})
    assert "No space left on device" in done.stderr
    monkeypatch.setattr(Path, "open", opened)

    def late(path: Path) -> None:
        (tmp_path / "d" / "NEXT_STEPS.md").write_text("theirs")

    monkeypatch.setattr(install, "_require_usable", lambda path: None)
    monkeypatch.setattr(os.path, "lexists", lambda path: late(path) or False)
    done = tidemark("init", "d")
    assert (done.exit_code, "d/NEXT_STEPS.md: is there already" in done.stderr) == (2, True)
    assert everything_below(tmp_path) == {"d": None, "d/NEXT_STEPS.md": b"theirs"}


def test_the_home_of_a_deployment_follows_its_own_configuration(tmp_path: Path) -> None:
    """Outcome: a changed dagster.yaml counts, a lost one is refused, a named home gets the installed one."""
    assert tidemark("init", ".").exit_code == 0
    home = dagster_home()
    assert home == tmp_path / "data" / "dagster_home"
    Path("dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert (home / "dagster.yaml").read_text() == "telemetry: {enabled: false}\n"
    Path("dagster.yaml").unlink()
    with pytest.raises(UsageError, match="links to a file that is gone"):
        dagster_home()
    (tmp_path / "other").mkdir()
    os.environ["DAGSTER_HOME"] = str(tmp_path / "other")
    dagster_home()
    assert (tmp_path / "other" / "dagster.yaml").read_bytes() == (PROJECT_ROOT / "dagster.yaml").read_bytes()
    assert not (tmp_path / "other" / "dagster.yaml").is_symlink()


def test_the_version_is_that_of_the_package() -> None:
    done = tidemark("--version")
    assert (done.exit_code, done.stdout) == (0, f"tidemark {version('tidemark-pipeline')}\n")


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        environment = {"_TIDEMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = CliRunner().invoke(app, [], prog_name="tidemark", env=environment)
        return done.stdout.split()

    assert (completed("tidemark sta"), completed("tidemark init --s")) == (["status"], ["--s3"])
    assert "--install-completion" in tidemark("--help").stdout


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake Java, the only one there; its output is the test's."""
    path = tmp_path / "jdk" / "bin" / "java"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return path  # type: ignore[return-value]


def says(java: Path, banner: str) -> None:
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("banner", "said"),
    [
        (None, "is not in JAVA_HOME"),
        ('openjdk version "1.8.0_392"', "is Java 1, and Spark runs on 17 and 21"),
        ('openjdk version "25" 2025-09-16', "is Java 25, and Spark runs on 17 and 21"),
        ("Segmentation fault", "does not tell its version"),
    ],
)
def test_a_java_that_spark_does_not_run_on_is_named(banner: str | None, said: str, java: Path) -> None:
    if banner is not None:
        says(java, banner)
    done = tidemark("setup")
    assert (done.exit_code, said in done.stderr) == (1, True)
    assert "Install Java 17 or 21" in done.stderr
    with pytest.raises(EngineError, match=said):
        require_java()


def test_a_java_that_spark_runs_on_is_taken(java: Path) -> None:
    says(java, 'openjdk version "21.0.2" 2024-01-16')
    assert require_java() == "21"


def test_dagster_is_not_started_where_it_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done = tidemark("dev")
    assert (done.exit_code, "is no folder of a deployment" in done.stderr) == (2, True)
    assert "tidemark init DIR" in done.stderr
    assert tidemark("init", ".").exit_code == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = tidemark("dev", "--port", str(port))
    assert (done.exit_code, f"port {port}: cannot be used: Address already in use" in done.stderr) == (2, True)
    Path("dagster.yaml").write_text("storage: {sqlite: 7}\n")
    done = tidemark("dev", "--port", str(port))
    assert (done.exit_code, "Dagster refuses its configuration" in done.stderr) == (2, True)
    assert not Path("data/landing").exists()


def test_when_one_of_both_ends_the_other_does_too_and_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: one process ends, the other has a child that ignores SIGTERM. Outcome: exit 1, no process is left."""
    monkeypatch.setattr(install, "_ENDING_SECONDS", 1)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); open('child', 'w').close(); time.sleep(600)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {stubborn!r}]); time.sleep(600)"
    ends = "import os, sys, time\nwhile not os.path.exists('child'): time.sleep(0.05)\nsys.exit(3)"
    served = install._Served(1, is_read_only=False)
    served.words = [["-c", parent], ["-c", ends]]
    with served:
        groups = [process.pid for process in served._processes]
        assert served.watch() is False
    assert not any(living(GROUP, group) for group in groups)


def test_all_that_dev_started_ends_with_a_signal(tmp_path: Path) -> None:
    program = (
        "import os, signal, threading\nfrom pipeline_assets.cli import install\nserved = install._Served(1, is_read_only=False)\n"
        "served.words = [['-c', 'import time; time.sleep(600)']] * 2\n"
        "with served:\n"
        "    print(*[process.pid for process in served._processes], flush=True)\n"
        "    assert served.watch() is True\n"
    )
    how: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **how, text=True) as process:
        assert process.stdout is not None
        groups = [int(word) for word in process.stdout.readline().split()]
        process.terminate()
        assert process.wait(60) == 0
    assert len(groups) == 2
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, 0)
            raise AssertionError(f"{group} lives")
