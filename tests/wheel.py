"""`make wheel-test`: the built wheel in empty environments outside of the clone, used as a person uses it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

from pipeline_assets.domain.machine import SESSION, living
from pipeline_assets.domain.settings import PROJECT_ROOT
from pipeline_assets.drill.sandbox import kill_session
from resources.iceberg.lake_identity import FORMAT
from resources.ledger.schema import SCHEMA_VERSION
from resources.ledger.store import Ledger
from resources.spark.jars import JARS, default_jars_dir
from tests.support.ports import a_free_port

PYTHONS = ("3.11", "3.12", "3.13")
UV = str(Path(sys.executable).with_name("uv"))
LOCK = PROJECT_ROOT / "requirements.lock"
DAYS = ("--from", "2026-01-01", "--to", "2026-01-02")
LOAD = ("load", "--source", "regular", *DAYS)
_LONGEST_SECONDS = 600
_SHOWN_LINES = 6


class WheelError(Exception):
    """A command did not do its duty."""


class Person:
    """A user with an installed `tidemark`, a home and a folder, without the clone."""

    def __init__(self, folder: Path, binaries: Path, jars_url: str) -> None:
        self.folder, self.binaries = folder, binaries
        self.work, self.home = folder / "work", folder / "home"
        self.catalog = self.work / "data" / "catalog.db"
        for made in (self.work, self.home):
            made.mkdir(parents=True)
        ours = ("TIDEMARK_", "XDG_", "DAGSTER_", "PYTHONPATH", "VIRTUAL_ENV", "PORT")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environment |= {"HOME": str(self.home), "TIDEMARK_JARS_URL": jars_url, "NO_PROXY": "127.0.0.1,localhost"}

    def run(self, *words: str, code: int = 0, said: str = "", **environment: str) -> str:
        """Run a command in their folder; raises WheelError for another exit code or a missing text."""
        begun = time.monotonic()
        done = subprocess.run(
            [str(self.binaries / words[0]), *words[1:]],
            cwd=self.work, env={**self.environment, **environment}, capture_output=True, text=True, timeout=_LONGEST_SECONDS,
            check=False,
        )  # fmt: skip
        told = done.stderr + done.stdout
        tell(f"$ {' '.join(words)}    [{done.returncode}, {time.monotonic() - begun:.0f} s]", told)
        if done.returncode != code or said not in told or "Traceback" in told:
            raise WheelError(f"{' '.join(words)}: expected exit {code} and {said!r}\n{told}")
        return done.stdout

    def digests(self) -> Mapping[str, str]:
        """Table and slice -> published content digest."""
        tables = ("raw/regular_events", "refined/events", "aggregates/daily_revenue", "aggregates/active_users")
        with closing(Ledger(f"sqlite:///{self.catalog}")) as ledger:
            slices = {table: ledger.slices(table, None).items() for table in tables}
            return {f"{name} {key}": str(record.digest) for name, found in slices.items() for key, record in found}


def tell(line: str, output: str = "") -> None:
    """A line of the transcript, and the end of the output."""
    lines = [text for text in output.splitlines() if text.strip()]
    left_out = ["    …"] if len(lines) > _SHOWN_LINES else []
    print("\n".join([line, *left_out, *(f"    {text[:150]}" for text in lines[-_SHOWN_LINES:])]), flush=True)


@contextmanager
def a_repository(folder: Path) -> Iterator[str]:
    """The clone's jars as a Maven repository; gives its address."""
    for jar in JARS:
        place = folder / jar.path
        place.parent.mkdir(parents=True)
        place.symlink_to(default_jars_dir().resolve() / jar.file_name)

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def uv(*words: str, **environment: str) -> None:
    done = subprocess.run([UV, *words], env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    tell(f"$ uv {' '.join(words)}    [{done.returncode}]", done.stderr if done.returncode else "")
    if done.returncode:
        raise WheelError(f"uv {words[0]} failed")


def is_there(python: str) -> bool:
    find = [UV, "python", "find", "--no-python-downloads", python]
    return subprocess.run(find, capture_output=True, check=False).returncode == 0


def installed(folder: Path, python: str, *what: str) -> Path:
    """The folder of programs of a new environment."""
    uv("venv", "--no-python-downloads", "--python", python, str(folder / "environment"))
    uv("pip", "install", "--python", str(folder / "environment" / "bin" / "python"), *what)
    return folder / "environment" / "bin"


def begin(person: Person) -> None:
    """An initialized folder with exports of two days."""
    person.run("tidemark", "--version", said=f"tidemark {version('tidemark-pipeline')}")
    person.run("tidemark", "init", ".", said="NEXT_STEPS.md")
    person.run("python", "-m", "sample_export", "--out", "data/landing", "--days", "2", "--events-per-day", "60")


def deploy(person: Person, *, is_set_up: bool) -> None:
    """From an empty folder to published days; jars by `setup`, or by the first load."""
    person.run("tidemark", "setup", code=1, said="could not be reached", TIDEMARK_JARS_URL="http://127.0.0.1:9")
    begin(person)
    person.run("tidemark", "init", ".", code=2, said="is there already, and nothing was written")
    if is_set_up:
        person.run("tidemark", "setup", said="of classes are prepared")
    person.run("tidemark", *LOAD, said="published")
    person.run("tidemark", *LOAD, said="unchanged")


def upgrade(person: Person) -> None:
    """Ledgers of other Tidemarks and a later warehouse are refused and unchanged."""

    def set_version(number: int) -> None:
        with closing(sqlite3.connect(person.catalog)) as connection, connection:
            connection.execute("UPDATE tidemark_schema SET version = ?", (number,))

    def recorded() -> int:
        with closing(sqlite3.connect(person.catalog)) as connection:
            return int(connection.execute("SELECT version FROM tidemark_schema").fetchone()[0])

    for number, age in ((SCHEMA_VERSION - 1, "an earlier"), (SCHEMA_VERSION + 1, "a newer")):
        set_version(number)
        for words in (("status", *DAYS), LOAD):
            person.run("tidemark", *words, code=1, said=f"was written by {age} Tidemark")
        require(recorded() == number, f"a ledger of {age} one is left alone")
    set_version(SCHEMA_VERSION)
    mark = person.work / "data" / "warehouse" / "_tidemark" / "warehouse.json"
    before = mark.read_bytes()
    mark.write_text(json.dumps(json.loads(before) | {"format": FORMAT + 1}))
    newer = mark.read_bytes()
    person.run("tidemark", *LOAD, code=1, said="a newer Tidemark wrote this warehouse")
    require(mark.read_bytes() == newer, "a newer warehouse is left alone")
    mark.write_bytes(before)
    person.run("tidemark", *LOAD, said="unchanged")


def serve(person: Person) -> None:
    """Start Dagster until it shows the assets, and stop it with nothing left."""
    port = a_free_port()
    log = person.folder / "dev.log"
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(person.binaries / "tidemark"), "dev", "--port", str(port)],
            cwd=person.work, env=person.environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        while not (found := _asked(f"{url}/graphql?query=%7B%20assetNodes%20%7B%20id%20%7D%20%7D")):
            if process.poll() is not None or time.monotonic() > begun + _LONGEST_SECONDS:
                raise WheelError(f"dev did not answer:\n{log.read_text()}")
            time.sleep(1)
        assets = len(found["data"]["assetNodes"])
        took = f"answers after {time.monotonic() - begun:.0f} s, {assets} assets"
        tell(f"$ tidemark dev --port {port}    [{took}]", json.dumps(_asked(f"{url}/server_info")))
        require(assets > 0, "Dagster shows the assets")
        while f"Dagster: {url}/" not in log.read_text():
            time.sleep(0.2)
        members = len(living(SESSION, process.pid))
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        tell(f"  SIGTERM: exit {code}, {members} processes before, {len(living(SESSION, process.pid))} after")
        require((code, living(SESSION, process.pid)) == (0, []), "dev leaves no process")
    finally:
        kill_session(process)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def _asked(url: str) -> dict[str, object] | None:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
            return json.load(answer)
    except OSError:
        return None


def require(is_so: bool, what: str) -> None:
    tell(f"  {'yes' if is_so else 'NO'}: {what}")
    if not is_so:
        raise WheelError(what)


def main() -> int:
    """Install and use the wheel on each Python here; exit 1 for any deviation."""
    parser = argparse.ArgumentParser(prog="python -m tests.wheel", description=__doc__)
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version; may be repeated")
    options = parser.parse_args()
    (wheel,) = (PROJECT_ROOT / "dist").glob("tidemark_pipeline-*.whl")
    chosen = tuple(options.python or PYTHONS)
    pythons = [python for python in chosen if is_there(python)]
    missing = [python for python in chosen if python not in pythons]
    root = Path(tempfile.mkdtemp(prefix="tidemark-wheel-"))
    try:
        with a_repository(root / "maven") as url:
            clone = Person(root / "clone", Path(sys.executable).parent, url)
            clone.environment["PYTHONPATH"] = str(PROJECT_ROOT)
            tell("== the clone")
            begin(clone)
            clone.run("tidemark", *LOAD, said="published")
            for number, python in enumerate(pythons):
                tell(f"== the wheel on Python {python}")
                use(root / python, python, wheel, url, clone, is_first=number == 0)
            for python in pythons[-1:]:
                tell(f"== the newest packages that the wheel takes, on Python {python}")
                begin_with_newest(root / "newest", python, wheel, url)
    except WheelError as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"the wheel works on Python {', '.join(pythons)}" if pythons else "FAILED: no Python was tried")
    if missing:
        print(f"NOT TRIED: Python {', '.join(missing)}, which is not on this machine (uv python install {missing[0]})")
    return 0 if pythons else 1


def begin_with_newest(folder: Path, python: str, wheel: Path, url: str) -> None:
    """The wheel alone: no lock bounds its packages."""
    person = Person(folder, installed(folder, python, str(wheel)), url)
    begin(person)
    person.run("tidemark", "status", *DAYS)
    code = "import pipeline_assets.definitions as p; print(type(p.defs()).__name__)"
    person.run("python", "-c", code, said="Definitions")


def use(folder: Path, python: str, wheel: Path, url: str, clone: Person, *, is_first: bool) -> None:
    """Everything a user does with the wheel; upgrades and `uv tool install` on the first Python alone."""
    binaries = installed(folder, python, "--constraint", str(LOCK), str(wheel))
    person = Person(folder, binaries, url)

    def files() -> list[Path]:
        found = binaries.parent.rglob("*")
        return sorted(path for path in found if path.suffix != ".pyc" and path.name != "__pycache__")

    before = files()
    deploy(person, is_set_up=is_first)
    require(person.digests() == clone.digests() != {}, f"{len(clone.digests())} digests are those of the clone")
    if is_first:
        upgrade(person)
    serve(person)
    require(files() == before, "nothing was written beside the code")
    require(not (person.home / ".jars").exists(), "the home holds no jars but in its cache")
    if is_first:
        tools = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
        options = ("--no-python-downloads", "--python", python, "--constraints", str(LOCK))
        uv("tool", "install", *options, str(wheel), **tools)
        tool = Person(folder / "tool", folder / "bin", url)
        tool.run("tidemark", "--version", said=f"tidemark {version('tidemark-pipeline')}")
        tool.run("tidemark", "init", "deployment", said="NEXT_STEPS.md")


if __name__ == "__main__":
    raise SystemExit(main())
