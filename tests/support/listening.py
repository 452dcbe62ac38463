"""Where a session's processes listen: this machine alone, or everybody."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTENS = "0A"


def heard_from_elsewhere(session: int) -> set[str]:
    """Programs of a session that other machines can reach, with address and port."""
    return {
        f"{name} at {address} port {port}"
        for name, address, port in listening(session)
        if not (
            address.is_loopback or (address.version == 6 and address.ipv4_mapped and address.ipv4_mapped.is_loopback)
        )
    }


def listening(session: int) -> Iterator[tuple[str, IPv4Address | IPv6Address, int]]:
    """Program, address and port of each listening socket of the session."""
    sockets = dict(_sockets())
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3]) != session:
                continue
            name = (entry / "comm").read_text().strip()
            for descriptor in (entry / "fd").iterdir():
                with suppress(OSError):
                    inode = str(descriptor.readlink()).removeprefix("socket:[").rstrip("]")
                    if inode in sockets:
                        yield name, *sockets[inode]


def _sockets() -> Iterator[tuple[str, tuple[IPv4Address | IPv6Address, int]]]:
    """Inode -> address."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != _LISTENS:
                continue
            words, port = fields[1].split(":")
            # Words of four bytes in this machine's byte order.
            packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
            family = socket.AF_INET if table == "tcp" else socket.AF_INET6
            yield fields[9], (ip_address(socket.inet_ntop(family, packed)), int(port, 16))
