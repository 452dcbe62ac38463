"""An HTTP client that goes only where it may: names are resolved once, looked at, and connected to as what was looked at."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.request import getproxies, proxy_bypass

import httpx

from pipeline_assets.domain.addresses import is_loopback, refusal_of_address
from pipeline_assets.domain.errors import SettingsError

_MOST_ADDRESSES = 4
"""Of one name that are tried, one after the other."""
Resolve = Callable[[str, int], Sequence[str]]


class ForbiddenAddressError(Exception):
    """A name leads where no request of ours goes; nothing was sent."""

    def __init__(self, reason: str) -> None:
        """What is wrong with where it leads, without the URL, which may open something."""
        super().__init__(reason)
        self.reason = reason


def addresses_of(host: str, port: int) -> list[str]:
    """All addresses of a name, in the order in which the system would try them; raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def asked_seconds(response: httpx.Response) -> float | None:
    """How long an answer asks to wait: `Retry-After`, in seconds or as a date; None where it is neither."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


def guarded_client(
    url: str, timeout: httpx.Timeout | None = None, resolve: Resolve = addresses_of, *, is_secret: bool = True
) -> httpx.Client:
    """A client for requests to one URL; redirects are not followed, and no answer is unpacked unasked.

    A request raises ForbiddenAddressError; SettingsError is raised here for a proxy that cannot be used. Where the
    environment names a proxy for the URL, names are resolved by it, and what they lead to is its operator's to bound; this
    machine itself is never asked through one. `is_secret`: what is sent goes to another machine by https alone.
    """
    # An encoded body would be unpacked without bounds.
    headers = {"Accept-Encoding": "identity"}
    parsed = httpx.URL(url)
    proxies = {} if is_loopback(parsed.host) or proxy_bypass(parsed.host) else getproxies()
    for kind in (parsed.scheme, "all"):
        if proxy := proxies.get(kind):
            # Others read a proxy without a scheme so as well.
            given = proxy if "://" in proxy else f"http://{proxy}"
            try:
                return httpx.Client(proxy=given, timeout=timeout, headers=headers, follow_redirects=False)
            except (ValueError, ImportError, httpx.InvalidURL):
                # Its words hold the proxy's password.
                raise _unusable_proxy(kind) from None
    return httpx.Client(
        transport=_Guarded(resolve, is_secret=is_secret), timeout=timeout, headers=headers, follow_redirects=False
    )


def _unusable_proxy(kind: str) -> SettingsError:
    named = [name for name in os.environ if name.lower() == f"{kind}_proxy"]
    hint = "Set it to http://host:port or https://host:port, or name the host that is asked in NO_PROXY"
    return SettingsError(
        min(named, default=f"{kind}_proxy", key=str.isupper), "names a proxy that cannot be used", hint
    )


class _Guarded(httpx.BaseTransport):
    """Connects to the address that was looked at, so that a name that changes its mind in between leads nowhere else."""

    def __init__(self, resolve: Resolve, *, is_secret: bool) -> None:
        self._resolve, self._is_secret = resolve, is_secret
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises ForbiddenAddressError, and what httpx raises."""
        failure: httpx.TransportError | None = None
        for address in self._allowed(request)[:_MOST_ADDRESSES]:
            # The certificate is that of the name, and the server is told the name (its Host header is set already).
            told = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": request.url.host},
            )
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
            if reason is None and self._is_secret and url.scheme != "https" and not is_loopback(address):
                reason = "is not this machine, so that secrets would travel in the clear"
            if reason is not None:
                msg = f"leads to {address}, which {reason}"
                raise ForbiddenAddressError(msg)
        return found
