"""The vendor's Export API: credentials, requests, and the meaning of its answers."""

from __future__ import annotations

import base64
import html
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import IO
from urllib.parse import urlsplit

import httpx

from pipeline_assets.domain import errors
from pipeline_assets.domain.days import HourRange
from pipeline_assets.domain.machine import a_spool_on_disk, spool_place
from pipeline_assets.domain.masking import remember_secret, scrubbed
from pipeline_assets.domain.masking import shown as shown_url
from pipeline_assets.domain.settings import Settings
from resources.guarded_http import ForbiddenAddressError, asked_seconds, guarded_client, http_date


def export_keys(project_id: str) -> tuple[str, str]:
    """Return a project's API key and secret key, from the environment alone; raises SettingsError for a missing one."""
    names = _key_variables(project_id)
    key, secret = (os.environ.get(name, "").strip() for name in names)
    for name, value in zip(names, (key, secret), strict=True):
        if not value:
            hint = f"Set {names[0]} and {names[1]} to the project's API key and secret key, in the environment alone"
            raise errors.SettingsError(name, "is not set, so the vendor cannot be asked for the project", hint)
    # The form sent over the wire is as secret as its parts.
    remember_secret(base64.b64encode(f"{key}:{secret}".encode()).decode())
    return key, secret


def _key_variables(project_id: str) -> tuple[str, str]:
    return f"TIDEMARK_EXPORT_KEY_{project_id}", f"TIDEMARK_EXPORT_SECRET_{project_id}"


_LARGEST_ANSWER = 5 * 1024**3
"""Of an export at once, in bytes: the vendor's limit is 4 GB (Export API, "Considerations")."""
_EU = "https://analytics.eu.amplitude.com/api/2/export"
_WORDS = 200
"""Characters of a server's text that are repeated."""
_ZIP = b"PK"
_CURE_OF_URL = f"Check TIDEMARK_EXPORT_API_URL (projects in the EU: {_EU}), and proxies on the way"


@dataclass(eq=False)
class _PassingError(Exception):
    """The same request may succeed later."""

    reason: str
    asked_seconds: float | None = None

    def __str__(self) -> str:
        return self.reason


def _failure_of(subject: str, project_id: str, response: httpx.Response, body: str) -> Exception:
    status = response.status_code
    said, told = f"the vendor answered {status} {response.reason_phrase}".rstrip(), _told(body)
    if told:
        is_page = "html" in response.headers.get("content-type", "")
        said = f"{said} ({'a page: ' if is_page else ''}{told})"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        keys = f"{' and '.join(_key_variables(project_id))}: API key and secret key of this very project"
        hint = f"Check {keys}; in the EU set TIDEMARK_EXPORT_API_URL={_EU}"
        return errors.ExportAccessError(subject, f"{said}: it does not take the project's keys", hint)
    if status in (HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.BAD_REQUEST):
        return _refused(subject, said if _words(body) else f"{said} without a word of why")
    is_busy = status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
    if is_busy or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _PassingError(said, asked_seconds(response))
    if 300 <= status < 400:
        place = shown_url(response.headers.get("location", ""))[:_WORDS]
        return errors.ExportAnswerError(subject, f"{said} and points to {place}; keys are not sent there", _CURE_OF_URL)
    return errors.ExportAnswerError(subject, f"{said}, which the Export API never does", _CURE_OF_URL)


def _require_archive(subject: str, response: httpx.Response, beginning: bytes) -> None:
    """Raise ExportAnswerError where 200 brings a page, ExportContentError for anything else but a zip."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    text = _told(beginning[:2000].decode("utf-8", "replace"))
    if kind.startswith("text/html") or beginning.lstrip()[:1] == b"<":
        reason = f"a page answered instead of the Export API ({text or kind})"
        raise errors.ExportAnswerError(subject, reason, _CURE_OF_URL)
    if beginning.startswith(_ZIP):
        return
    if kind.startswith("text/") or kind == "application/json":
        raise _refused(subject, f"the vendor answered in words instead of an archive ({kind}: {text})")
    named = f", but {kind}" if kind and kind != "application/zip" else ""
    hint = "Try again later; if it stays, ask the vendor what it exports for these hours"
    raise errors.ExportContentError(subject, f"what the vendor sent is no zip archive{named}", hint)


def _refused(subject: str, reason: str) -> errors.ExportRefusedError:
    hint = (
        "Do what the vendor's words ask for, or ask it why; of a single hour that is too large, have it export that to the "
        "bucket by hand (Amazon S3 export, manual), below the backfill prefix. Then run the same recovery again"
    )
    return errors.ExportRefusedError(subject, reason, hint)


def _told(body: str) -> str:
    # Before the cut: half of a key is not recognised as a key.
    return scrubbed(_words(body))[:_WORDS].rstrip(". ")


def _words(body: str) -> str:
    plain = re.sub(r"(?is)<(script|style)\b.{0,4000}?</\1>|<[^<>]{0,500}>", " ", body)
    return " ".join(html.unescape(plain).split())


_PATH = "/api/2/export"
_STEP_BYTES = 1024**2
_CONNECT_SECONDS = 30.0
_SILENCE_SECONDS = 600.0
_LONGEST_ANSWER_SECONDS = 4 * 3600.0
"""For one answer, however slow: at 370 KB a second the largest takes as long."""
_BODY_BYTES = 4096
"""For an answer that is no archive."""


@dataclass(frozen=True)
class Download:
    """The vendor's answer for a range of hours."""

    file: IO[bytes] | None
    """At its beginning, closed after the block that fetched it; None where the vendor has no data."""
    answered_at: datetime
    """Aware; by the vendor's or this machine's clock, whichever is behind."""


class ExportApi:
    """Requests hours of projects, one after the other."""

    def __init__(
        self,
        settings: Settings,
        say: Callable[[str], None] = lambda _: None,
        backoff: errors.Backoff | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(settings.export_api_url)
        self.url = settings.export_api_url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{_PATH}"
        self._backoff = backoff or errors.Backoff(settings.export_attempts)
        self._timeout = httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
        self._least_free = settings.export_min_free_bytes
        self._say, self._sleep = say, sleep
        self._asks_for_keys = False

    @contextmanager
    def fetch(
        self, project_id: str, hours: HourRange, received: Callable[[int], None] = lambda _: None
    ) -> Iterator[Download]:
        """Yield the archive of these hours; `received` gets the number of bytes as they come.

        Raises ExportAccessError and SettingsError (keys), ExportRefusedError (a shorter range may do), ExportAnswerError
        (another server), ExportContentError (no archive), ExportUnavailableError (beyond the retries), DiskFullError.
        """
        subject = f"export of {project_id}, {hours}"
        with closing(a_spool_on_disk()) as file:
            yield self._retried(subject, partial(self._once, subject, project_id, hours, file, received))

    def _retried(self, subject: str, ask: Callable[[], Download]) -> Download:
        for attempt in range(1, self._backoff.attempts + 1):
            try:
                return ask()
            except _PassingError as error:
                if attempt == self._backoff.attempts:
                    reason = f"{error.reason}; asked {attempt} times"
                    raise errors.ExportUnavailableError(subject, reason, "Run the same recovery again later") from error
                asked = error.asked_seconds
                if asked is not None and asked > self._backoff.longest_asked_seconds:
                    reason = f"{error.reason} and asks to wait for {asked:,.0f} s"
                    raise errors.ExportUnavailableError(
                        subject, reason, "Run the same recovery again after that"
                    ) from error
                pause = self._backoff.pause_seconds(attempt, asked)
                self._say(f"{subject}: {error.reason}; again in {pause:.0f} s ({attempt} of {self._backoff.attempts})")
                self._sleep(pause)
        raise AssertionError("at least one attempt returns or raises")

    def _once(
        self, subject: str, project_id: str, hours: HourRange, file: IO[bytes], received: Callable[[int], None]
    ) -> Download:
        file.seek(0)
        file.truncate()
        span = {name: f"{one.day:%Y%m%d}T{one.hour:02d}" for name, one in (("start", hours.first), ("end", hours.last))}
        try:
            with (
                guarded_client(self.url, self._timeout) as client,
                client.stream("GET", self.url, params=span, auth=export_keys(project_id)) as response,
            ):
                if response.status_code == HTTPStatus.NOT_FOUND:
                    self._require_vendor(subject, client, span)
                    return Download(None, _answered_at(response))
                if response.status_code == HTTPStatus.GATEWAY_TIMEOUT and len(hours) == 1:
                    raise _PassingError("the vendor answered 504 Gateway Timeout of a single hour")
                if response.status_code != HTTPStatus.OK:
                    raise _failure_of(subject, project_id, response, _beginning(response))
                # A download may take hours, so the time of the answer is that of its beginning.
                answered_at = _answered_at(response)
                self._receive(subject, response, file, received)
        except httpx.TimeoutException as error:
            raise _PassingError(f"the vendor did not answer in time ({type(error).__name__})") from error
        except httpx.RemoteProtocolError as error:
            raise _PassingError(f"the answer was cut off ({error})") from error
        except httpx.TransportError as error:
            raise _PassingError(f"the vendor is out of reach ({error or type(error).__name__})") from error
        except ForbiddenAddressError as error:
            reason = f"was not asked for: the API's name {error}"
            raise errors.ExportAnswerError(subject, reason, _CURE_OF_URL) from error
        except httpx.InvalidURL as error:
            raise errors.ExportAnswerError(subject, f"cannot be asked for ({error})", _CURE_OF_URL) from error
        file.seek(0)
        return Download(file, answered_at)

    def _require_vendor(self, subject: str, client: httpx.Client, span: Mapping[str, str]) -> None:
        """Raise ExportAnswerError unless the server requires keys: a 404 of any other server must not count as "no data"."""
        if self._asks_for_keys:
            return
        # Its body may be of any size, and says nothing.
        with client.stream("GET", self.url, params=span) as response:
            status = response.status_code
        if status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            reason = "answered 404 Not Found, and does not ask for keys as the Export API does"
            raise errors.ExportAnswerError(subject, reason, _CURE_OF_URL)
        self._asks_for_keys = True

    def _receive(
        self, subject: str, response: httpx.Response, file: IO[bytes], received: Callable[[int], None]
    ) -> None:
        announced = response.headers.get("content-length", "")
        self._require_room(file, int(announced) if announced.isdecimal() else 0)
        for part in _steps(response, _STEP_BYTES):
            if not file.tell():
                _require_archive(subject, response, part)
            if file.tell() + len(part) > _LARGEST_ANSWER:
                reason = f"the answer is larger than {_LARGEST_ANSWER:,} bytes, more than the vendor exports at once"
                raise errors.ExportContentError(subject, reason, "Ask the vendor what it exports for these hours")
            self._require_room(file, len(part))
            file.write(part)
            received(len(part))
        if not file.tell():
            raise _PassingError("the answer is empty")
        file.flush()

    def _require_room(self, file: IO[bytes], needed: int) -> None:
        disk = os.fstatvfs(file.fileno())
        free = disk.f_bavail * disk.f_frsize
        if free - needed < self._least_free:
            reason = f"has {free:,} bytes free; a download of {needed:,} would leave less than {self._least_free:,}"
            hint = "Make room, set TMPDIR to a larger disk, or lower TIDEMARK_EXPORT_MIN_FREE_BYTES; then recover again"
            raise errors.DiskFullError(spool_place(), reason, hint)


def _beginning(response: httpx.Response) -> str:
    body = next(_steps(response, _BODY_BYTES), b"")
    # The last word of a cut text may be half of a key.
    kept = body if len(body) < _BODY_BYTES else re.sub(rb"\S{1,512}$", b"", body[:_BODY_BYTES])
    return kept.decode("utf-8", "replace")


def _steps(response: httpx.Response, step_bytes: int) -> Iterator[bytes]:
    """The response's bytes, in parts of at least a step but for the last; raises _PassingError where the whole takes too long."""
    deadline = time.monotonic() + _LONGEST_ANSWER_SECONDS
    step = bytearray()
    for part in response.iter_raw():
        if time.monotonic() > deadline:
            raise _PassingError(f"the answer was not whole after {_LONGEST_ANSWER_SECONDS:,.0f} s")
        step += part
        if len(step) >= step_bytes:
            yield bytes(step)
            step.clear()
    if step:
        yield bytes(step)


def _answered_at(response: httpx.Response) -> datetime:
    now = datetime.now(UTC)
    return min(now, http_date(response.headers.get("date", "")) or now)
