"""A thread that records every few seconds, in the ledger, that a run's process lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import sqlalchemy as sa

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.processes import BEAT_SECONDS
from resources.ledger.processes import identity
from resources.ledger.store import Ledger

_LONGEST_GOODBYE = 5.0
_PASSING = (TidemarkError, sa.exc.SQLAlchemyError, OSError)


@contextmanager
def heartbeat(url: str, run_id: str, job: str, steps: int, *, seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """Record that a process works on the run during the block; raises LedgerUnavailableError where the first beat fails.

    A process without a beat for a minute may be taken for dead, and its staged data swept. If it comes back, conflict detection
    (resources/publishing.py) holds, and swept data fails it. A killed process's JVM ends with its standard input.
    """
    with closing(Ledger(url)) as ledger:
        who = identity()
        begun_at = ledger.processes.begin(run_id, job, who, steps)
        stop = threading.Event()

        def beat() -> None:
            with closing(Ledger(url)) as own:
                while not stop.wait(seconds):
                    with suppress(*_PASSING):
                        if not own.processes.beat(run_id):
                            own.processes.begin(run_id, job, who, steps, begun_at)

        thread = threading.Thread(target=beat, name=f"tidemark-heartbeat-{run_id[:8]}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(_LONGEST_GOODBYE)
            with suppress(*_PASSING):
                ledger.processes.end(run_id)
