"""Running and dead runs, for `tidemark status`."""

from __future__ import annotations

from pipeline_assets.config import dagster_home
from pipeline_assets.domain.processes import Life, Process, Sight
from resources.ledger.store import Ledger
from resources.this_process import sight


def process_lines(ledger: Ledger) -> list[str]:
    """Return a line per running run, and per run whose process is dead."""
    processes = [(process, sight(process.identity)) for process in ledger.processes.look([], {}).values()]
    lines = [
        _working(process, seen)
        for process, seen in processes
        if process.identity and process.life(seen) is not Life.DEAD
    ]
    if any(process.has_died_with_its_run(seen) for process, seen in processes):
        import dagster as dg  # noqa: PLC0415 - `status` starts without Dagster

        from pipeline_assets.orchestration.dead_runs import report_dead_runs  # noqa: PLC0415 - `status` starts without Dagster

        dagster_home()
        with dg.DagsterInstance.get() as instance:
            lines += [str(dead) for dead in report_dead_runs(instance, ledger)]
    return lines


def _working(process: Process, seen: Sight) -> str:
    assert process.identity is not None
    who = f"process {process.identity.pid} on {process.identity.host}"
    line = f"run {process.run_id} ({process.job}) works: {who}, begun {(process.begun_at or '')[:19]} UTC"
    is_silent = seen is not Sight.THERE and process.watch.still > 0
    return f"{line}; not heard from since {(process.beat_at or '')[:19]} UTC" if is_silent else line
