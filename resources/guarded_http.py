"""HTTP to permitted addresses only: each name is resolved once, checked and connected to; webhook requests are signed."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

import httpx

from pipeline_assets.domain.errors import Backoff, SettingsError
from pipeline_assets.domain.places import is_loopback, refusal_of_address

_MOST_ADDRESSES = 4
Resolve = Callable[[str, int], Sequence[str]]


class ForbiddenAddressError(Exception):
    """A name leads to a forbidden address; nothing was sent."""


def addresses_of(host: str, port: int) -> list[str]:
    """Return all addresses of a name, in the system's order; raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def asked_seconds(response: httpx.Response) -> float | None:
    """Return the seconds of `Retry-After`, given in seconds or as a date; None without either."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    moment = http_date(text)
    return None if moment is None else max(0.0, (moment - datetime.now(UTC)).total_seconds())


def http_date(text: str) -> datetime | None:
    """Return the moment of an HTTP date, aware; None where it cannot be read."""
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def guarded_client(url: str, timeout: httpx.Timeout | None = None, resolve: Resolve = addresses_of) -> httpx.Client:
    """Return a client for one URL, without redirects and decompression; raises SettingsError for an unusable proxy.

    Requests raise ForbiddenAddressError; a proxy resolves names itself. Content leaves this machine by https alone.
    """
    # An encoded body would be unpacked without bounds.
    headers = {"Accept-Encoding": "identity"}
    parsed = httpx.URL(url)
    proxies = {} if is_loopback(parsed.host) or proxy_bypass(parsed.host) else getproxies()
    for kind in (parsed.scheme, "all"):
        if proxy := proxies.get(kind):
            given = proxy if "://" in proxy else f"http://{proxy}"
            try:
                return httpx.Client(proxy=given, timeout=timeout, headers=headers, follow_redirects=False)
            except (ValueError, ImportError, httpx.InvalidURL):
                named = [name for name in os.environ if name.lower() == f"{kind}_proxy"]
                hint = "Set it to http://host:port or https://host:port, or name the host that is asked in NO_PROXY"
                subject = min(named, default=f"{kind}_proxy", key=str.isupper)
                # Without the cause, whose text holds the proxy's password.
                raise SettingsError(subject, "names a proxy that cannot be used", hint) from None
    return httpx.Client(transport=_Guarded(resolve), timeout=timeout, headers=headers, follow_redirects=False)


class _Guarded(httpx.BaseTransport):
    """Connects to the checked address, so that a name with another address a moment later leads nowhere else."""

    def __init__(self, resolve: Resolve) -> None:
        places = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        changed = (Path(one).stat().st_mtime_ns if one and Path(one).exists() else 0 for one in places)
        trusted = _certificates(*places, *changed)
        self._resolve, self._inner = resolve, httpx.HTTPTransport(verify=trusted)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        failure: httpx.TransportError | None = None
        for address in self._allowed(request)[:_MOST_ADDRESSES]:
            # Certificate and server name are those of the name (its Host header is set already).
            url, named = request.url.copy_with(host=address), request.extensions | {"sni_hostname": request.url.host}
            told = httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=named)
            try:
                return self._inner.handle_request(told)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure or httpx.ConnectError("its name has no address", request=request)

    def close(self) -> None:
        self._inner.close()

    def _allowed(self, request: httpx.Request) -> Sequence[str]:
        url = request.url
        try:
            found = self._resolve(url.host, url.port or (443 if url.scheme == "https" else 80))
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"its name cannot be resolved ({error})", request=request) from error
        for address in found:
            reason = refusal_of_address(address)
            if reason is None and url.scheme != "https" and not is_loopback(address):
                reason = "is not this machine, so that secrets would travel in the clear"
            if reason is not None:
                raise ForbiddenAddressError(f"leads to {address}, which {reason}")
        return found


@cache
def _certificates(_file: str | None, _folder: str | None, _file_at: int, _folder_at: int) -> ssl.SSLContext:
    """Return what httpx trusts with these variables, as changed at these times; reading it takes longer than most requests."""
    return httpx.create_ssl_context()


SIGNATURE_HEADER = "Tidemark-Signature"
_ATTEMPT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.4
_LONGEST_RETRY_AFTER = timedelta(hours=1)
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Answer:
    """The outcome of one request."""

    is_taken: bool
    reason: str = ""
    retry_at: datetime | None = None
    """The receiver asks for no request before this."""
    is_for_good: bool = False
    """Whether it refused this body for good."""
    is_passing: bool = False


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the header's value: `t=<seconds since 1970>,v1=<hex HMAC-SHA256 of "<t>.<body>">`."""
    signed = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={signed}"


def post(url: str, body: bytes, secret: str | None, *, attempts: int, deadline: float) -> Answer:
    """Send JSON, at most `attempts` times and until `deadline` (of `time.monotonic`); raises nothing, follows no redirect."""
    # At its usual level the library logs whole addresses, which open webhooks.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        client = guarded_client(url)
    except httpx.InvalidURL:
        return Answer(is_taken=False, reason="its address cannot be read")
    except SettingsError as error:
        return Answer(is_taken=False, reason=f"it cannot be reached: {error.subject} {error.reason}")
    backoff, pause = Backoff(attempts, _FIRST_PAUSE_SECONDS), 0.0
    answer = Answer(is_taken=False, reason="there was no time left")
    with client:
        for attempt in range(1, attempts + 1):
            left = deadline - time.monotonic() - pause
            if left <= 0:
                break
            time.sleep(pause)
            answer = _attempt(client, url, body, secret, min(left, _ATTEMPT_SECONDS))
            if not answer.is_passing:
                break
            asked = None if answer.retry_at is None else (answer.retry_at - datetime.now(UTC)).total_seconds()
            pause = max(0.0, backoff.pause_seconds(attempt, asked))
    return answer


def _attempt(client: httpx.Client, url: str, body: bytes, secret: str | None, seconds: float) -> Answer:
    headers = {"Content-Type": "application/json", "User-Agent": "tidemark"}
    if secret:
        headers[SIGNATURE_HEADER] = signature(secret, int(time.time()), body)
    try:
        with client.stream("POST", url, content=body, headers=headers, timeout=seconds) as response:
            status = response.status_code
    # An error's text may hold the address, so only its kind is reported.
    except ForbiddenAddressError as error:
        return Answer(is_taken=False, reason=f"its name {error}")
    except (httpx.HTTPError, OSError) as error:
        return Answer(is_taken=False, reason=f"it cannot be reached ({type(error).__name__})", is_passing=True)
    if httpx.codes.is_success(status):
        return Answer(is_taken=True)
    reason, is_passing = f"it answered {status}", status in _PASSING
    if httpx.codes.is_redirect(status):
        reason += ", a redirect, which is not followed; set the address that it leads to"
    asked = asked_seconds(response) if is_passing else None
    retry_at = None if asked is None else datetime.now(UTC) + min(timedelta(seconds=asked), _LONGEST_RETRY_AFTER)
    is_for_good = httpx.codes.is_client_error(status) and not is_passing
    return Answer(is_taken=False, reason=reason, retry_at=retry_at, is_for_good=is_for_good, is_passing=is_passing)
