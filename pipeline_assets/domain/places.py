"""Places named by URLs: folders, buckets, databases, web addresses."""

from __future__ import annotations

import os
import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

_METADATA = tuple(
    map(ip_network, ("fd00:ec2::/32", "fd20:ce::/64", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"))
)
"""Metadata services of AWS, Google, Alibaba, Azure and Oracle that do not use link-local addresses, such as 169.254.169.254."""
_METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
_TRANSLATED = ip_network("64:ff9b::/96")
"""IPv4 behind a translator (RFC 6052)."""
_OF_NO_MACHINE = tuple(map(ip_network, ("0.0.0.0/8", "64:ff9b:1::/48", "::ffff:0:0:0/96")))
"""This network, and IPv4 behind translators that alone know where in the address it stands (RFC 8215, RFC 2765)."""
_ISATAP = frozenset({0x5EFE, 0x200_5EFE})
"""Beginnings of interface numbers that end in an IPv4 address (RFC 5214)."""
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


def refusal_of_address(text: str) -> str | None:
    """Why nothing is sent to an IP address, else None; private networks are allowed, other texts are refused."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return "is no IP address"
    for one in (address, *_within(address)):
        if one.is_link_local or any(one in network for network in _METADATA if network.version == one.version):
            return "is where a machine or its cloud serves its own keys"
        if one.is_multicast or one.is_unspecified or any(one in network for network in _OF_NO_MACHINE):
            return "is not the address of one machine"
        if one.is_reserved and not isinstance(one, IPv6Address):
            return "is reserved"
    return None


def refusal_of_host(host: str) -> str | None:
    """Why no URL may name this host, else None; its addresses are checked when connecting."""
    bare = host.strip("[]").rstrip(".").lower()
    try:
        ip_address(bare.partition("%")[0])
    except ValueError:
        pass
    else:
        return refusal_of_address(bare)
    if bare in _METADATA_NAMES:
        return "is where a machine or its cloud serves its own keys"
    labels = bare.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or len(bare) > 253:
        return "is no name of a host"
    # Resolvers take `2852039166`, `0xa9fea9fe` and `169.254.43518` for addresses.
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        return "is a number that stands for an address; write a.b.c.d"
    return None


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine itself; other names may lead anywhere."""
    bare = host.strip("[]").rstrip(".").lower()
    if bare == "localhost":
        return True
    try:
        address = ip_address(bare)
    except ValueError:
        return False
    # Other IPv6 forms of an IPv4 address lead to a relay or translator, which is another machine.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def _within(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, IPv4Address) or address.is_loopback:
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    number = int(address)
    if address in _TRANSLATED or number >> 32 == 0 or (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        found.append(IPv4Address(number & 0xFFFF_FFFF))
    return [one for one in found if one is not None]


def require_supported_place(url: str) -> None:
    """Raise ValueError for an unsupported scheme, and for credentials in the URL."""
    # The messages never repeat the URL, which may hold a key.
    scheme, mark, place = url.partition("://")
    if mark and scheme not in {"file", "s3"}:
        msg = "its scheme is not supported; use a path, file:// or s3://"
        raise ValueError(msg)
    # Bucket names have neither; a secret key may hold `/`, so that its `@` may be anywhere.
    is_keyed = scheme == "s3" and set(place.partition("/")[0]) & {":", "@"}
    bare = re.sub(r"^(file|s3):/*", "", url)
    if is_keyed or re.search(r"(^|/)[^/:]*:[^/@]*@", url) or re.match(r"[^/:]*:[^@]*@", bare):
        msg = "it holds credentials; take them out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        raise ValueError(msg)


def require_supported_database(url: str) -> None:
    """Raise ValueError for an unsupported database, or a URL that cannot be parsed."""
    if not url.startswith(("sqlite:///", "postgresql://", "postgresql+psycopg2://")):
        msg = "use sqlite:////absolute/path.db or postgresql://user@host/database"
        raise ValueError(msg)
    if not is_readable_database(url):
        msg = "it cannot be read; write postgresql://user:password@host:port/database, in a password %40 for @ and %2F for /"
        raise ValueError(msg)


def require_supported_catalog(url: str) -> None:
    """Raise ValueError for a catalog that is neither a supported database nor the address of a REST catalog."""
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
    """Whether the URL names a REST catalog rather than a database."""
    return url.startswith(("http://", "https://"))


METRICS_SUFFIX = ".prom"
"""The suffix that node_exporter's textfile collector reads."""


def is_web_address(url: str) -> bool:
    """Whether a request can be sent to the URL: http or https, with a host, without blanks and a fragment."""
    # Some URL parsers end the host at a backslash.
    if not url.isascii() or not url.isprintable() or set(url) & set(" \\"):
        return False
    try:
        parsed = urlsplit(url)
        has_port = parsed.port is None or parsed.port > 0
    except ValueError:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.hostname) and has_port and not parsed.fragment


def refusal_of_web_address(url: str) -> str | None:
    """Why nothing is sent to a URL, else None; the text repeats at most an address of its host.

    Refused are credentials in it, http to another machine, and hosts that serve a machine's own credentials.
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
    """Whether nobody can read requests on their way: https, or http to this machine."""
    try:
        parsed = urlsplit(url)
    except ValueError:
        return False
    return parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.hostname or ""))


def is_readable_database(url: str) -> bool:
    """Whether user, password, host and database can be told apart: otherwise a password may pass as a name."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    if parsed.get_backend_name() == "sqlite":
        return parsed.host is None
    names = (parsed.username, parsed.host, parsed.database)
    return not any(set(name or "") & set("@?") for name in names) and "/" not in (parsed.username or "")


def require_one_question(query: str) -> None:
    """Raise ValueError for SQL that is not one SELECT; it is not parsed, as databases differ in where a literal ends."""
    text = query.strip().removesuffix(";")
    if ";" in text or "\0" in text:
        msg = "it holds a `;` before its end, and may be more than one statement; write one SELECT without any"
        raise ValueError(msg)
    if not re.match(r"(select|with|values)\b|\(", text, re.IGNORECASE):
        msg = "it does not begin with SELECT or WITH; it may ask, and nothing else"
        raise ValueError(msg)


def local_path(url: str) -> Path | None:
    """The folder that a path or `file:` URL names; None for a remote place."""
    if url.startswith("file:/") and not url.startswith("file://"):
        # Iceberg spells a plain path; `file://` of settings may be percent-encoded.
        return Path(url.removeprefix("file:"))
    if "://" not in url:
        return Path(url)
    # Not urlsplit: a folder's name may hold `#` or `?`.
    return Path(unquote("/" + url.removeprefix("file://").lstrip("/"))) if url.startswith("file://") else None


def resolved(url: str) -> str:
    """The place, equal for all URLs that name it: links are followed, `..` and `//` resolved, schemes unified."""
    scheme, _, path = url.partition(":")
    if scheme in ("s3", "s3a", "s3n"):
        return f"s3://{'/'.join(filter(None, path.split('/')))}"
    folder = local_path(url)
    return url.rstrip("/") if folder is None else os.path.realpath(folder)


def is_below(url: str, place: str) -> bool:
    """Whether a URL names a place, or one in it, as spelt or with all links followed."""
    return any(f"{name(url)}/".startswith(f"{name(place).rstrip('/')}/") for name in (resolved, _spelt))


def _spelt(url: str) -> str:
    folder = local_path(url)
    return resolved(url) if folder is None else os.path.normpath(folder)
