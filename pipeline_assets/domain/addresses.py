"""Addresses of machines that no request of ours may go to: what opens a machine's own keys, and what is no machine."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_METADATA = tuple(
    ip_network(text)
    for text in (
        "fd00:ec2::/32",  # AWS: metadata, time and names of an instance by IPv6
        "fd20:ce::/64",  # Google
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's host
        "192.0.0.192/32",  # Oracle
    )
)
"""Beside link-local addresses, from where the others serve theirs (169.254.169.254, 169.254.170.2)."""
_METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
_TRANSLATED = ip_network("64:ff9b::/96")
"""IPv4 behind a translator (RFC 6052)."""
_OF_NO_MACHINE = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network: some systems take all of it for themselves
        "64:ff9b:1::/48",  # IPv4 behind a translator, which alone knows where in the address it stands (RFC 8215)
        "::ffff:0:0:0/96",  # the same (RFC 2765)
    )
)
_ISATAP = frozenset({0x5EFE, 0x200_5EFE})
"""What an interface's number begins with whose rest is an IPv4 address (RFC 5214)."""
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


def refusal_of_address(text: str) -> str | None:
    """Why nothing is sent to an IP address, None where it may be; a text that is none is refused as well.

    Private networks are allowed: receivers of a company stand there.
    """
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
    """Why no URL may name this host, None where it may: what a name leads to is found out when connecting."""
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
    # `2852039166`, `0xa9fea9fe` and `169.254.43518` are addresses to whoever resolves names, and to nobody who reads them.
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
    # Others that hold such an address lead to a relay or a translator first, and that is another machine.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def _within(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 one stands for."""
    if isinstance(address, IPv4Address) or address.is_loopback:
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    number = int(address)
    if address in _TRANSLATED or number >> 32 == 0 or (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        found.append(IPv4Address(number & 0xFFFF_FFFF))
    return [one for one in found if one is not None]
