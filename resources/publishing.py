"""The three ways to publish, the promise that each keeps (ARCHITECTURE, laws 2 and 10), and which one a deployment allows."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from pipeline_assets.domain import errors
from pipeline_assets.domain.slices import Digest, Slice
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.catalog_at_rest import PUBLISH_PROPERTY, PUBLISHED_WITH
from resources.iceberg.errors import FAILURES
from resources.iceberg.slice_changes import (
    Prepared,
    Published,
    SliceChange,
    lock_pointers,
    share_a_database,
    swap_pointers,
)
from resources.ledger.changes import Changes, decided_since, require_decisions, require_inputs, require_not_held
from resources.ledger.rebuilds import SwapOfRebuild
from resources.ledger.writing import LedgerWriting

if TYPE_CHECKING:
    from pipeline_assets.domain.settings import Settings
    from resources.iceberg.lakehouse import Lakehouse
    from resources.iceberg.slice_changes import SliceChanges
    from resources.ledger.store import Ledger


@dataclass(frozen=True)
class PublishRequest:
    """The changes that one publish makes visible, all or none."""

    run_id: str
    name: str
    tables: Sequence[SliceChange]
    """At most one per table, upstream first."""
    steps: Sequence[tuple[str, Changes]]
    """(table, its changes), in order of discovery."""
    stand_ins: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Table -> staged snapshots in the records that the published one replaces."""
    rests_on: Mapping[tuple[str, Slice], Digest] = field(default_factory=dict)
    """(table, slice) -> its required digest: published slices were built from it."""
    minds_holds: bool = True
    run: Mapping[str, Any] | None = None
    alongside: SwapOfRebuild | None = None
    """Further checks and writes on the ledger's connection."""

    @property
    def together(self) -> PublishRequest:
        """The same, where each snapshot names the publish and its tables: `attach` recognizes an interrupted one."""
        names = ",".join(sorted(change.table.key for change in self.tables if not change.is_empty))
        summary = {PUBLISH_PROPERTY: str(uuid.uuid4()), PUBLISHED_WITH: names}
        return replace(self, tables=[replace(change, summary=summary) for change in self.tables])


class PartlyPublishedError(errors.SliceConflictError):
    """A later table met a conflict after earlier ones were published and recorded; only in TableByTable."""

    def __init__(self, conflict: errors.SliceConflictError, tables: Collection[str], recorded: int) -> None:
        super().__init__(conflict.subject, conflict.reason, conflict.hint, conflict.slices)
        self.tables, self.recorded = frozenset(tables), recorded


def naming_published(
    step: Changes, table: str, published: Mapping[str, Published], stand_ins: Mapping[str, frozenset[int]]
) -> Changes:
    """Return the same changes, with published snapshots in place of staged ones."""

    def pinned(pins: Mapping[str, int] | None) -> Mapping[str, int] | None:
        return pins and {
            name: published[name].snapshot_id if name in published and pin in stand_ins.get(name, ()) else pin
            for name, pin in pins.items()
        }

    publications = [replace(record, pins=pinned(record.pins)) for record in step.publications]
    if (own := published.get(table)) is None:
        return replace(step, publications=publications)
    publications = [replace(one, snapshot_id=own.snapshot_id, parent_id=own.parent_id) for one in publications]
    head = None if step.head is None else (table, own.snapshot_id, own.parent_id)
    return replace(step, publications=publications, head=head)


def record_publish(connection: Connection, request: PublishRequest, published: Mapping[str, Published]) -> None:
    """Write all ledger rows of a publish; raises PublishConflictError where another run changed its basis."""
    if request.alongside is not None:
        request.alongside.require(connection)
    steps = [naming_published(step, table, published, request.stand_ins) for table, step in request.steps]
    ledger = LedgerWriting(connection)
    conflicts: list[errors.SliceConflictError] = []
    for step in steps:
        try:
            ledger.record(step, request.run_id, is_strict=True)
        except errors.SliceConflictError as conflict:
            conflicts.append(conflict)
    if conflicts:
        # Each conflict costs a walk.
        first, lost = conflicts[0], frozenset().union(*(conflict.slices for conflict in conflicts))
        raise errors.SliceConflictError(first.subject, first.reason, first.hint, lost)
    require_inputs(connection, request.rests_on)
    if request.minds_holds:
        require_not_held(connection, {(change.table.key, key) for change in request.tables for key in change.slices})
    record_end(connection, request, published)


def record_end(connection: Connection, request: PublishRequest, published: Mapping[str, Published]) -> None:
    """Write the end of a publish: cut, run and `alongside`, whose errors it raises."""
    ledger = LedgerWriting(connection)
    snapshots = ledger.record_cut(request.run_id, {table: one.snapshot_id for table, one in published.items()})
    if request.run is not None:
        ledger.record_run(request.run_id, {**request.run, "snapshots": snapshots})
    if request.alongside is not None:
        request.alongside.write(connection)


class Publisher(ABC):
    """Publishes, by the promise that a deployment can give."""

    def __init__(self, lakehouse: Lakehouse, ledger: Ledger) -> None:
        self._lakehouse, self._ledger = lakehouse, ledger

    @property
    def _changes(self) -> SliceChanges:
        """Lazy: a run that publishes nothing starts no Spark."""
        return self._lakehouse.changes

    @abstractmethod
    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """Publish; returns table -> main's state; raises PublishConflictError where another writer was first."""


class OneTransaction(Publisher):
    """The publisher for a ledger in the database of Iceberg's SQL catalog."""

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """Publish the whole request or nothing."""
        failpoint(Failpoint.BEFORE_PUBLISH)
        request = request.together
        prepared = dict[str, Prepared]()
        try:
            for change in request.tables:
                prepared[change.table.key] = self._changes.prepare(change, request.run_id)
            for change in request.tables:
                # Before the transaction: this may take thousands of requests, and other writers would wait.
                self._changes.require_restorable(change)
            with self._ledger.transaction() as connection:
                self._follow_present_heads(connection, request, prepared)
                published = {key: one.published for key, one in prepared.items()}
                record_publish(connection, request, published)
                swap_pointers(connection, self._lakehouse.catalog_name, list(prepared.values()))
                failpoint(Failpoint.IN_TRANSACTION)
        except (errors.TidemarkError, *FAILURES) as error:
            # This error may come from a commit that succeeded without an answer; all others come before the commit.
            if not (isinstance(error, errors.LedgerUnavailableError) and self._is_committed(prepared)):
                # `tidemark attach` would take the newest metadata file for the table's state.
                for one in prepared.values():
                    self._changes.discard(one)
                raise
        failpoint(Failpoint.AFTER_PUBLISH)
        return published

    def _follow_present_heads(
        self, connection: Connection, request: PublishRequest, prepared: dict[str, Prepared]
    ) -> None:
        locations = lock_pointers(connection, self._lakehouse.catalog_name, [change.table for change in request.tables])
        for change in request.tables:
            former = prepared[change.table.key]
            if locations.get(change.table.key) != former.before:
                prepared[change.table.key] = self._changes.prepare(change, request.run_id)
                self._changes.discard(former)

    def _is_committed(self, prepared: Mapping[str, Prepared]) -> bool:
        # Under the ledger's lock: a transaction whose connection is gone may still be at work in the server.
        with self._ledger.transaction():
            return any(self._changes.was_named(one) for one in prepared.values())


_TRIES, _FIRST_PAUSE_SECONDS = 8, 0.1
"""Other writers move a table's metadata whenever they stage a branch; then the request is prepared again."""


class TablesTogether(Publisher):
    """The publisher for a REST catalog that commits several tables at once and a ledger in its own database."""

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """Publish all tables or none; if the process dies after the catalog's commit, the next run records it."""
        failpoint(Failpoint.BEFORE_PUBLISH)
        for is_last in errors.tries(_TRIES, _FIRST_PAUSE_SECONDS):
            try:
                published = self._published(request)
                break
            except errors.PublishConflictError as error:
                if is_last or isinstance(error, errors.SliceConflictError | errors.TakenOverError):
                    raise
        failpoint(Failpoint.AFTER_PUBLISH)
        return published

    def _published(self, request: PublishRequest) -> Mapping[str, Published]:
        states = [self._changes.next_state(change, request.run_id) for change in request.together.tables]
        published = {state.table.key: state.published for state in states}
        for change in request.tables:
            self._changes.require_restorable(change)
        with self._ledger.transaction() as connection:
            # The ledger first: a refused change must not become visible, and its lock keeps other runs out.
            record_publish(connection, request, published)
            failpoint(Failpoint.IN_TRANSACTION)
            if states:
                self._changes.commit_together(states)
            failpoint(Failpoint.AFTER_COMMIT)
        return published


class TableByTable(Publisher):
    """The publisher for a ledger elsewhere and a catalog that commits one table at a time."""

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """Publish each table in one commit and one ledger transaction; tables after a conflict stay."""
        own = {(record.table, record.key) for _, step in request.steps for record in step.slices}
        with self._ledger.transaction() as connection:
            if request.alongside is not None:
                request.alongside.require(connection)
            require_inputs(
                connection, {place: digest for place, digest in request.rests_on.items() if place not in own}
            )
            for _, step in request.steps:
                require_decisions(connection, step, decided_since(connection, step))
        changes, recorded = {one.table.key: one for one in request.tables}, {table for table, _ in request.steps}
        published = {key: self._commit(request, change) for key, change in changes.items() if key not in recorded}
        for number, (table, step) in enumerate(request.steps):
            try:
                if table in changes and table not in published:
                    self._require_as_decided(request, changes[table])
                    published[table] = self._commit(request, changes[table])
                failpoint(Failpoint.BEFORE_LEDGER, table)
                self._ledger.record(naming_published(step, table, published, request.stand_ins), request.run_id)
            except errors.SliceConflictError as conflict:
                raise PartlyPublishedError(conflict, published, number) from conflict
        with self._ledger.transaction() as connection:
            record_end(connection, request, published)
        return published

    def _commit(self, request: PublishRequest, change: SliceChange) -> Published:
        published = self._changes.commit(change, request.name, request.run_id)
        try:
            if not published.is_empty:
                self._changes.require_restorable(change)
        except errors.LakehouseError as gone:
            # Put the former files back: a table must not name lost files.
            before = self._changes.of(change.table, published.snapshot_id, change.base_id, change.slices)
            self._changes.commit(before, f"{request.name}_undone", request.run_id)
            reason = "vanished during the rollback; its slice is unchanged"
            raise errors.LakehouseError(gone.subject, reason, gone.hint) from gone
        self._lakehouse.branches.drop(change.table, change.branches)
        return published

    def _require_as_decided(self, request: PublishRequest, change: SliceChange) -> None:
        with self._ledger.transaction() as connection:
            if request.minds_holds:
                require_not_held(connection, {(change.table.key, key) for key in change.slices})
            for step in (step for table, step in request.steps if table == change.table.key):
                require_decisions(connection, step, decided_since(connection, step))


class Promise(StrEnum):
    """A reader's guarantee while a run publishes, with the sentence that states it."""

    ONE_TRANSACTION = "one transaction"
    TABLES_TOGETHER = "tables together"
    TABLE_BY_TABLE = "table by table"

    @property
    def sentence(self) -> str:
        """The promise in a sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Promise.ONE_TRANSACTION: "a load publishes all its tables and the ledger's rows in one transaction",
    Promise.TABLES_TOGETHER:
        "a load publishes all its tables in one commit of the REST catalog (TIDEMARK_CATALOG_TRANSACTIONS), and the"
        " ledger follows: after a kill in between, the next run records what the tables show",
    Promise.TABLE_BY_TABLE:
        "a load publishes table by table, because the ledger lies in another place than the catalog"
        " (TIDEMARK_LEDGER_URL): a reader may see refined ahead of its aggregates for a moment",
}  # fmt: skip


def promise_of(settings: Settings) -> Promise:
    """Return the strongest promise that the places of catalog and ledger allow."""
    if settings.catalog_transactions:
        return Promise.TABLES_TOGETHER
    shared = share_a_database(settings.ledger_database_url, settings.catalog_url)
    return Promise.ONE_TRANSACTION if shared else Promise.TABLE_BY_TABLE


def publisher_of(settings: Settings, lakehouse: Lakehouse, ledger: Ledger) -> Publisher:
    """Return the publisher that keeps the deployment's promise."""
    publishers: Sequence[type[Publisher]] = (OneTransaction, TablesTogether, TableByTable)
    return publishers[list(Promise).index(promise_of(settings))](lakehouse, ledger)
