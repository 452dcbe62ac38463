"""Mask secrets in all output: passwords of databases, keys of stores, addresses of webhooks."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"
URL_SETTINGS = ("landing_url", "warehouse_url", "catalog_url", "ledger_url", "golden_url", "export_api_url", "jars_url")
NAMES_OF_SECRETS = (
    r"(?i)secret|passw|passphrase|passfile|pwd|token|credential|(?:access|private|api)[._-]?key"
    r"|authorization|\.header\."
)
"""Names of settings and options with a secret, as a REST catalog's headers; also for `spark.redaction.regex`."""
_PLACE_OF_SECRET = re.compile(r"spark\.executorEnv\.[A-Z0-9_]+_(?:FILE|URI|DIR|PATH)")
"""Where an executor finds a role's credentials, such as `AWS_WEB_IDENTITY_TOKEN_FILE`."""
_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD", "TIDEMARK_NOTIFY_SECRET")
_URL_VARIABLES = (
    *(f"TIDEMARK_{name.upper()}" for name in URL_SETTINGS),
    "DAGSTER_POSTGRES_URL",
    *(name for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY") for name in (proxy, proxy.lower())),
)
"""Variables with a URL that may hold a password; libraries read those that are no settings."""
EXPORT_CREDENTIALS = re.compile(r"TIDEMARK_EXPORT_(?:KEY|SECRET)_[1-9][0-9]{0,18}")
_RECEIVERS = "notify_urls"
_SHORTEST_PATH = 16
"""A shorter path of a webhook's address opens nothing, and may be a word of any text."""
_SHORTEST = 6
"""A shorter secret is masked only where a URL holds it, as it may be a word of any text."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
_PLAIN_USER = re.compile(r"[\w.-]{0,63}")
_PLAIN_OPTIONS = frozenset({"sslmode", "connect_timeout", "application_name", "target_session_attrs"})
# Bounded repeats: the cost on untrusted text is linear.
_IN_URLS = re.compile(r"(://[^\s/@:]{0,256}:)[^\s/@]{1,256}@")
_ASSIGNED = re.compile(
    r"(?i)((?:password|passwd|pwd|passphrase|passfile|secret(?:[._-]?access)?[._-]?key|session[._-]?token)=)[^\s&,;'\")]{1,512}"
)
_LONGEST_TRACE = 20_000
_remembered: set[str] = set()


def masked(url: str) -> str:
    """A URL without its secrets; `***` where its parts cannot be told apart."""
    scheme, mark, rest = url.partition("://")
    if not mark or not _SCHEME.fullmatch(scheme):
        return MASK
    place, question, query = rest.partition("?")
    options = "&".join(_option(part) for part in query.split("&")) if query else ""
    if place.startswith("/"):
        # A file, or a server written with a slash too many, whose password is hidden.
        is_server = re.search(r":[^/]{0,512}@", place) is not None or "@" in query
        return f"{scheme}://{MASK}" if is_server else f"{url.partition('?')[0]}{question}{options}"
    userinfo, at, host = place.rpartition("@")
    if "@" in query or "/" in userinfo or ":" in host.partition("/")[2]:
        return f"{scheme}://{MASK}"
    port = host.partition("/")[0].rpartition("]")[2].partition(":")[2]
    if port and not port.isdecimal():
        return f"{scheme}://{MASK}"
    user, colon, _ = userinfo.partition(":")
    shown_user = f"{user}:{MASK}" if colon else user
    if at:
        host = f"{shown_user if _PLAIN_USER.fullmatch(user) else MASK}@{host}"
    return f"{scheme}://{host}{question}{options}"


def shown(place: str) -> str:
    """A URL as `masked`, or a path as it is."""
    return masked(place) if "://" in place else place


def receiver_place(url: str) -> str:
    """The server of a webhook's address; the rest opens it."""
    scheme, mark, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    if not mark or not _SCHEME.fullmatch(scheme) or not re.fullmatch(r"[A-Za-z0-9.\-:\[\]]{1,300}", host):
        return MASK
    return f"{scheme}://{host}/{MASK}"


def receiver_id(url: str) -> str:
    """A webhook's id, a hash of its address."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def _receiver_secrets(urls: object) -> Iterator[str]:
    for url in urls.split(",") if isinstance(urls, str) else urls if isinstance(urls, list | tuple) else ():
        rest = str(url).strip().partition("://")[2]
        yield from _secrets_of(str(url).strip())
        path = re.split(r"(?=[/?#])", rest, maxsplit=1)[1:]
        yield from (part for part in path if len(part) >= _SHORTEST_PATH)


def _option(part: str) -> str:
    name, equals, _ = part.partition("=")
    if equals and name in _PLAIN_OPTIONS:
        return part
    return f"{name}={MASK}" if equals and re.fullmatch(r"[\w.]{1,40}", name) else MASK


def remember(values: Mapping[str, Any]) -> None:
    """Register the secrets among these settings, valid or not, so that `scrubbed` removes them from any text."""
    _remembered.update(_secrets_in(values))


def holds_secret(name: str, value: object) -> bool:
    """Whether a setting's value is a secret: a password in a URL, a webhook's path, a store's key."""
    return any(_secrets_in({name: value}))


def _secrets_in(values: Mapping[str, Any]) -> Iterator[str]:
    for url in (values[name] for name in URL_SETTINGS if values.get(name) is not None):
        yield from _secrets_of(str(url))
    yield from _receiver_secrets(values.get(_RECEIVERS))
    spark = values.get("spark_config")
    if isinstance(spark, Mapping):
        yield from (str(value) for name, value in spark.items() if is_secret_name(str(name)))


def remember_secret(value: str) -> None:
    """Register a secret that no setting holds."""
    _remembered.add(value)


def is_secret_name(name: str) -> bool:
    """Whether a setting or option of this name holds a secret."""
    return re.search(NAMES_OF_SECRETS, name) is not None and _PLACE_OF_SECRET.fullmatch(name) is None


def scrubbed(text: str) -> str:
    """The text without this process's secrets, and without passwords in URLs."""
    for secret in _present():
        text = text.replace(secret, MASK)
    if "://" in text:
        text = _IN_URLS.sub(rf"\g<1>{MASK}@", text)
    return _ASSIGNED.sub(rf"\g<1>{MASK}", text) if "=" in text else text


def _present() -> list[str]:
    secrets = set(_remembered)
    secrets.update(os.environ.get(name, "") for name in _SECRET_VARIABLES)
    credentials = [value for name, value in os.environ.items() if EXPORT_CREDENTIALS.fullmatch(name)]
    # They are sent without the line break that a secret file may bring.
    secrets.update((*credentials, *(value.strip() for value in credentials)))
    for name in _URL_VARIABLES:
        secrets.update(_secrets_of(os.environ.get(name, "")))
    secrets.update(_receiver_secrets(os.environ.get(f"TIDEMARK_{_RECEIVERS.upper()}")))
    return _spellings(frozenset(secrets))


@lru_cache(maxsize=64)
def _spellings(secrets: frozenset[str]) -> list[str]:
    """Each secret as it is, and as a URL, a literal, JSON or base64 writes it; longest first."""
    forms = set(secrets)
    for secret in secrets:
        forms |= {
            quote(secret, safe=""),
            quote(secret),
            quote_plus(secret),
            repr(secret)[1:-1],
            json.dumps(secret)[1:-1],
        }
        forms.add(base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode().rstrip("="))
    return sorted((form for form in forms if len(form) >= _SHORTEST), key=len, reverse=True)


@lru_cache(maxsize=64)
def _secrets_of(url: str) -> frozenset[str]:
    """The secrets of a URL, also of a mistyped one; words that it shows elsewhere are none."""
    secrets = set(_candidates(url))
    names = {user for user in (_user(url),) if user} | {"tidemark", "postgres", "postgresql", "localhost"}
    return frozenset(form for secret in secrets for form in (secret, unquote(secret)) if form not in names)


def _user(url: str) -> str:
    return url.partition("://")[2].partition(":")[0] or url.partition(":")[0]


def _candidates(url: str) -> Iterator[str]:
    rest = url.partition("://")[2] or url
    before, _, query = rest.partition("?")
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if equals and is_secret_name(name):
            yield from (value, unquote_plus(value))
    if "@" in rest:
        # A password or query may hold an `@`: end at the first and at the last one.
        for until in (before.rpartition("@")[0], before.partition("@")[0], rest.rpartition("@")[0]):
            yield until.partition(":")[2]
    port = before.partition("/")[0].rpartition("@")[2].rpartition("]")[2].partition(":")[2]
    if port and not port.isdecimal():
        yield port


class HiddenCauseError(Exception):
    """A failure as text, because its messages hold a secret or fill pages."""


def tellable(error: BaseException) -> BaseException:
    """The failure itself, or its scrubbed and shortened story if that has a secret or is too long."""
    story = "".join(traceback.format_exception(error))
    clean = scrubbed(story)
    if clean == story and len(story) <= _LONGEST_TRACE:
        return error
    if len(clean) > _LONGEST_TRACE:
        half = _LONGEST_TRACE // 2
        clean = f"{clean[:half]}\n… ({len(clean) - 2 * half:,} more characters)\n{clean[-half:]}"
    return HiddenCauseError(clean)
