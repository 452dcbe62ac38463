"""Change slices of a catalog's tables: publish a staged snapshot to main, or restore an earlier state."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, make_url

from pipeline_assets.domain import errors
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.slices import Slice
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.catalog_at_rest import PUBLISH_PROPERTY, RUN_PROPERTY, TABLES, are_of, base_name, gone_files
from resources.iceberg.errors import FAILURES, again, failure, first_line, is_conflict, is_unanswered
from resources.iceberg.metadata import JavaTables, LiveFiles, SliceFiles, by_slice, slice_of, walk

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table


@dataclass(frozen=True)
class SliceChange:
    """Slices of one table, and their files after the change."""

    table: Table
    base_id: int
    slices: frozenset[Slice]
    files: LiveFiles
    former: LiveFiles
    """At the base."""
    branches: tuple[str, ...] = ()
    is_restored: bool = False
    """Whether the change restores files of an earlier snapshot: each is checked, as it may be gone."""
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return self.files.names == self.former.names

    @property
    def files_by_slice(self) -> dict[Slice, SliceFiles]:
        """The files of every slice after the change."""
        return by_slice(self.files, self.slices)

    @property
    def subject(self) -> str:
        """The table and its first three slices, for messages."""
        return _named(self.table, self.slices)

    def lost(
        self, reason: str, hint: str = "It is looked at again", slices: Collection[Slice] = ()
    ) -> errors.SliceConflictError:
        """Return the error for slices that another writer changed; by default all of the change's."""
        lost = slices or self.slices
        return errors.SliceConflictError(
            _named(self.table, lost), reason, hint, {(self.table.key, key) for key in lost}
        )


def _named(table: Table, slices: Collection[Slice]) -> str:
    return f"{table.key} {', '.join(sorted(map(str, slices))[:3])}"


@dataclass(frozen=True)
class Published:
    """Main of one table after a publish."""

    snapshot_id: int
    parent_id: int
    files: Mapping[Slice, SliceFiles]
    is_empty: bool = False
    """Whether the files were live already, so that main did not change."""


@dataclass(frozen=True)
class Prepared:
    """A table after a change whose manifests are written; nothing points at it yet."""

    table: Table
    published: Published
    before: str
    """The metadata file before the change; the swap is refused unless the catalog still points at it."""
    after: str = ""
    """The one after the change; equal to `before` for no change, empty until it is written."""
    base: Any = None
    metadata: Any = None

    @property
    def is_written(self) -> bool:
        """Whether the change wrote a metadata file."""
        return self.after not in ("", self.before)


_SUBJECT = "catalog"
_NOT_SERVED = "Server does not support endpoint"
_TRIES, _FIRST_PAUSE_SECONDS = 6, 0.2
"""The server may still be committing: the tables are checked for about six seconds."""
_SETTING = "Set catalog_transactions = false (TIDEMARK_CATALOG_TRANSACTIONS)"


class SliceChanges:
    """Makes changes of slices of one catalog's tables, and commits them or prepares them for a commit of several tables."""

    def __init__(self, tables: JavaTables) -> None:
        self._tables = tables

    def of(
        self, table: Table, base_id: int, snapshot_id: int, slices: Collection[Slice], branches: Sequence[str] = ()
    ) -> SliceChange:
        """Return the change that gives main's slices, read at `base_id`, the files of a staged snapshot."""
        wanted = frozenset(slices)
        files = self._tables.files(self._tables.knowing(table, snapshot_id), snapshot_id, wanted)
        return self._since(SliceChange(table, base_id, wanted, files, LiveFiles(), tuple(branches)))

    def restoring(self, table: Table, base_id: int, snapshots: Mapping[Slice, int | None]) -> SliceChange:
        """Return the change that restores each slice to its snapshot (None: empty); raises LakehouseError for a lost file."""
        files = self.require_files(table, snapshots)
        return self._since(SliceChange(table, base_id, frozenset(snapshots), files, LiveFiles(), is_restored=True))

    def _since(self, change: SliceChange) -> SliceChange:
        java = self._tables.current(change.table)
        if java.snapshot(change.base_id) is None:
            raise change.lost("the snapshot it was read at has expired")
        return replace(change, former=self._tables.files(java, change.base_id, change.slices))

    def without_deletes(self, table: Table, base_id: int, slices: Collection[Slice]) -> SliceChange:
        """Return the change that removes delete files, without slices that lost data or share one with a slice left out."""
        java = self._tables.current(table)
        live = self._tables.files(java, base_id, None)
        key_of = {path: slice_of(file) for path, file in live.items()}
        gone = gone_files([path for path, key in key_of.items() if key in slices])
        wanted = set(slices) - {key_of[path] for path in gone}
        tied = wanted
        while tied:
            stay = {name for path, own in live.deletes.items() if key_of[path] not in wanted for name in own}
            tied = {key_of[path] for path, own in live.deletes.items() if not stay.isdisjoint(own)} & wanted
            wanted = wanted - tied
        files = LiveFiles({path: file for path, file in live.items() if key_of[path] in wanted})
        return self._since(SliceChange(table, base_id, frozenset(wanted), files, LiveFiles()))

    def require_restorable(self, change: SliceChange) -> None:
        """Raise LakehouseError where a file that a change restores is gone."""
        if change.is_restored:
            self._require_there(change.files)

    def require_files(self, table: Table, snapshots: Mapping[Slice, int | None]) -> LiveFiles:
        """Return the files of these slices in these snapshots; raises LakehouseError for a file that is gone."""
        java = self._tables.current(table)
        files = LiveFiles()
        for snapshot_id in {known for known in snapshots.values() if known is not None}:
            chosen = {key for key, known in snapshots.items() if known == snapshot_id}
            found = self._tables.files(java, snapshot_id, chosen)
            if found.deletes:
                reason = "had rows deleted by another program then"
                raise errors.LakehouseError(min(found.deletes), reason, "Choose another state")
            files |= found
        self._require_there(files)
        return files

    def _require_there(self, paths: Collection[str]) -> None:
        if gone := gone_files(paths):
            raise errors.LakehouseError(min(gone), "is gone, so its rows cannot be restored", "Choose a later state")

    def next_state(self, change: SliceChange, run_id: str) -> Prepared:
        """Apply a change to main's head, in memory; raises SliceConflictError where main changed in a slice since the base."""
        return self._tried(change, run_id, self._applied)

    def prepare(self, change: SliceChange, run_id: str) -> Prepared:
        """Apply a change as `next_state` does, and write its metadata file."""
        return self._tried(change, run_id, self._prepared)

    def discard(self, prepared: Prepared) -> None:
        """Remove the metadata file of a discarded change; maintenance removes its manifests."""
        if prepared.is_written:
            with suppress(*FAILURES):
                self._tables.current(prepared.table).io().deleteFile(prepared.after)

    def was_named(self, prepared: Prepared) -> bool:
        """Whether the catalog points at the prepared metadata file, or did earlier."""
        named = self._tables.metadata_files(self._tables.current(prepared.table))
        return prepared.is_written and prepared.after in named

    def _prepared(self, java: Any, change: SliceChange, run_id: str) -> Prepared:
        state, operations = self._applied(java, change, run_id), java.operations()
        if state.metadata.changes().isEmpty():
            return replace(state, after=state.before)
        number = re.match(r"(\d+)-", base_name(state.before))
        name = f"{int(number[1]) + 1 if number else 0:05d}-{uuid.uuid4()}.metadata.json"
        after = str(operations.metadataFileLocation(name))
        parser = self._tables.java_class("org.apache.iceberg.TableMetadataParser")
        parser.write(state.metadata, operations.io().newOutputFile(after))
        failpoint(Failpoint.AFTER_APPLY, change.table.key)
        return replace(state, after=after)

    def _applied(self, java: Any, change: SliceChange, run_id: str) -> Prepared:
        operations, builder = java.operations(), self._tables.java_class("org.apache.iceberg.TableMetadata")
        published = self._unchanged(java, change, int(java.currentSnapshot().snapshotId()))
        snapshot: Any = None if published is not None else self._row_delta(java, change, run_id).apply()
        # `apply` refreshed the metadata from the catalog, so this is its base.
        base = operations.current()
        metadata = builder.buildFrom(base)
        if published is None:
            published = Published(int(snapshot.snapshotId()), int(snapshot.parentId()), change.files_by_slice)
            self._require_base_files(change, published.parent_id)
            metadata = metadata.setBranchSnapshot(snapshot, "main")
        for branch in filter(base.refs().containsKey, change.branches):
            metadata = metadata.removeRef(branch)
        before = str(base.metadataFileLocation())
        return Prepared(change.table, published, before, base=base, metadata=metadata.build())

    def _row_delta(self, java: Any, change: SliceChange, run_id: str) -> Any:
        """It fails where main changed in one of the slices since the base."""
        old, new, tables = change.former, change.files, self._tables
        # Only a row delta can require that untouched files still exist.
        operation = java.newRowDelta()
        for path in sorted(old.keys() - new.keys()):
            operation.removeRows(old[path])
        for path in sorted(new.keys() - old.keys()):
            operation.addRows(new[path])
        if change.files.names - change.files.keys() - old.names:
            reason = "was staged with delete files: another program set its table to merge-on-read meanwhile"
            raise errors.LakehouseError(change.subject, reason, "Load again, which resets that")
        for delete in self._released(java, change):
            operation.removeDeletes(delete)
        kept = tables.java_list(sorted(old.keys() & new.keys()))
        operation.validateFromSnapshot(change.base_id)
        operation.conflictDetectionFilter(tables.expression(change.table.day_column, change.slices))
        operation.validateDataFilesExist(kept).validateDeletedFiles()
        operation.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
        # Leave a failed commit's files to maintenance: where only the answer was lost, Iceberg's retry conflicts with the commit,
        # and its clean-up would delete the manifests of a live snapshot.
        operation.deleteWith(tables.java_class("java.util.stream.Stream").builder())
        for name, value in {**change.summary, RUN_PROPERTY: run_id}.items():
            operation.set(name, value)
        return operation

    def _released(self, java: Any, change: SliceChange) -> list[Any]:
        former, kept = change.former.deletes, set(change.files.names)
        gone = {name: delete for own in former.values() for name, delete in own.items() if name not in kept}
        if gone:
            # A delete file without a partition applies to further slices, which keep it.
            everywhere = self._tables.files(java, change.base_id, None).deletes
            kept.update(*(everywhere[path] for path in everywhere.keys() - former.keys()))
        return [delete for name, delete in gone.items() if name not in kept]

    def _unchanged(self, java: Any, change: SliceChange, head_id: int) -> Published | None:
        if not change.is_empty:
            return None
        if head_id != change.base_id and self._tables.files(java, head_id, change.slices).names != change.files.names:
            raise change.lost("another writer changed it since it was read")
        return Published(head_id, head_id, change.files_by_slice, is_empty=True)

    def _require_base_files(self, change: SliceChange, parent_id: int) -> None:
        """Iceberg overlooks others' compaction and removal of further files: the recorded list of files is wrong then."""
        if parent_id != change.base_id:
            before = self._tables.files(self._tables.current(change.table), parent_id, change.slices)
            if before.names != change.former.names:
                raise change.lost("another process compacted or removed its files during the publish")

    def _tried(self, change: SliceChange, run_id: str, make: Callable[[Any, SliceChange, str], Prepared]) -> Prepared:
        try:
            return again(lambda: make(self._tables.current(change.table), change, run_id))
        except FAILURES as error:
            raise self._refusal(change, error) from error

    def _refusal(self, change: SliceChange, error: Exception) -> Exception:
        if not is_conflict(error):
            return failure(change.subject, error) or error
        since = self._tables.commits(self._tables.current(change.table), change.base_id)
        commits = [commit for commit in since if commit.slices & change.slices]
        winners = {commit.run_id or f"snapshot {commit.snapshot_id}, not written by Tidemark" for commit in commits}
        lost = frozenset().union(*(commit.slices & change.slices for commit in commits))
        who = f"run {', '.join(sorted(winners))}" if winners else "another writer"
        hint = "Nothing was published; it is built from fresh inputs"
        return change.lost(f"{who} changed it since it was read", hint, lost)

    def commit(self, change: SliceChange, name: str, run_id: str, *, branch: str = "main") -> Published:
        """Commit a change to main or another branch, under a name within the run; raises as `next_state` does."""
        java, is_main = self._tables.current(change.table), branch == "main"
        unchanged = self._unchanged(java, change, int(java.snapshot(branch).snapshotId()))
        if unchanged is not None:
            return unchanged
        operation = self._row_delta(java, change, run_id).toBranch(branch)
        slices = repr(sorted(map(str, change.slices)))
        publish_id = f"{name}-{hashlib.sha256(slices.encode()).hexdigest()[:12]}"
        operation.set(PUBLISH_PROPERTY, publish_id)
        if is_main:
            failpoint(Failpoint.BEFORE_COMMIT, change.table.key)
        try:
            operation.commit()
        except FAILURES as error:
            # Iceberg's retry of a commit whose answer was lost conflicts with the first try: history decides.
            committed = self._committed(change, publish_id, branch)
            if committed is None:
                raise self._refusal(change, error) from error
        else:
            if is_main:
                failpoint(Failpoint.AFTER_COMMIT, change.table.key)
            committed = self._committed(change, publish_id, branch)
        if committed is None:
            reason = "main was set back over what was just published"
            raise errors.PublishConflictError(change.table.key, reason, "The load looks at the table again")
        self._require_base_files(change, committed.parent_id)
        return committed

    def _committed(self, change: SliceChange, publish_id: str, branch: str) -> Published | None:
        java = self._tables.current(change.table)
        since = takewhile(lambda one: one.snapshotId() != change.base_id, walk(java, java.snapshot(branch)))
        for snapshot in since:
            if snapshot.summary().get(PUBLISH_PROPERTY) == publish_id:
                return Published(int(snapshot.snapshotId()), int(snapshot.parentId()), change.files_by_slice)
        return None

    def commit_together(self, states: Sequence[Prepared]) -> None:
        """Commit states of several tables in one transaction of a REST catalog; raises PublishConflictError if one moved."""
        commit = self._tables.java_class("org.apache.iceberg.catalog.TableCommit")
        changed = [state for state in states if not state.metadata.changes().isEmpty()]
        commits = [commit.create(self._tables.name(one.table), one.base, one.metadata) for one in changed]
        if not commits:
            return
        try:
            self._tables.catalog().commitTransaction(self._tables.java_list(commits))
        except FAILURES as error:
            if not self._are_committed(states, may_be_at_work=is_unanswered(error)):
                raise self._refusal_of_all(states, error) from error

    def _are_committed(self, states: Sequence[Prepared], *, may_be_at_work: bool) -> bool:
        moved = [state for state in states if not state.published.is_empty]
        for _ in errors.tries(_TRIES if may_be_at_work else 1, _FIRST_PAUSE_SECONDS):
            snapshots = [self._tables.current(one.table).snapshot(one.published.snapshot_id) for one in moved]
            shown = [one.table.key for one, snapshot in zip(moved, snapshots, strict=True) if snapshot is not None]
            left = [one.table.key for one in moved if one.table.key not in shown]
            if shown and left:
                both = f"committed {few(shown)} of one transaction and left {few(left)}"
                raise errors.LakehouseError(
                    _SUBJECT, f"{both}: it does not keep transactions", f"{_SETTING}, then load again"
                )
            if shown:
                return True
        return False

    def _refusal_of_all(self, states: Sequence[Prepared], error: Exception) -> errors.TidemarkError | Exception:
        if _NOT_SERVED in str(error):
            reason = "does not commit several tables at once (POST /v1/{prefix}/transactions/commit)"
            return errors.LakehouseError(_SUBJECT, reason, f"{_SETTING}, then load again")
        if is_unanswered(error):
            reason = f"the answer to a commit was lost, and the tables show nothing of it: {first_line(error)}"
            return errors.LakehouseUnavailableError(_SUBJECT, reason, "Load again; what was committed is found then")
        present = [self._tables.metadata_files(self._tables.current(one.table))[-1] for one in states]
        if others := [one.table.key for one, file in zip(states, present, strict=True) if file != one.before]:
            reason = "another writer changed it meanwhile"
            return errors.PublishConflictError(few(others), reason, "Nothing was published; it is applied anew")
        return failure(_SUBJECT, error) or error


def lock_pointers(connection: Connection, catalog: str, tables: Collection[Table]) -> dict[str, str]:
    """Return table -> its pointer's metadata file; locks these rows until the transaction ends."""
    if not tables:
        return {}
    keys = {table.identifier: table.key for table in tables}
    columns = (TABLES.c.table_namespace, TABLES.c.table_name, TABLES.c.metadata_location)
    query = sa.select(*columns).where(are_of(catalog, tables))
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    rows = connection.execute(query.order_by(TABLES.c.table_namespace, TABLES.c.table_name))
    return {keys[f"{namespace}.{name}"]: str(location) for namespace, name, location in rows}


def swap_pointers(connection: Connection, catalog: str, prepared: Sequence[Prepared]) -> None:
    """Point each table at its prepared metadata; raises PublishConflictError where a pointer has moved since."""
    for one in prepared:
        if not one.is_written:
            continue
        statement = sa.update(TABLES).where(are_of(catalog, [one.table]), TABLES.c.metadata_location == one.before)
        new = {"metadata_location": one.after, "previous_metadata_location": one.before}
        if connection.execute(statement.values(new)).rowcount != 1:
            reason = "another writer moved its pointer meanwhile"
            raise errors.PublishConflictError(one.table.key, reason, "Nothing was published; load again")


def share_a_database(ledger: str, catalog: str) -> bool:
    """Whether one transaction can write to both the ledger and the catalog's tables."""
    places: set[tuple[Any, ...]] = set()
    for url in map(make_url, (ledger, catalog)):
        if url.get_backend_name() != "sqlite":
            # Another user may see other schemas, and may lack the right to write to both.
            places.add((url.host or "localhost", url.port or 5432, url.database, url.username, schema_of(url)))
        elif url.database in (None, "", ":memory:"):
            return False
        else:
            places.add((str(Path(str(url.database)).resolve()),))
    return len(places) == 1


def schema_of(url: URL) -> str:
    """Return the schema in which a connection creates its tables and looks for them first."""
    path = re.search(r"search_path\s*=\s*([^\s,]+)", str(url.query.get("options", "")))
    return path[1] if path else "public"
