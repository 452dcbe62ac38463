"""Places named by URLs: folders, buckets, databases; what is supported, and what their text tells.

Contains: what makes a URL wrong, the local folder it names.
Add here: another kind of place.
Does not contain: opening places (resources/landing/backends.py, resources/ledger/engine.py), showing
URLs without their secrets (masking.py).
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError


def require_supported_place(url: str) -> None:
    """Raise ValueError for a scheme that is not supported, and for credentials in the URL."""
    # What is wrong is not repeated: it may hold a key, wherever that was put by mistake.
    scheme, mark, place = url.partition("://")
    if mark and scheme not in {"file", "s3"}:
        msg = "its scheme is not supported; use a path, file:// or s3://"
        raise ValueError(msg)
    # No bucket's name has one of these; a secret key may hold `/`, so that its `@` stands anywhere.
    is_keyed = scheme == "s3" and set(place.partition("/")[0]) & {":", "@"}
    bare = re.sub(r"^(file|s3):/*", "", url)
    if is_keyed or re.search(r"(^|/)[^/:]*:[^/@]*@", url) or re.match(r"[^/:]*:[^@]*@", bare):
        msg = "it holds credentials; take them out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        raise ValueError(msg)


def require_supported_database(url: str) -> None:
    """Raise ValueError for a database that is not supported, or whose URL cannot be read."""
    if not url.startswith(("sqlite:///", "postgresql://", "postgresql+psycopg2://")):
        msg = "use sqlite:////absolute/path.db or postgresql://user@host/database"
        raise ValueError(msg)
    if not is_readable_database(url):
        msg = "it cannot be read; write postgresql://user:password@host:port/database, in a password %40 for @ and %2F for /"
        raise ValueError(msg)


METRICS_SUFFIX = ".prom"
"""The textfile collector of node_exporter reads no other files."""


def is_web_address(url: str) -> bool:
    """Whether a request can be sent to it: http or https, a host, no blank and no fragment."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parsed = urlsplit(url)
        has_port = parsed.port is None or parsed.port > 0
    except ValueError:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.hostname) and has_port and not parsed.fragment


def is_private_address(url: str) -> bool:
    """Whether nobody on the way reads what is sent there: https, or http to this machine itself."""
    try:
        parsed = urlsplit(url)
    except ValueError:
        return False
    return parsed.scheme == "https" or (parsed.scheme == "http" and _is_loopback(parsed.hostname or ""))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_readable_database(url: str) -> bool:
    """Whether user, password, host and database can be told apart: else a part of the password is taken for a name."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    if parsed.get_backend_name() == "sqlite":
        return parsed.host is None
    names = (parsed.username, parsed.host, parsed.database)
    return not any(set(name or "") & set("@?") for name in names) and "/" not in (parsed.username or "")


def local_path(url: str) -> Path | None:
    """The folder a path or `file://` URL names, None for a remote one."""
    if "://" not in url:
        return Path(url)
    # Not urlsplit: a folder's name may hold `#` or `?`.
    return Path(unquote("/" + url.removeprefix("file://").lstrip("/"))) if url.startswith("file://") else None
