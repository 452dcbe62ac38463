"""The pinned jars and the Java that Spark needs, and the archive of classes that speeds up a JVM's start."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from functools import cache
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import platformdirs

from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import EngineError, PermanentError, TidemarkError, tries
from pipeline_assets.domain.machine import sync
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings, is_clone

_TRIES, _FIRST_PAUSE_SECONDS = 5, 0.5
_TIMEOUT = httpx.Timeout(30.0)
_STEP_BYTES = 256 * 1024
_LARGEST_BYTES = 512 * 1024**2
_PART = ".part"
_ABANDONED_SECONDS = 24 * 3600
_HINT = (
    "Run `tidemark setup` where the repository can be reached (TIDEMARK_JARS_URL names a mirror), or copy a folder with "
    "the jars here and name it in TIDEMARK_JARS_DIR"
)
_HINT_OF_FOLDER = "Make room or correct the rights of its folder, or name another one in TIDEMARK_JARS_DIR"
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)

Watch = Callable[[str, int, int | None], None]
"""Called with a jar's name, the bytes downloaded, and the total or None."""
WATCH: ContextVar[Watch] = ContextVar("WATCH", default=lambda _name, _done, _total: None)
"""Jars are first needed far below the command that knows the terminal."""


class JarError(PermanentError):
    """A jar is missing, is not the pinned one, or cannot be fetched."""


class _PassingError(Exception):
    """The repository cannot answer now; a retry may succeed."""


def _download(url: str, path: Path, sha256: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PART}")
        try:
            found = _fetched(url, path.name, part)
            if found != sha256:
                sums = f"sha256 {found[:12]}…, not {sha256[:12]}…"
                raise JarError(path.name, f"{masked(url)} sent something else than the pinned jar ({sums})", _HINT)
            sync(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        sync(path.parent)
    except OSError as error:
        raise JarError(str(path), f"cannot be written: {error.strerror or error}", _HINT_OF_FOLDER) from error


def _sweep(folder: Path) -> None:
    for part in folder.glob(f".*.jar.{'[0-9a-f]' * 32}{_PART}"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _ABANDONED_SECONDS:
                part.unlink()


def _fetched(url: str, name: str, part: Path) -> str:
    for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
        try:
            return _received(url, name, part)
        except (httpx.TransportError, _PassingError) as error:
            if is_last:
                reason = f"{masked(url)} could not be reached ({error or type(error).__name__})"
                raise JarError(name, reason, _HINT) from error
        except (httpx.InvalidURL, httpx.TooManyRedirects) as error:
            raise JarError(name, f"{masked(url)} cannot be asked ({error})", _HINT) from error
    raise AssertionError


def _received(url: str, name: str, part: Path) -> str:
    digest, done = hashlib.sha256(), 0
    as_it_is = {"accept-encoding": "identity"}
    with (
        httpx.stream("GET", url, timeout=_TIMEOUT, follow_redirects=True, headers=as_it_is) as answer,
        part.open("wb") as file,
    ):
        status = answer.status_code
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
            raise _PassingError(f"it answered {status}")
        if not answer.is_success:
            raise JarError(name, f"{masked(url)} answered {status} {answer.reason_phrase}".strip(), _HINT)
        length = answer.headers.get("content-length", "")
        for step in answer.iter_raw(_STEP_BYTES):
            file.write(step)
            digest.update(step)
            done += len(step)
            if done > _LARGEST_BYTES:
                raise JarError(name, f"{masked(url)} sends more than {_LARGEST_BYTES >> 20} MiB", _HINT)
            WATCH.get()(name, done, int(length) if length.isdecimal() else None)
    return digest.hexdigest()


MAVEN = str(Settings.model_fields["jars_url"].default)


@dataclass(frozen=True)
class Jar:
    """One pinned jar."""

    organisation: str
    name: str
    version: str
    sha256: str
    classifier: str = ""

    @property
    def path(self) -> str:
        """Path below the URL of a Maven repository."""
        return f"{self.organisation.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"

    @property
    def file_name(self) -> str:
        """Name in the jars folder."""
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + ".jar"


JARS = tuple(
    Jar(*line.split())
    for line in """
    org.apache.iceberg iceberg-spark-runtime-4.1_2.13 1.12.0 3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82
    org.apache.iceberg iceberg-aws-bundle 1.12.0 dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957
    org.xerial sqlite-jdbc 3.54.1.0 f8dce420a6016278497f4f0560f65602b9db858de141b541cf91a4644ebe4639
    org.postgresql postgresql 42.7.14 73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c
    com.globalmentor hadoop-bare-naked-local-fs 0.1.0 e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62
    """.strip().splitlines()
)


def default_jars_dir() -> Path:
    """Return a folder beside the code in a clone, else one in the user's cache, named after these jars' checksums."""
    if is_clone():
        return PROJECT_ROOT / ".jars"
    pins = hashlib.sha256(" ".join(f"{jar.file_name} {jar.sha256}" for jar in JARS).encode()).hexdigest()
    return platformdirs.user_cache_path("tidemark") / "jars" / pins[:16]


def jars_folder(settings: Settings) -> Path:
    """Return the jars folder of these settings."""
    return settings.jars_dir or default_jars_dir()


def available(settings: Settings) -> list[Path]:
    """Return the paths of all jars; downloads missing ones to the user's cache alone; raises JarError; verifies no content."""
    folder = jars_folder(settings)
    missing = [jar for jar in JARS if not (folder / jar.file_name).is_file()]
    # Only `tidemark setup` fills an operator's folder.
    if missing and (is_clone() or settings.jars_dir is not None):
        hint = "Fetch it: tidemark setup (in a clone: make setup)"
        raise JarError(str(folder / missing[0].file_name), "is missing", hint)
    fetch(folder, missing, url=settings.jars_url)
    return [folder / jar.file_name for jar in JARS]


def require_pinned(settings: Settings) -> None:
    """Raise JarError where a jar has other bytes than pinned: a JVM would run them."""
    for jar in JARS:
        path = jars_folder(settings) / jar.file_name
        if not _is_right(path, jar.sha256):
            raise JarError(str(path), "is not the jar that is pinned", "Find out who changed it; then: tidemark setup")


def fetch(folder: Path, jars: Sequence[Jar] = JARS, *, url: str = MAVEN) -> list[Path]:
    """Download jars that are missing or have another SHA-256 than pinned; returns the downloaded paths; raises JarError."""
    wrong = {folder / jar.file_name: jar for jar in jars if not _is_right(folder / jar.file_name, jar.sha256)}
    for path, jar in wrong.items():
        _download(f"{url.rstrip('/')}/{jar.path}", path, jar.sha256)
    return list(wrong)


def _is_right(path: Path, sha256: str) -> bool:
    try:
        now = path.stat()
        return _sum_of(path, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) == sha256
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise JarError(str(path), f"cannot be read: {error.strerror}", "Correct its rights, or remove it") from error


@cache
def _sum_of(path: Path, *_state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_SUPPORTED = ("17", "21")
_JAVA_HINT = "Install Java 17 or 21 (on Debian: apt-get install openjdk-17-jre-headless) and set JAVA_HOME to it"
_LONGEST_SECONDS = 30


def require_java() -> str:
    """Return the major version of the Java that Spark would start; raises EngineError where it is missing or unsupported."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        raise EngineError("Java", f"is not in JAVA_HOME ({home})" if home else "was not found on PATH", _JAVA_HINT)
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_LONGEST_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(java, f"does not start: {error}", _JAVA_HINT) from error
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None or found[1] not in _SUPPORTED:
        version = f"is Java {found[1]}" if found else "does not tell its version"
        raise EngineError(java, f"{version}, and Spark runs on {' and '.join(_SUPPORTED)}", _JAVA_HINT)
    return found[1]


_NAME = "classes.jsa"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM silently ignores an archive of another JVM or of other jars."""
_LONGEST_EXIT_SECONDS = 180
_DAY = date(2026, 2, 2)


def jvm_options(jars_dir: Path) -> str:
    """Return the JVM options that use the archive of classes; empty where others may change it, as a JVM runs it."""
    archive = jars_dir / _NAME
    is_safe = archive.is_file() and _is_ours(archive) and _is_ours(jars_dir)
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if is_safe else ""


def _is_ours(path: Path) -> bool:
    found = path.stat()
    others = 0o002 if found.st_gid == os.getegid() else 0o022
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & others


def make_archive(jars_dir: Path) -> Path:
    """Load a day in a process whose JVM writes the archive on exit; returns its path; raises RuntimeError."""
    archive = jars_dir / _NAME
    being_made = archive.with_suffix(".making")
    for former in (archive, being_made):
        former.unlink(missing_ok=True)
    options = f"-XX:ArchiveClassesAtExit={being_made} {_QUIET}"
    with TemporaryDirectory() as folder:
        _deliver(Path(folder, "landing", "10001"))
        Path(folder, "home").mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")} | {
            "TIDEMARK_LANDING_URL": f"{folder}/landing",
            "TIDEMARK_WAREHOUSE_URL": f"{folder}/warehouse",
            "TIDEMARK_CATALOG_URL": f"sqlite:///{folder}/catalog.db",
            "TIDEMARK_PROJECTS": "10001",
            "TIDEMARK_CALENDAR_START": str(_DAY),
            "DAGSTER_HOME": f"{folder}/home",
            "TIDEMARK_JARS_DIR": str(jars_dir),
            "TIDEMARK_SPARK_CONFIG": json.dumps({"spark.driver.extraJavaOptions": options}),
        }
        words = f"-P -m pipeline_assets.cli load --source regular --from {_DAY} --to {_DAY}"
        command = [sys.executable, *words.split()]
        loaded = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if loaded.returncode:
            raise RuntimeError(f"the load failed:\n{loaded.stdout}{loaded.stderr}")
        # The JVM outlives the command and writes the archive when it exits.
        deadline = time.monotonic() + _LONGEST_EXIT_SECONDS
        while _is_an_argument(str(being_made)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the JVM did not end within {_LONGEST_EXIT_SECONDS} s")
            time.sleep(0.2)
    being_made.replace(archive)
    return archive


def _deliver(folder: Path) -> None:
    folder.mkdir(parents=True)
    same = {"event_time": f"{_DAY} 10:00:00.000000", "server_upload_time": f"{_DAY} 10:01:00.000000"}
    same |= {"device_id": "d", "event_type": "play"}
    bought: dict[str, object] = {"event_properties": {"revenue": 1.5, "currency": "EUR"}}
    lines = [
        {**same, "uuid": f"u{at}", "$insert_id": f"i{at % 10}", "amplitude_id": at} | (bought if at % 2 else {})
        for at in range(12)
    ]
    body = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / f"10001_{_DAY}_10#1.json.gz").write_bytes(gzip.compress(body.encode()))


def _is_an_argument(text: str) -> bool:
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if text.encode() in command.read_bytes():
                return True
    return False


def main(words: Sequence[str]) -> int:
    """Download and verify all jars in the default folder, or with the word `classes` make the archive; returns the exit code."""
    folder = default_jars_dir()
    try:
        if "classes" in words:
            told = f"{make_archive(folder).stat().st_size >> 20} MB of classes\n"
        else:
            told = f"{len(JARS)} jars verified, {len(fetch(folder, url=load_settings().jars_url))} fetched\n"
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"no class archive was made, so each JVM starts a third slower: {error}\n")
        return 1
    sys.stdout.write(told)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
