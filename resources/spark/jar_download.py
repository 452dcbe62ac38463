"""Fetch one jar: into a file beside its place, verified, synced, then renamed; a jar is there whole and right, or not at all.

Contains: asking a Maven repository, going on after a break, the bounds of it, what a failure means.
Add here: how a repository is asked.
Does not contain: which jars there are (jars.py), how progress looks (pipeline_assets/cli/downloads.py).
"""

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
"""A repository may be away for about seven seconds; what has come is kept meanwhile."""
_TIMEOUT = httpx.Timeout(30.0)
"""Of silence, not of a download."""
_STEP_BYTES = 256 * 1024
_LARGEST_BYTES = 512 * 1024**2
"""No jar of ours has a quarter of it: what sends more is not the repository."""
_PART = ".part"
_ABANDONED_SECONDS = 24 * 3600
_HINT = (
    "Run `tidemark setup` where the repository can be reached (TIDEMARK_JARS_URL names a mirror), or copy a folder with "
    "the jars here and name it in TIDEMARK_JARS_DIR"
)
_HINT_OF_FOLDER = "Make room or correct the rights of its folder, or name another one in TIDEMARK_JARS_DIR"
_PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

Watch = Callable[[str, int, int | None], None]
"""Is told the name of a jar, how many bytes of it are here, and how many it has, if the repository says so."""
WATCH: ContextVar[Watch] = ContextVar("WATCH", default=lambda _name, _done, _total: None)
"""Who watches downloads: jars are first needed deep below the command that knows the terminal."""


class JarError(PermanentError):
    """A jar is missing, is not the pinned one, or cannot be fetched."""


class _PassingError(Exception):
    """The repository cannot answer now."""


def download(url: str, path: Path, sha256: str) -> None:
    """Put the jar at `path`, in place of what is there; raises JarError, and leaves what is there as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: two processes that fetch the same jar both end with it.
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
    """Remove what downloads left that were killed long ago."""
    for part in folder.glob(f".*.jar.*{_PART}"):
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
        # The two halves may be of different answers.
        file.seek(0)
        file.truncate()


def _ask(url: str, name: str, file: io.BufferedRandom) -> None:
    """Write what is left of the jar behind what is there; raises httpx's errors and _PassingError, with the file at its end."""
    begun = file.seek(0, os.SEEK_END)
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={begun}-"} if begun else {})
    with httpx.stream("GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as answer:
        status = answer.status_code
        if begun and status != HTTPStatus.PARTIAL_CONTENT:
            # From its beginning, or none: the repository knows no parts, or the jar is no longer what it was.
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
