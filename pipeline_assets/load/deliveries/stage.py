"""Stage the rows of batches: read the changed objects into files, and name these in a snapshot that nobody sees yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.plain_text import sql_text
from pipeline_assets.domain.slices import BatchVerdict, Slice
from pipeline_assets.load.deliveries.attempt import Attempt
from pipeline_assets.load.deliveries.plan import BatchPlan, Plan
from pipeline_assets.load.deliveries.read import ReadResult, Writing, result_of, write_rows
from pipeline_assets.load.deliveries.verdicts import Judged
from pipeline_assets.load.measured import objects_of_batches
from pipeline_assets.load.runtime import Runtime
from resources.iceberg.lakehouse import Staged as StagedSnapshot

_KEYS_PER_STATEMENT = 500


@dataclass(frozen=True)
class Staged:
    """A staged state of raw in which batches hold the rows of their present deliveries."""

    snapshot: StagedSnapshot
    plans: tuple[BatchPlan, ...]
    present: Mapping[BatchKey, Mapping[str, int]]
    """Batch -> object -> rows of it in raw before."""


def read_and_stage(attempt: Attempt, plan: Plan) -> tuple[ReadResult, Staged | None]:
    """Read the changed objects and stage their rows in one pass, as if every batch were accepted.

    Nothing is staged where nothing is to be read or removed.
    """
    plans = [batch for batch in plan.work if plan.replaced(batch)]
    if not plans:
        return result_of(attempt, plan, None), None
    writing = _writing(attempt, plan, plans)
    staged = _stage(attempt, plan, plans, writing)
    try:
        return result_of(attempt, plan, writing), staged
    except BaseException:
        attempt.runtime.lakehouse.drop(staged.snapshot)
        raise


def without_refused(attempt: Attempt, judged: Judged, staged: Staged) -> Staged | None:
    """The same with accepted batches only: staged once more where some are not, because files may hold rows of both."""
    plan = judged.read.plan
    plans = [batch for batch in judged.batches(BatchVerdict.ACCEPTED) if plan.replaced(batch)]
    if len(plans) == len(staged.plans):
        return staged
    attempt.runtime.lakehouse.drop(staged.snapshot)
    if not plans:
        return None
    writing = _writing(attempt, plan, plans)
    accepted = _stage(attempt, plan, plans, writing)
    if writing is not None:
        try:
            writing.require_unmoved()
        except BaseException:
            attempt.runtime.lakehouse.drop(accepted.snapshot)
            raise
    return accepted


def _writing(attempt: Attempt, plan: Plan, plans: Sequence[BatchPlan]) -> Writing | None:
    to_parse = [delivery for batch in plans for delivery in plan.to_parse(batch)]
    return write_rows(attempt, to_parse) if to_parse else None


def _stage(attempt: Attempt, plan: Plan, plans: Sequence[BatchPlan], writing: Writing | None) -> Staged:
    batches = [batch.key for batch in plans]
    replaced = {batch.key: set(plan.replaced(batch)) for batch in plans}
    # Looked up in the table and not in the ledger: a dead run may have left rows that no ledger row tells of.
    found = objects_of_batches(attempt.runtime, attempt.table, attempt.base_id, batches)
    present = {batch: {key: of.rows for key, of in objects.items()} for batch, objects in found.items()}
    old = sorted({key for batch in batches for key in present[batch].keys() & replaced[batch]})
    reach = {Slice(batch.arrival_date, batch.project_id) for batch in batches}
    runtime, table = attempt.runtime, attempt.table

    def write(target: str) -> None:
        if old:
            delete_objects(runtime, target, "_arrival_date", "_object_key", reach, old)
        if writing is not None:
            runtime.lakehouse.files.append(table, target, writing.run())

    runtime.log(f"{table.key}: staging {sum(map(len, replaced.values()))} objects of {len(plans)} batches")
    snapshot = runtime.lakehouse.stage(table, attempt.base_id, attempt.name, write)
    return Staged(snapshot, tuple(plans), present)


def delete_objects(
    runtime: Runtime,
    target: str,
    day_column: str,
    key_column: str,
    reach: set[Slice],
    keys: Sequence[str],
    also: str = "TRUE",
) -> None:
    """Copy-on-write: only data files that hold rows of these objects (and meet the condition `also`) are rewritten."""
    days = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted({key.event_date for key in reach}))
    projects = ", ".join(sql_text(project) for project in sorted({key.project_id for key in reach}))
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        listed = ", ".join(map(sql_text, keys[start : start + _KEYS_PER_STATEMENT]))
        runtime.spark.sql(
            f"DELETE FROM {target} WHERE {day_column} IN ({days}) AND project_id IN ({projects}) "
            f"AND {key_column} IN ({listed}) AND {also}"
        )
