"""Download one jar atomically: into a temporary file, which is verified, synced and renamed."""

from __future__ import annotations

import hashlib
import io
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from http import HTTPStatus
from pathlib import Path

import httpx

from pipeline_assets.domain.errors import PermanentError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.retry import tries

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
_PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

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
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        _outlive_a_power_cut(path.parent)
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
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in {
            *_PASSING,
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
        }:
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


def _outlive_a_power_cut(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
