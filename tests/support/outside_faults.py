"""Faults of the outside world: the fault, its moment, and the promised end of a load."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.support.fault_lake import Lake, Story
from tests.support.faulty_proxy import Fault
from tests.support.faulty_wire import Cut, Moment

LATE_SECONDS = 65.0
"""Longer than the client of landing waits for a byte."""
_AWAY_SECONDS = 3.0


class Promise(StrEnum):
    SUCCESS = "success"
    """After bounded retries."""
    SENTENCE = "one sentence"
    """Exit 1 with one sentence; readers see the state before."""


def _nothing(_: Lake) -> None: ...


@dataclass(frozen=True)
class OutsideFault:
    name: str
    where: str
    promise: Promise
    spoil: Callable[[Lake], None] = _nothing
    """Before the load begins."""
    point: str = ""
    """Failpoint at which the load pauses once."""
    at_point: Callable[[Lake], None] = _nothing
    says: str = ""
    """Part of a failed load's sentence."""
    story: Story = Story.SMALL
    lacks: Callable[[], str] = lambda: ""
    """Reason why this machine cannot run it, and the cure."""


@dataclass(frozen=True)
class _Rule:
    fault: Fault
    method: str
    part: str
    """Of the path and query."""
    times: int | None = 1
    """How often each such request fails; None for ever."""
    is_once: bool = False
    """Only the first of all such requests fails."""


def _requests(*rules: _Rule) -> Callable[[Lake], None]:
    """Every rule must strike for the fault to count as met."""

    def spoil(lake: Lake) -> None:
        met: Counter[_Rule] = Counter()

        def choose(method: str, path: str, turn: int) -> Fault | None:
            for rule in rules:
                is_meant = method == rule.method and rule.part in path and (rule.times is None or turn < rule.times)
                if is_meant and not (rule.is_once and met[rule]):
                    met[rule] += 1
                    return rule.fault
            return None

        lake.faults.late_seconds = LATE_SECONDS
        lake.faults.choose = choose
        lake.unmet = lambda: [f"{rule.fault} {rule.method} {rule.part}" for rule in rules if not met[rule]]

    return spoil


def _all(fault: Fault) -> Callable[[Lake], None]:
    def spoil(lake: Lake) -> None:
        lake.faults.choose = lambda *_: fault

    return spoil


def _wire(cut: bytes, moment: Moment, after: bytes = b"", times: int = 1) -> Callable[[Lake], None]:
    def spoil(lake: Lake) -> None:
        lake.is_by_wire = True
        lake.wire.cut = Cut(cut, moment, after, times)

    return spoil


def _restart(lake: Lake) -> None:
    lake.server.stop()
    threading.Timer(_AWAY_SECONDS, lake.server.start_again).start()


def _stop(lake: Lake) -> None:
    lake.server.stop()


def _kill_workers(lake: Lake) -> None:
    """SIGKILL to the Python workers of the load, once they read landing."""
    killed: list[int] = []

    def choose(method: str, path: str, _: int) -> None:
        if method == "GET" and ".json.gz" in path and not killed:
            killed.extend(_workers(lake.home))
            for pid in killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            lake.faults.met[Fault.SLOW] += len(killed)

    lake.faults.choose = choose


def _workers(home: Path) -> list[int]:
    """Processes that Spark's daemon of Python workers forked for the load with this home."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, IndexError):
            is_daemon = b"resources.spark.worker_daemon" in (entry / "cmdline").read_bytes()
            if is_daemon and f"DAGSTER_HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return [pid for pid, parent in parents.items() if parent in parents]


def _small_disk(lake: Lake) -> None:
    lake.spark["spark.local.dir"] = str(lake.small_disk())


def _lacks_mount() -> str:
    return "" if os.geteuid() == 0 else "needs the right to mount a small file system: run as root"


_LANDING, _STAGING, _PUBLISHING, _LEDGER = "reading landing", "staging data files", "publishing", "ledger"
_EVERYWHERE = f"{_LANDING}, {_STAGING}, {_PUBLISHING}"
_READ, _WRITTEN, _METADATA = ("GET", ".json.gz"), ("PUT", ".parquet"), ("PUT", ".metadata.json")
_COMMIT, _SWAP = b"COMMIT", b"UPDATE iceberg_tables"
_OK, _SAYS = Promise.SUCCESS, Promise.SENTENCE
_BUSY, _FOREVER = Fault.THROTTLED, None

FAULTS: dict[str, OutsideFault] = {
    "burst": OutsideFault("S3: 503 SlowDown, twice for each request", _EVERYWHERE, _OK,
        _requests(*(_Rule(_BUSY, *of, times=2) for of in (_READ, _WRITTEN, _METADATA)))),
    "throttled": OutsideFault("S3: 429 with Retry-After, once for each request", _EVERYWHERE, _OK,
        _requests(*(_Rule(Fault.TOO_MANY, *of) for of in (_READ, _WRITTEN, _METADATA)))),
    "forever-landing": OutsideFault("S3: 503 SlowDown, for ever", _LANDING, _SAYS,
        _requests(_Rule(_BUSY, *_READ, times=_FOREVER)), says="landing is out of reach: SlowDown"),
    "forever-staging": OutsideFault("S3: 503 SlowDown, for ever", _STAGING, _SAYS,
        _requests(_Rule(_BUSY, *_WRITTEN, times=_FOREVER)), says="warehouse is out of reach: SlowDown"),
    "forever-publishing": OutsideFault("S3: 503 SlowDown, for ever", _PUBLISHING, _SAYS, point="before_publish",
        at_point=_requests(_Rule(_BUSY, *_METADATA, times=_FOREVER)), says="out of reach"),
    "slow": OutsideFault(f"S3: answers trickle in; one comes after {LATE_SECONDS:.0f} s, past the read timeout",
        f"{_LANDING}, {_STAGING}", _OK,
        _requests(_Rule(Fault.LATE, *_WRITTEN, is_once=True), _Rule(Fault.TRICKLE, *_READ),
            _Rule(Fault.TRICKLE, "GET", ".parquet"))),
    "reset": OutsideFault("S3: reset in the middle of each object and upload, once, and of a file that is read",
        f"{_LANDING}, {_STAGING}", _OK,
        _requests(_Rule(Fault.RESET, *_READ), _Rule(Fault.RESET, "GET", ".parquet", is_once=True),
            _Rule(Fault.RESET_UPLOAD, *_WRITTEN))),
    "reset-each": OutsideFault("S3: reset in the middle of each file that is read", _STAGING, _SAYS,
        _requests(_Rule(Fault.RESET, "GET", ".parquet", times=_FOREVER)), says="out of reach"),
    "multipart": OutsideFault("S3: reset in the middle of each part of an upload, and no answer to its end, once",
        _STAGING, _OK,
        _requests(_Rule(Fault.RESET_UPLOAD, "PUT", "partNumber="), _Rule(Fault.LOST_ANSWER, "POST", "uploadId=")),
        story=Story.LARGE),
    "lost-metadata": OutsideFault("S3: the answer to each metadata file is lost, once", _PUBLISHING, _OK,
        point="before_publish", at_point=_requests(_Rule(Fault.LOST_ANSWER, *_METADATA))),
    "unknown-key": OutsideFault("S3: 403 InvalidAccessKeyId, from the first object on", _LANDING, _SAYS,
        _requests(_Rule(Fault.UNKNOWN_KEY, *_READ, times=_FOREVER)), says="InvalidAccessKeyId"),
    "expired-staging": OutsideFault("S3: 400 ExpiredToken from the first table on", _STAGING, _SAYS,
        point="after_stage:raw/regular_events", at_point=_all(Fault.EXPIRED), says="The provided token has expired"),
    "expired-publishing": OutsideFault("S3: 400 ExpiredToken from before the publish on", _PUBLISHING, _SAYS,
        point="before_publish", at_point=_all(Fault.EXPIRED), says="The provided token has expired"),
    "postgres-before": OutsideFault(f"PostgreSQL stopped, back after {_AWAY_SECONDS:.0f} s: before the transaction",
        _PUBLISHING, _OK, point="before_publish", at_point=_restart),
    "postgres-in": OutsideFault(f"PostgreSQL stopped, back after {_AWAY_SECONDS:.0f} s: in the transaction",
        _PUBLISHING, _OK, point="in_transaction", at_point=_restart),
    "commit-lost": OutsideFault("PostgreSQL: the answer to COMMIT is lost", _PUBLISHING, _OK,
        _wire(_COMMIT, Moment.BEFORE_ANSWER, after=_SWAP)),
    "commit-cut": OutsideFault("PostgreSQL: cut before COMMIT arrives", _PUBLISHING, _OK,
        _wire(_COMMIT, Moment.BEFORE_STATEMENT, after=_SWAP)),
    "catalog-lost": OutsideFault("PostgreSQL: the answer to a staged commit is lost", _STAGING, _OK,
        _wire(_SWAP, Moment.BEFORE_ANSWER)),
    "postgres-gone": OutsideFault("PostgreSQL stopped in the transaction, not back", _PUBLISHING, _SAYS,
        point="in_transaction", at_point=_stop, says="the ledger is out of reach"),
    "ledger-start": OutsideFault("PostgreSQL: cut while the ledger is read at the start", _LEDGER, _SAYS,
        _wire(b"FROM tidemark_", Moment.BEFORE_STATEMENT), says="the ledger is out of reach"),
    "disk-warehouse": OutsideFault("disk of the warehouse full", _STAGING, _SAYS, Lake.fill_warehouse,
        says="Make room for the warehouse", story=Story.FOLDER, lacks=_lacks_mount),
    "disk-spark": OutsideFault("disk of spark.local.dir full", _STAGING, _SAYS, _small_disk, says="spark.local.dir",
        lacks=_lacks_mount),
    "worker": OutsideFault("Python workers killed in a task", _LANDING, _OK, _kill_workers),
    "clock-between": OutsideFault("clock set back an hour before the load", _STAGING, _SAYS, Lake.set_clock_back,
        says="lies ahead of this machine's clock"),
    "clock-during": OutsideFault("clock set back an hour during the load", _PUBLISHING, _SAYS, point="before_publish",
        at_point=Lake.set_clock_back, says="lies ahead of this machine's clock"),
}  # fmt: skip
"""Command-line name -> fault, in the table's order."""
