"""Places named by URLs: folders, buckets, databases; what is supported, and what their text tells.

Contains: what makes a URL wrong, the local folder it names.
Add here: another kind of place.
Does not contain: opening places (resources/landing/backends.py, resources/ledger/engine.py), showing
URLs without their secrets (masking.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from pipeline_assets.domain.addresses import is_loopback, refusal_of_host


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


def require_supported_catalog(url: str) -> None:
    """Raise ValueError for a catalog that is neither a supported database nor an address of a REST catalog."""
    if not is_rest_catalog(url):
        require_supported_database(url)
        return
    parsed = urlsplit(url) if is_web_address(url) else None
    if parsed is None or parsed.query or not is_private_address(url) or "@" in parsed.netloc:
        msg = (
            "a REST catalog is https://host[:port][/path], or http:// on this machine, without a name, a password or a query; "
            'its credential belongs to TIDEMARK_SPARK_CONFIG ("spark.sql.catalog.lake.credential")'
        )
        raise ValueError(msg)


def is_rest_catalog(url: str) -> bool:
    """Whether a catalog is asked over HTTP, and not in a database."""
    return url.startswith(("http://", "https://"))


METRICS_SUFFIX = ".prom"
"""The textfile collector of node_exporter reads no other files."""


def is_web_address(url: str) -> bool:
    """Whether a request can be sent to it: http or https, a host, no blank and no fragment."""
    # A backslash ends the host for some who read URLs, and belongs to it for others.
    if not url.isascii() or not url.isprintable() or set(url) & set(" \\"):
        return False
    try:
        parsed = urlsplit(url)
        has_port = parsed.port is None or parsed.port > 0
    except ValueError:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.hostname) and has_port and not parsed.fragment


def refusal_of_web_address(url: str) -> str | None:
    """Why nothing is sent to a URL, None where it may be; raises nothing, and repeats no part of the URL but a host's address.

    No name and password in it, https or this machine, and no host that serves a machine's own keys.
    """
    if not is_web_address(url):
        return "is not http:// or https:// with a host"
    parsed = urlsplit(url)
    if "@" in parsed.netloc:
        return "holds a name or a password before its host; a secret of a webhook belongs to its path"
    refusal = refusal_of_host(parsed.hostname or "")
    if refusal is not None:
        return f"names a host that {refusal}"
    if not is_private_address(url):
        return "is http:// and not of this machine, so that what is sent would travel in the clear; write https://"
    return None


def is_private_address(url: str) -> bool:
    """Whether nobody on the way reads what is sent there: https, or http to this machine itself."""
    try:
        parsed = urlsplit(url)
    except ValueError:
        return False
    return parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.hostname or ""))


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


def require_one_question(query: str) -> None:
    """Raise ValueError for SQL that is not one statement that asks.

    It is not taken apart: where a literal ends differs between databases, and so does what a `;` in one does.
    """
    text = query.strip().removesuffix(";")
    if ";" in text or "\0" in text:
        msg = "it holds a `;` before its end, and may be more than one statement; write one SELECT without any"
        raise ValueError(msg)
    if not re.match(r"(select|with|values)\b|\(", text, re.IGNORECASE):
        msg = "it does not begin with SELECT or WITH; it may ask, and nothing else"
        raise ValueError(msg)


def local_path(url: str) -> Path | None:
    """The folder a path or `file://` URL names, None for a remote one."""
    if "://" not in url:
        return Path(url)
    # Not urlsplit: a folder's name may hold `#` or `?`.
    return Path(unquote("/" + url.removeprefix("file://").lstrip("/"))) if url.startswith("file://") else None
