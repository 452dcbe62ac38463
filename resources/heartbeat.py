"""A thread that says every few seconds, in the ledger, that the process of a run lives."""

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
"""A ledger that is away; the next beat tries again."""


@contextmanager
def heartbeat(url: str, run_id: str, job: str, steps: int, *, seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """This process works on the run for as long as the block lasts; raises LedgerUnavailableError where that goes not on record.

    A process that is paused, or that does not reach the ledger for a minute, may be taken for dead: its run is reported as failed
    and may be started again beside it, and what it staged may be swept. It goes on when it comes back, and then it is one of two
    writers: what it publishes passes the same conflict detection (resources/publishing.py), what was swept fails it. The JVM
    of a killed process ends by itself when its standard input closes; what it commits until then is on a branch of a dead run.
    Where the ledger lies elsewhere than the catalog it may be a commit to main.
    """
    with closing(Ledger(url)) as ledger:
        who = identity()
        begun_at = ledger.processes.begin(run_id, job, who, steps)
        stop = threading.Event()

        def beat() -> None:
            # Of its own: connections are not shared by threads.
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
            # What the process itself tells (its number is gone, or it stands still) serves as well.
            with suppress(*_PASSING):
                ledger.processes.end(run_id)
