"""Which runs of this Dagster instance are alive: what they stage must not be swept away.

Lives here: the question to Dagster's run storage. Put here: another sign of life. Keep out: branches (resources/lakehouse.py).
"""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

_LIVE = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING)


def liveness(instance: dg.DagsterInstance, own_run_id: str) -> Callable[[str], bool]:
    """Whether the run a branch is named for still runs; a run's own branches are leftovers of its earlier try."""

    def is_live(attempt: str) -> bool:
        # Asked anew each time: other runs start and end meanwhile.
        running = instance.get_runs(dg.RunsFilter(statuses=list(_LIVE)))
        return attempt.split("_", maxsplit=1)[0] in {
            run.run_id.replace("-", "") for run in running if run.run_id != own_run_id
        }

    return is_live
