"""Which runs are alive, by their processes in the ledger, or by Dagster for runs without a recorded process."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

from pipeline_assets.domain.processes import Life
from pipeline_assets.domain.rebuilds import GREEN
from pipeline_assets.orchestration.specs import asset_key
from pipeline_assets.tables.registry import GRAPH_TABLES
from resources.ledger.store import Ledger
from resources.this_process import sight

WORKING = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING)
"""Statuses of runs that should have a process."""
_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)


def under_way(instance: dg.DagsterInstance, ledger: Ledger, job_name: str | None = None) -> list[dg.DagsterRun]:
    """Return queued and running runs, without those whose process is dead, whatever their status in Dagster."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job_name, statuses=[*_WAITING, *WORKING]))
    return [run for run in runs if run.status in _WAITING or not _is_dead(ledger, run.run_id)]


def _is_dead(ledger: Ledger, run_id: str) -> bool:
    process = ledger.processes.find(run_id)
    return process is not None and process.has_died_with_its_run(sight(process.identity))


def only_ours(run: dg.DagsterRun) -> bool:
    """Whether an asset run loads only tables of ours."""
    chosen = run.asset_selection or frozenset()
    return bool(chosen) and chosen <= {asset_key(table) for table in GRAPH_TABLES}


def liveness(instance: dg.DagsterInstance, ledger: Ledger, own_run_id: str) -> Callable[[str], bool | None]:
    """Return a function that tells whether a branch's run is alive; None where neither ledger nor Dagster knows the run.

    Branches of this run itself are leftovers of an earlier try. An unknown run may belong to a deployment with another ledger
    and another Dagster.
    """

    def is_live(attempt: str) -> bool | None:
        run_id, _, rest = attempt.partition("_")
        if run_id == GREEN:
            # The branch of a rebuild belongs to no run: it is needed until an operator answers the rebuild.
            rebuild = ledger.rebuilds.find(int(rest)) if rest.isdecimal() else None
            return None if rebuild is None else rebuild.state.is_open
        if run_id == own_run_id.replace("-", ""):
            return False
        # Query each time, because other runs start and end meanwhile.
        process = ledger.processes.find(run_id)
        if process is not None and process.identity is not None:
            return process.life(sight(process.identity)) is Life.RUNNING
        run = instance.get_run_by_id(_dashed(run_id))
        return None if run is None else run.status in WORKING

    return is_live


def _dashed(run_id: str) -> str:
    parts = run_id[:8], run_id[8:12], run_id[12:16], run_id[16:20], run_id[20:]
    return "-".join(parts)
