"""What waits in Dagster's queue, for those who watch.

Contains: the look.
Add here: another figure that Dagster alone knows.
Does not contain: which runs are dead (dead_runs.py), figures of the ledger (inspection/metrics/).
"""

from __future__ import annotations

import dagster as dg

from pipeline_assets.inspection.metrics.compute import RunQueue
from pipeline_assets.orchestration.live_runs import WORKING

_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)


def run_queue(instance: dg.DagsterInstance) -> RunQueue | None:
    """How many runs wait and how many work; None where Dagster's storage does not answer."""
    try:
        waiting, working = (
            instance.get_runs_count(dg.RunsFilter(statuses=list(statuses))) for statuses in (_WAITING, WORKING)
        )
    except Exception:
        # Whatever keeps Dagster from answering is told by that alone: the ledger's figures are not lost for it.
        return None
    return RunQueue(waiting, working)
