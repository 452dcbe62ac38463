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
"""An unreachable ledger; the next beat tries again."""


@contextmanager
def heartbeat(url: str, run_id: str, job: str, steps: int, *, seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """Record beats of this process for the run during the block; raises LedgerUnavailableError where the first one fails.

    A process without a beat for a minute may be taken for dead: its run is reported as failed, and its staged data swept. If it
    comes back, it is one of two writers: conflict detection (resources/publishing.py) holds, and swept data fails it. The JVM of
    a killed process ends when its standard input closes; until then it commits to a dead run's branch, or to main where the
    ledger lies elsewhere than the catalog.
    """
    with closing(Ledger(url)) as ledger:
        who = identity()
        begun_at = ledger.processes.begin(run_id, job, who, steps)
        stop = threading.Event()

        def beat() -> None:
            # Threads share no connections.
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
