"""The ledger's part of a publish: rows to write and conditions to check, in a transaction that the caller ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.engine import Connection

from pipeline_assets.domain.errors import SliceConflictError
from resources.iceberg.slice_change import Published
from resources.ledger.changes import Changes
from resources.ledger.writing import LedgerWriting
from resources.publishing.request import PublishRequest, naming_published


def record_publish(connection: Connection, request: PublishRequest, published: Mapping[str, Published]) -> None:
    """Write all ledger rows of a publish; raises PublishConflictError where another run changed what it rests on.

    `published`: table -> what main of it shows once the publish is done.
    """
    if request.alongside is not None:
        request.alongside.require(connection)
    steps = [naming_published(step, table, published, request.stand_ins) for table, step in request.steps]
    ledger = LedgerWriting(connection)
    _record_all(ledger, steps, request.run_id)
    ledger.require_inputs(request.rests_on)
    if request.minds_holds:
        ledger.require_not_held({(change.table.key, key) for change in request.tables for key in change.slices})
    snapshots = ledger.record_cut(request.run_id, {table: one.snapshot_id for table, one in published.items()})
    if request.run is not None:
        ledger.record_run(request.run_id, {**request.run, "snapshots": snapshots})
    if request.alongside is not None:
        request.alongside.write(connection)


def require_publishable(connection: Connection, request: PublishRequest) -> None:
    """Ask the same as far as it can be asked before anything is written; raises PublishConflictError as `record_publish` does.

    What the publish records itself is an input that is not there yet.
    """
    if request.alongside is not None:
        request.alongside.require(connection)
    ledger = LedgerWriting(connection)
    recorded = {(record.table, record.key) for _, step in request.steps for record in step.slices}
    ledger.require_inputs({place: digest for place, digest in request.rests_on.items() if place not in recorded})
    for _, step in request.steps:
        ledger.require_decisions(step)


def _record_all(ledger: LedgerWriting, steps: Sequence[Changes], run_id: str) -> None:
    """Record every step; raises one SliceConflictError with the lost slices of all steps, because each conflict costs a walk."""
    conflicts: list[SliceConflictError] = []
    for step in steps:
        try:
            ledger.record(step, run_id, is_strict=True)
        except SliceConflictError as conflict:
            conflicts.append(conflict)
    if conflicts:
        first = conflicts[0]
        lost = frozenset().union(*(conflict.slices for conflict in conflicts))
        raise SliceConflictError(first.subject, first.reason, first.hint, lost)
