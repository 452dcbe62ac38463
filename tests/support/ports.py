"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_CHOSEN_BY_THE_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def a_free_port() -> int:
    """A free port below the kernel's range for connections, one of which could take it before the server starts."""
    chosen = _CHOSEN_BY_THE_KERNEL.read_text() if _CHOSEN_BY_THE_KERNEL.exists() else "32768"
    first, anyhow = int(chosen.split()[0]), random.SystemRandom()
    while True:
        port = anyhow.randrange(first // 2, first)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
