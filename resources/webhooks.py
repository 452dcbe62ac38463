"""One request to a webhook: signed, tried again for a bounded time, and never followed to another place."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.retry import Backoff
from resources.guarded_http import ForbiddenAddressError, asked_seconds, guarded_client

SIGNATURE_HEADER = "Tidemark-Signature"
_ATTEMPT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.4
"""Doubled each time, and spread."""
_LONGEST_RETRY_AFTER = timedelta(hours=1)
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that time may turn into another one."""


@dataclass(frozen=True)
class Answer:
    """What became of one request."""

    is_taken: bool
    reason: str = ""
    """Why it was not taken, without any part of the address."""
    retry_at: datetime | None = None
    """Before this the receiver asked for no request."""
    is_for_good: bool = False
    """Whether it refused what was sent, and no later request with the same body will fare better."""
    is_passing: bool = False
    """Whether another attempt may get a better answer."""


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """The header's value: `t=<seconds since 1970>,v1=<hex HMAC-SHA256 of "<t>.<body>">`."""
    signed = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={signed}"


def post(url: str, body: bytes, secret: str | None, *, attempts: int, deadline: float) -> Answer:
    """Send JSON, at most so many times and until `deadline` (of `time.monotonic`); nothing is raised.

    Of the answer only status and `Retry-After` are read. A redirect is not followed: the body is for this address alone, and
    for no machine that serves its own keys (guarded_http.py).
    """
    # At its usual level the library logs whole addresses, which open webhooks.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    answer = Answer(is_taken=False, reason="there was no time left")
    try:
        client = guarded_client(url)
    except httpx.InvalidURL:
        return Answer(is_taken=False, reason="its address cannot be read")
    except SettingsError as error:
        return Answer(is_taken=False, reason=f"it cannot be reached: {error.subject} {error.reason}")
    backoff = Backoff(attempts, _FIRST_PAUSE_SECONDS)
    with client:
        for attempt in range(1, attempts + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            answer = _attempt(client, url, body, secret, min(left, _ATTEMPT_SECONDS))
            if not answer.is_passing or attempt == attempts:
                break
            asked = None if answer.retry_at is None else (answer.retry_at - datetime.now(UTC)).total_seconds()
            pause = backoff.pause_seconds(attempt, asked)
            if pause >= deadline - time.monotonic():
                break
            time.sleep(max(0.0, pause))
    return answer


def _attempt(client: httpx.Client, url: str, body: bytes, secret: str | None, seconds: float) -> Answer:
    headers = {"Content-Type": "application/json", "User-Agent": "tidemark"}
    if secret:
        headers[SIGNATURE_HEADER] = signature(secret, int(time.time()), body)
    try:
        with client.stream("POST", url, content=body, headers=headers, timeout=seconds) as response:
            status = response.status_code
    # The address may be part of an error's words, so only its kind is told.
    except ForbiddenAddressError as error:
        return Answer(is_taken=False, reason=f"its name {error.reason}")
    except (httpx.HTTPError, OSError) as error:
        return Answer(is_taken=False, reason=f"it cannot be reached ({type(error).__name__})", is_passing=True)
    if httpx.codes.is_success(status):
        return Answer(is_taken=True)
    if httpx.codes.is_redirect(status):
        reason = f"it answered {status}, a redirect, which is not followed; set the address that it leads to"
        return Answer(is_taken=False, reason=reason)
    if status in _PASSING:
        asked = asked_seconds(response)
        pause = None if asked is None else min(timedelta(seconds=asked), _LONGEST_RETRY_AFTER)
        retry_at = None if pause is None else datetime.now(UTC) + pause
        return Answer(is_taken=False, reason=f"it answered {status}", retry_at=retry_at, is_passing=True)
    is_for_good = httpx.codes.is_client_error(status)
    return Answer(is_taken=False, reason=f"it answered {status}", is_for_good=is_for_good)
