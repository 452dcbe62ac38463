"""What one publish makes visible, of all its tables, and the ledger's part of it: rows to write and conditions to check."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sqlalchemy.engine import Connection

from pipeline_assets.domain.errors import SliceConflictError
from pipeline_assets.domain.slices import Digest, Slice
from resources.iceberg.slice_change import PUBLISH_PROPERTY, PUBLISHED_WITH, Published, SliceChange
from resources.ledger.changes import Changes
from resources.ledger.writing import LedgerWriting


class Alongside(Protocol):
    """Something more that is asked and written with a publish, on the ledger's connection."""

    def require(self, connection: Connection) -> None:
        """Raise PublishConflictError where nothing may be published."""

    def write(self, connection: Connection) -> None:
        """Write what is true since, as late as the transaction allows; raises as `require` does."""


@dataclass(frozen=True)
class PublishRequest:
    """Everything that one publish makes visible, or nothing of it."""

    run_id: str
    name: str
    """Tells it from others of the run."""
    tables: Sequence[SliceChange]
    """At most one for each table, in the order in which they are built from each other."""
    steps: Sequence[tuple[str, Changes]]
    """(table, what is recorded of it), in the order in which it was found out."""
    stand_ins: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Table -> staged snapshots that the records name where the published one is meant."""
    rests_on: Mapping[tuple[str, Slice], Digest] = field(default_factory=dict)
    """(table, slice) -> what it must be when this is published: published slices were built from it."""
    minds_holds: bool = True
    """Whether a slice that a person holds by now must not be published."""
    run: Mapping[str, Any] | None = None
    """The run's row, without the snapshots of its tables; None where the run is not recorded yet."""
    alongside: Alongside | None = None
    """What else it is about."""

    @property
    def together(self) -> PublishRequest:
        """The same for a publisher of all tables or none: each snapshot names the publish, and all tables that get one by it.

        So `tidemark attach` recognizes what a publish left that was killed between two tables.
        """
        names = ",".join(sorted(change.table.key for change in self.tables if not change.is_empty))
        summary = {PUBLISH_PROPERTY: str(uuid.uuid4()), PUBLISHED_WITH: names}
        return replace(self, tables=[replace(change, summary=summary) for change in self.tables])


class PartlyPublishedError(SliceConflictError):
    """A later table met another writer when earlier ones were published and recorded: only where they go one after another."""

    def __init__(self, conflict: SliceConflictError, tables: Collection[str], recorded: int) -> None:
        """`tables`: those that main shows by now; `recorded`: how many steps the ledger holds."""
        super().__init__(conflict.subject, conflict.reason, conflict.hint, conflict.slices)
        self.tables, self.recorded = frozenset(tables), recorded


def naming_published(
    step: Changes, table: str, published: Mapping[str, Published], stand_ins: Mapping[str, frozenset[int]]
) -> Changes:
    """The same changes, with the snapshots that readers find in place of the staged ones."""

    def pinned(pins: Mapping[str, int] | None) -> Mapping[str, int] | None:
        return pins and {
            name: published[name].snapshot_id if name in published and pin in stand_ins.get(name, ()) else pin
            for name, pin in pins.items()
        }

    publications = [replace(record, pins=pinned(record.pins)) for record in step.publications]
    own = published.get(table)
    if own is None:
        return replace(step, publications=publications)
    publications = [replace(one, snapshot_id=own.snapshot_id, parent_id=own.parent_id) for one in publications]
    head = None if step.head is None else (table, own.snapshot_id, own.parent_id)
    return replace(step, publications=publications, head=head)


def record_publish(connection: Connection, request: PublishRequest, published: Mapping[str, Published]) -> None:
    """Write all ledger rows of a publish; raises PublishConflictError where another run changed what it rests on.

    `published`: table -> what main of it shows once the publish is done.
    """
    if request.alongside is not None:
        request.alongside.require(connection)
    steps = [naming_published(step, table, published, request.stand_ins) for table, step in request.steps]
    ledger = LedgerWriting(connection)
    conflicts: list[SliceConflictError] = []
    for step in steps:
        try:
            ledger.record(step, request.run_id, is_strict=True)
        except SliceConflictError as conflict:
            conflicts.append(conflict)
    if conflicts:
        # One error with the lost slices of all steps, because each conflict costs a walk.
        first, lost = conflicts[0], frozenset().union(*(conflict.slices for conflict in conflicts))
        raise SliceConflictError(first.subject, first.reason, first.hint, lost)
    ledger.require_inputs(request.rests_on)
    if request.minds_holds:
        ledger.require_not_held({(change.table.key, key) for change in request.tables for key in change.slices})
    record_end(connection, request, published)


def record_end(connection: Connection, request: PublishRequest, published: Mapping[str, Published]) -> None:
    """Write what ends a publish: its cut, its run and what goes alongside; raises as `Alongside.write` does."""
    ledger = LedgerWriting(connection)
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
