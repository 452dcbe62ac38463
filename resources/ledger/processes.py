"""The processes of runs: who this process is, which others run, their records in the ledger, and their heartbeats."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.processes import BEAT_SECONDS, Identity, Process, Sight, Watch
from pipeline_assets.domain.retention import YOUNGEST
from resources.ledger.engine import Database, Part, connected, insert_into, ledger_failures
from resources.ledger.schema import PROCESSES

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Fields of /proc/<pid>/stat behind the command's name."""
_ENDED = ("Z", "X", "x")


def identity(pid: int | None = None) -> Identity:
    """Return the identity of a process of this machine, by default of this one."""
    pid = os.getpid() if pid is None else pid
    fields = _stat(pid)
    return Identity(socket.gethostname(), place(), pid, int(fields[_STARTED]) if fields else None)


def sight(of: Identity | None) -> Sight:
    """Return whether this machine sees a process alive, gone or not at all."""
    if of is None or of.place is None or of.started is None or of.place != place():
        return Sight.HIDDEN
    fields = _stat(of.pid)
    if fields:
        is_there = fields[_STATE] not in _ENDED and int(fields[_STARTED]) == of.started
        return Sight.THERE if is_there else Sight.GONE
    try:
        os.kill(of.pid, 0)
    except ProcessLookupError:
        return Sight.GONE
    except OSError:
        # Another user's process, where /proc hides these.
        return Sight.HIDDEN
    return Sight.HIDDEN


@cache
def place() -> str | None:
    """Return the namespace in which process numbers mean the same as here; None where the system does not show it."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        pids = (_PROC / "self/ns/pid").readlink()
    except OSError:
        return None
    times = _PROC / "self/ns/time"
    return f"{boot} {pids} {times.readlink() if times.is_symlink() else ''}"


def _stat(pid: int) -> list[str] | None:
    try:
        return (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


_KEPT = timedelta(days=30)
_IDENTITY = {"host": "host", "place": "place", "pid": "pid", "started_ticks": "started"}


class Processes(Part):
    """Reads and writes processes; each call is one transaction, and none waits for the locks of a load."""

    def begin(self, run_id: str, job: str, identity: Identity, steps: int, begun_at: str | None = None) -> str:
        """Record an op's start in this process, replacing the run's earlier one; returns the time, or `begun_at` if given."""
        with self._transaction() as (connection, now):
            row: dict[str, Any] = {name: getattr(identity, field) for name, field in _IDENTITY.items()}
            row |= {"job": job, "steps": steps, "begun_at": begun_at or now.isoformat(), "beat_at": now.isoformat()}
            row |= {"ended_at": None, "lost_at": None}
            insert = insert_into(connection, PROCESSES).values(row | {"run_id": run_id, "beats": 1})
            updates = row | {"beats": PROCESSES.c.beats + 1}
            connection.execute(insert.on_conflict_do_update(index_elements=["run_id"], set_=updates))
            old = (now - _KEPT).isoformat()
            connection.execute(PROCESSES.delete().where((PROCESSES.c.ended_at < old) | (PROCESSES.c.lost_at < old)))
            return str(row["begun_at"])

    def beat(self, run_id: str) -> bool:
        """Record a heartbeat, which also revives a process taken for dead; False where the run is not on record."""
        with self._transaction() as (connection, now):
            row = {"beats": PROCESSES.c.beats + 1, "beat_at": now.isoformat(), "lost_at": None}
            return bool(connection.execute(_of(run_id).values(row)).rowcount)

    def end(self, run_id: str) -> None:
        """Record that the op has ended, with or without success."""
        with self._transaction() as (connection, now):
            connection.execute(_of(run_id).values(ended_at=now.isoformat()))

    def lose(self, run_ids: Collection[str]) -> None:
        """Record that the processes of these runs were found dead."""
        with self._transaction() as (connection, now):
            for run_id in run_ids:
                connection.execute(_of(run_id).where(PROCESSES.c.lost_at.is_(None)).values(lost_at=now.isoformat()))

    def forget(self, run_id: str) -> None:
        """Remove the record of a process that left nothing behind."""
        with self._transaction() as (connection, _):
            connection.execute(PROCESSES.delete().where(PROCESSES.c.run_id == run_id))

    def unlost(self, jobs: Collection[str]) -> set[str]:
        """Return the runs of these jobs whose process was not found dead, ended ones too."""
        query = sa.select(PROCESSES.c.run_id).where(PROCESSES.c.job.in_(jobs), PROCESSES.c.lost_at.is_(None))
        return {run_id for (run_id,) in self._rows(query)}

    def look(self, unfinished: Collection[str], expected: Mapping[str, str]) -> dict[str, Process]:
        """Return run -> process of `unfinished` and unended runs; counts this look; adds rows of `expected` (run -> job)."""
        with self._transaction() as (connection, now):
            known = set(connection.scalars(sa.select(PROCESSES.c.run_id)))
            for run_id in expected.keys() - known:
                insert = insert_into(connection, PROCESSES).values(run_id=run_id, job=expected[run_id], beats=0)
                connection.execute(insert.on_conflict_do_nothing())
            processes = {}
            for row in connection.execute(sa.select(PROCESSES)).mappings():
                is_over = row["ended_at"] is not None or row["lost_at"] is not None
                if is_over and row["run_id"] not in unfinished:
                    continue
                before = _watch_of(row)
                watch = before.looked(row["beats"], now)
                if watch != before:
                    seen = {"seen_beats": watch.beats, "still_looks": watch.still, "looked_at": watch.at}
                    connection.execute(_of(row["run_id"]).values(seen | {"looked_at": now.isoformat()}))
                processes[row["run_id"]] = _process_of(row, watch)
            return processes

    def all(self) -> list[Process]:
        """Return the processes on record, oldest first; those without a start time come first."""
        rows = self._maps(sa.select(PROCESSES).order_by(sa.func.coalesce(PROCESSES.c.begun_at, "")))
        return [_process_of(row, Watch()) for row in rows]

    def live_ages(self) -> list[timedelta]:
        """Return how long each live process has worked on its run; one hidden from this machine needs a beat within a day."""
        with self._transaction() as (connection, now):
            found = connection.execute(sa.select(PROCESSES).where(PROCESSES.c.ended_at.is_(None))).mappings().all()
        yesterday, ages = (now - YOUNGEST).isoformat(), []
        for process in [_process_of(row, Watch()) for row in found if row["begun_at"] is not None]:
            seen = sight(process.identity)
            if seen is Sight.THERE or (seen is Sight.HIDDEN and str(process.beat_at) > yesterday):
                ages.append(now - datetime.fromisoformat(str(process.begun_at)))
        return ages

    def find(self, attempt: str) -> Process | None:
        """Return the process of a run, given its id with or without dashes; None where it is not on record."""
        plain = sa.func.replace(PROCESSES.c.run_id, "-", "")
        rows = self._maps(sa.select(PROCESSES).where(plain == attempt.replace("-", "")))
        return next((_process_of(row, _watch_of(row)) for row in rows), None)

    @contextmanager
    def _transaction(self) -> Iterator[tuple[Connection, datetime]]:
        """Yields the connection and the time by the database's clock, which all observers share."""
        engine = self._database.engine.execution_options(is_writing=True)
        with ledger_failures(self.url), connected(engine) as connection, connection.begin():
            now: datetime = connection.execute(sa.select(sa.func.now())).scalar_one()
            yield connection, now.astimezone(UTC) if now.tzinfo else now.replace(tzinfo=UTC)


def _of(run_id: str) -> sa.Update:
    return PROCESSES.update().where(PROCESSES.c.run_id == run_id)


def _watch_of(row: RowMapping) -> Watch:
    if row["looked_at"] is None:
        return Watch()
    return Watch(row["seen_beats"], row["still_looks"], datetime.fromisoformat(row["looked_at"]))


def _process_of(row: RowMapping, watch: Watch) -> Process:
    known = {field: row[name] for name, field in _IDENTITY.items()}
    identity = Identity(**known) if row["pid"] is not None else None
    return Process(
        row["run_id"],
        row["job"],
        identity,
        row["steps"] or 0,
        row["beats"],
        row["begun_at"],
        row["beat_at"],
        is_ended=row["ended_at"] is not None,
        is_lost=row["lost_at"] is not None,
        watch=watch,
    )


_LONGEST_GOODBYE = 5.0
_PASSING = (TidemarkError, sa.exc.SQLAlchemyError, OSError)


@contextmanager
def heartbeat(url: str, run_id: str, job: str, steps: int, *, seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """Record that a process works on the run during the block; raises LedgerUnavailableError where the first beat fails.

    A process without a beat for a minute may be taken for dead, and its staged data swept. If it comes back, conflict detection
    (resources/publishing.py) holds, and swept data fails it. A killed process's JVM ends with its standard input.
    """
    with closing(Database(url)) as database:
        processes, who, stop = Processes(database), identity(), threading.Event()
        begun_at = processes.begin(run_id, job, who, steps)

        def beat() -> None:
            while not stop.wait(seconds):
                with suppress(*_PASSING):
                    if not processes.beat(run_id):
                        processes.begin(run_id, job, who, steps, begun_at)

        thread = threading.Thread(target=beat, name=f"tidemark-heartbeat-{run_id[:8]}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(_LONGEST_GOODBYE)
            with suppress(*_PASSING):
                processes.end(run_id)
