"""What an answer of the Export API means, from its status, headers and words: an archive, no data, or which failure."""

from __future__ import annotations

import html
import re
from http import HTTPStatus

import httpx

from pipeline_assets.domain.errors import (
    ExportAccessError,
    ExportAnswerError,
    ExportContentError,
    ExportRefusedError,
    ExportTooLargeError,
    TidemarkError,
)
from pipeline_assets.domain.masking import scrubbed
from pipeline_assets.domain.masking import shown as shown_url
from resources.export_api.credentials import key_variable, secret_variable
from resources.guarded_http import asked_seconds

_EU = "https://analytics.eu.amplitude.com/api/2/export"
_WORDS = 200
"""Characters of what a server says that are repeated."""
_ZIP = b"PK"
_OF_SIZE = re.compile(
    r"\bsize\b.{0,80}\b(?:limit|exceed|maximum|too )|\b(?:limit|maximum|exceed)\w*\b.{0,40}\bsize\b|\b[0-9.]+ ?GB\b"
    r"|\b(?:file|data|export|archive|amount|range)\w*\b.{0,80}\btoo (?:large|big|much)\b|\btoo much data\b",
    re.IGNORECASE,
)
"""What the words of a 400 have where it is of size; the documentation knows no other, but the vendor sends others."""
CURE_OF_URL = f"Check TIDEMARK_EXPORT_API_URL (projects in the EU: {_EU}), and proxies on the way"


class PassingError(Exception):
    """The same question may be answered later."""

    def __init__(self, reason: str, asked_seconds: float | None = None) -> None:
        """Why, and how long the server asked to wait."""
        super().__init__(reason)
        self.reason = reason
        self.asked_seconds = asked_seconds


def failure_of(subject: str, project_id: str, response: httpx.Response, body: str) -> TidemarkError | PassingError:
    """What an answer other than 200 and 404 means; `body`: the beginning of its text."""
    status = response.status_code
    said = f"the vendor answered {_named(status)}{_said(response, body)}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        names = f"{key_variable(project_id)} and {secret_variable(project_id)}"
        hint = (
            f"Check {names}: API key and secret key of this very project; in the EU set TIDEMARK_EXPORT_API_URL={_EU}"
        )
        return ExportAccessError(subject, f"{said}: it does not take the project's keys", hint)
    if status == HTTPStatus.GATEWAY_TIMEOUT or (status == HTTPStatus.BAD_REQUEST and _OF_SIZE.search(_words(body))):
        hint = "Have the vendor export these hours to the bucket by hand (Amazon S3 export, manual), below the backfill prefix"
        return ExportTooLargeError(subject, f"{said}: it is more than the vendor exports at once", hint)
    if status == HTTPStatus.BAD_REQUEST:
        return _refused(subject, said if _words(body) else f"{said} without a word of why")
    if (
        status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
        or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    ):
        return PassingError(said, asked_seconds(response))
    if 300 <= status < 400:
        place = shown_url(response.headers.get("location", ""))[:_WORDS]
        return ExportAnswerError(subject, f"{said} and points to {place}; keys are not sent there", CURE_OF_URL)
    return ExportAnswerError(subject, f"{said}, which the Export API never does", CURE_OF_URL)


def require_archive(subject: str, response: httpx.Response, beginning: bytes) -> None:
    """Raise ExportAnswerError where 200 brings a page, ExportContentError where it brings anything else but a zip."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("text/html") or beginning.lstrip()[:1] == b"<":
        text = _told(beginning[:2000].decode("utf-8", "replace"))
        raise ExportAnswerError(subject, f"a page answered instead of the Export API ({text or kind})", CURE_OF_URL)
    if not beginning.startswith(_ZIP) and (kind.startswith("text/") or kind == "application/json"):
        text = _told(beginning[:2000].decode("utf-8", "replace"))
        raise _refused(subject, f"the vendor answered in words instead of an archive ({kind}: {text})")
    if not beginning.startswith(_ZIP):
        named = f", but {kind}" if kind and kind != "application/zip" else ""
        hint = "Try again later; if it stays, ask the vendor what it exports for these hours"
        raise ExportContentError(subject, f"what the vendor sent is no zip archive{named}", hint)


def _refused(subject: str, reason: str) -> ExportRefusedError:
    hint = "Do what the vendor's words ask for, or ask it why it refuses these hours; then run the same recovery again"
    return ExportRefusedError(subject, reason, hint)


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _said(response: httpx.Response, body: str) -> str:
    is_page = "html" in response.headers.get("content-type", "")
    text = _told(body)
    return f" ({'a page: ' if is_page else ''}{text})" if text else ""


def _told(body: str) -> str:
    # Before it is cut: half of a key is none to whoever removes keys.
    return scrubbed(_words(body))[:_WORDS].rstrip(". ")


def _words(body: str) -> str:
    """The words of a text or of a page, in one line."""
    plain = re.sub(r"(?is)<(script|style)\b.{0,4000}?</\1>|<[^<>]{0,500}>", " ", body)
    return " ".join(html.unescape(plain).split())
