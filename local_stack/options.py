"""Options of the local stack: ports, and the size of a Spark worker, from variables that begin with STACK_."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.machine import cores

_DEFAULT_PORTS = {
    "STACK_PORT_POSTGRES": 5440,
    "STACK_PORT_S3": 9010,
    "STACK_PORT_SPARK": 7077,
    "STACK_PORT_SPARK_PAGE": 8090,
    "STACK_PORT_WORKER_1_PAGE": 8091,
    "STACK_PORT_WORKER_2_PAGE": 8092,
    "STACK_PORT_CODE": 4001,
    "STACK_PORT_WEBSERVER": 3001,
}
_LOWEST, _HIGHEST = 1024, 65535
_CORES, _MEMORY = "STACK_WORKER_CORES", "STACK_WORKER_MEMORY"
_LEAST_MEMORY_MIB = 512


@dataclass(frozen=True)
class Options:
    """The chosen options."""

    ports: Mapping[str, int]
    """Setting -> port, for every setting."""
    worker_cores: int
    worker_memory_mib: int
    """Memory of each worker, which gives all of it to one executor."""

    @property
    def chosen(self) -> dict[str, str]:
        """Setting -> value, for every setting."""
        ports = {name: str(port) for name, port in self.ports.items()}
        return {**ports, _CORES: str(self.worker_cores), _MEMORY: f"{self.worker_memory_mib}m"}

    def port(self, setting: str) -> int:
        """Return the port of a setting."""
        return self.ports[setting]


def read_options(environment: Mapping[str, str]) -> Options:
    """Read the variables; raises UsageError for an invalid value, an unknown setting and a duplicate port."""
    known = {*_DEFAULT_PORTS, _CORES, _MEMORY}
    for name in sorted(environment):
        if name.startswith(("STACK_PORT_", "STACK_WORKER_")) and name not in known:
            raise UsageError(
                name, "is no setting of the set", f"Correct its name or unset it: {', '.join(sorted(known))}"
            )
    ports = {name: _port(name, environment.get(name), default) for name, default in _DEFAULT_PORTS.items()}
    for name, port in ports.items():
        twin = next(other for other, its_port in ports.items() if its_port == port)
        if twin != name:
            raise UsageError(name, f"is port {port}, as is {twin}", "Give each a port of its own")
    return Options(ports, _worker_cores(environment.get(_CORES)), _memory_mib(environment.get(_MEMORY)))


def _port(name: str, text: str | None, default: int) -> int:
    if not text:
        return default
    if not text.isdecimal() or not _LOWEST <= int(text) <= _HIGHEST:
        raise UsageError(name, f"is no port (got {text!r})", f"Give a number from {_LOWEST} to {_HIGHEST}")
    return int(text)


def _worker_cores(text: str | None) -> int:
    """Cores of each of the two workers; by default half of the machine's."""
    if not text:
        return max(1, cores() // 2)
    if not text.isdecimal() or not int(text):
        raise UsageError(_CORES, f"is no number of cores (got {text!r})", "Give a number from 1")
    return int(text)


def _memory_mib(text: str | None) -> int:
    found = re.fullmatch(r"([1-9][0-9]*)([mg])", text or "1g", re.ASCII)
    mib = int(found[1]) * (1024 if found[2] == "g" else 1) if found else 0
    if mib < _LEAST_MEMORY_MIB:
        raise UsageError(
            _MEMORY, f"is no amount of memory (got {text!r})", f"Write 1g, or {_LEAST_MEMORY_MIB}m at least"
        )
    return mib
