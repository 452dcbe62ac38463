"""The pinned jars and the Java that Spark needs: the jars' folder, and their download, each verified, synced and renamed."""

from __future__ import annotations

import hashlib
import io
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
from functools import cache
from http import HTTPStatus
from pathlib import Path

import httpx
import platformdirs

from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import EngineError, PermanentError, TidemarkError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.retry import tries
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings, is_clone
from resources.whole_file import sync

_TRIES, _FIRST_PAUSE_SECONDS = 5, 0.5
"""These retries bridge an outage of about seven seconds; downloaded bytes are kept."""
_TIMEOUT = httpx.Timeout(30.0)
"""Limits the silence of the server, not the whole download."""
_STEP_BYTES = 256 * 1024
_LARGEST_BYTES = 512 * 1024**2
"""More than four times our largest jar: a server that sends more is not the repository."""
_PART = ".part"
_ABANDONED_SECONDS = 24 * 3600
_HINT = (
    "Run `tidemark setup` where the repository can be reached (TIDEMARK_JARS_URL names a mirror), or copy a folder with "
    "the jars here and name it in TIDEMARK_JARS_DIR"
)
_HINT_OF_FOLDER = "Make room or correct the rights of its folder, or name another one in TIDEMARK_JARS_DIR"
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)

Watch = Callable[[str, int, int | None], None]
"""Called with the name of a jar, the bytes downloaded, and the total where the repository tells it."""
WATCH: ContextVar[Watch] = ContextVar("WATCH", default=lambda _name, _done, _total: None)
"""The current watcher of downloads. Jars are first needed far below the command that knows the terminal."""


class JarError(PermanentError):
    """A jar is missing, is not the pinned one, or cannot be fetched."""


class _PassingError(Exception):
    """The repository cannot answer now; a retry may succeed."""


def download(url: str, path: Path, sha256: str) -> None:
    """Download the jar to `path`, replacing an existing file; raises JarError and then leaves the existing file as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A unique name, so that two processes may download the same jar at once.
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PART}")
        try:
            with part.open("xb+") as file:
                _fetch(url, path.name, file, sha256)
            sync(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        sync(path.parent)
    except OSError as error:
        raise JarError(str(path), f"cannot be written: {error.strerror or error}", _HINT_OF_FOLDER) from error


def sweep(folder: Path) -> None:
    """Remove the temporary files of downloads that were killed more than a day ago."""
    for part in folder.glob(f".*.jar.{'[0-9a-f]' * 32}{_PART}"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _ABANDONED_SECONDS:
                part.unlink()


def _fetch(url: str, name: str, file: io.BufferedRandom, sha256: str) -> None:
    for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
        begun = file.tell()
        try:
            _ask(url, name, file)
        except (httpx.TransportError, _PassingError) as error:
            if is_last:
                reason = f"{masked(url)} could not be reached ({error or type(error).__name__})"
                raise JarError(name, reason, _HINT) from error
            continue
        except (httpx.InvalidURL, httpx.TooManyRedirects) as error:
            raise JarError(name, f"{masked(url)} cannot be asked ({error})", _HINT) from error
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found == sha256:
            return
        if begun == 0 or is_last:
            reason = f"{masked(url)} sent something else than the pinned jar (sha256 {found[:12]}…, not {sha256[:12]}…)"
            raise JarError(name, reason, _HINT)
        # The parts may come from different versions, so start again.
        file.seek(0)
        file.truncate()


def _ask(url: str, name: str, file: io.BufferedRandom) -> None:
    """Append the missing rest of the jar; raises httpx's errors and _PassingError, with the file position at its end."""
    begun = file.seek(0, os.SEEK_END)
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={begun}-"} if begun else {})
    with httpx.stream("GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as answer:
        status = answer.status_code
        if begun and status != HTTPStatus.PARTIAL_CONTENT:
            # The answer is the whole jar or an error: the repository does not support ranges, or the jar has changed.
            begun = file.seek(0)
            file.truncate()
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
            raise _PassingError(f"it answered {status}")
        if not answer.is_success:
            raise JarError(name, f"{masked(url)} answered {status} {answer.reason_phrase}".strip(), _HINT)
        length = answer.headers.get("content-length", "")
        total = begun + int(length) if length.isdecimal() else None
        watch = WATCH.get()
        watch(name, begun, total)
        for part in answer.iter_raw(_STEP_BYTES):
            file.write(part)
            if file.tell() > _LARGEST_BYTES:
                raise JarError(name, f"{masked(url)} sends more than {_LARGEST_BYTES >> 20} MiB", _HINT)
            watch(name, file.tell(), total)


MAVEN = str(Settings.model_fields["jars_url"].default)


@dataclass(frozen=True)
class Jar:
    """One pinned jar."""

    organisation: str
    name: str
    version: str
    sha256: str
    classifier: str = ""
    """Maven classifier: selects one of several files of a version."""

    @property
    def path(self) -> str:
        """Path below the URL of a Maven repository."""
        return f"{self.organisation.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"

    @property
    def file_name(self) -> str:
        """Name in the jars folder."""
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + ".jar"


JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.12.0",
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    Jar(
        "org.apache.iceberg",
        "iceberg-aws-bundle",
        "1.12.0",
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
    Jar("org.xerial", "sqlite-jdbc", "3.54.1.0", "f8dce420a6016278497f4f0560f65602b9db858de141b541cf91a4644ebe4639"),
    Jar("org.postgresql", "postgresql", "42.7.14", "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"),
    Jar(
        "com.globalmentor",
        "hadoop-bare-naked-local-fs",
        "0.1.0",
        "e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62",
    ),
)


def default_jars_dir() -> Path:
    """In a clone a folder beside the code, otherwise a folder in the user's cache, named after the checksums of these jars."""
    if is_clone():
        return PROJECT_ROOT / ".jars"
    pins = hashlib.sha256(" ".join(f"{jar.file_name} {jar.sha256}" for jar in JARS).encode()).hexdigest()
    return platformdirs.user_cache_path("tidemark") / "jars" / pins[:16]


def jars_folder(settings: Settings) -> Path:
    """Return the jars folder of these settings."""
    return settings.jars_dir or default_jars_dir()


def available(settings: Settings) -> list[Path]:
    """Return the paths of all jars; downloads missing ones where the folder is the user's cache.

    Raises JarError for a jar that is missing elsewhere or cannot be downloaded. What is in them, `require_pinned` verifies.
    """
    folder = jars_folder(settings)
    missing = [jar for jar in JARS if not (folder / jar.file_name).is_file()]
    # A folder that an operator configured is filled only by `tidemark setup`: it may be shared or meant to be complete.
    if missing and (is_clone() or settings.jars_dir is not None):
        hint = "Fetch it: tidemark setup (in a clone: make setup)"
        raise JarError(str(folder / missing[0].file_name), "is missing", hint)
    fetch(folder, missing, url=settings.jars_url)
    return [folder / jar.file_name for jar in JARS]


def require_pinned(settings: Settings) -> None:
    """Raise JarError where a jar has other bytes than pinned: a JVM runs what is in it, whoever wrote it there."""
    for jar in JARS:
        path = jars_folder(settings) / jar.file_name
        if not _is_right(path, jar.sha256):
            raise JarError(str(path), "is not the jar that is pinned", "Find out who changed it; then: tidemark setup")


def fetch(folder: Path, jars: Sequence[Jar] = JARS, *, url: str = MAVEN) -> list[Path]:
    """Download jars that are missing or have another SHA-256 than pinned; returns the downloaded paths; raises JarError."""
    wrong = {folder / jar.file_name: jar for jar in jars if not _is_right(folder / jar.file_name, jar.sha256)}
    for path, jar in wrong.items():
        sweep(folder)
        download(f"{url.rstrip('/')}/{jar.path}", path, jar.sha256)
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
    # One process may open many sessions; a file that was written meanwhile, or replaced, has another state.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Download and verify all jars in the default folder; returns the exit code."""
    try:
        fetched = fetch(default_jars_dir(), url=load_settings().jars_url)
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{len(JARS)} jars verified, {len(fetched)} fetched\n")
    return 0


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


if __name__ == "__main__":
    raise SystemExit(main())
