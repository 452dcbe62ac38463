"""One commit of a REST catalog that changes several tables atomically (`POST …/transactions/commit`)."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_assets.domain.errors import LakehouseError, LakehouseUnavailableError, PublishConflictError, TidemarkError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.retry import tries
from resources.iceberg.errors import FAILURES, failure, first_line, is_unanswered
from resources.iceberg.metadata import JavaTables
from resources.iceberg.prepared import NextState
from resources.iceberg.slice_change import load

_SUBJECT = "catalog"
_NOT_SERVED = "Server does not support endpoint"
_TRIES, _FIRST_PAUSE_SECONDS = 6, 0.2
"""After a lost answer the server may still be committing; the tables are checked for about six seconds."""
_SETTING = "Set catalog_transactions = false (TIDEMARK_CATALOG_TRANSACTIONS)"


def commit_together(tables: JavaTables, states: Sequence[NextState]) -> None:
    """Commit all of these states to the catalog in one transaction.

    Raises PublishConflictError, with nothing committed, where a table has moved on from the base of its state.
    """
    commits = tables.java_class("java.util.ArrayList")()
    commit = tables.java_class("org.apache.iceberg.catalog.TableCommit")
    name = tables.java_class("org.apache.iceberg.catalog.TableIdentifier")
    for state in states:
        if not state.metadata.changes().isEmpty():
            commits.add(commit.create(name.parse(state.table.identifier), state.base, state.metadata))
    if commits.isEmpty():
        return
    try:
        tables.catalog().commitTransaction(commits)
    except FAILURES as error:
        if not _is_committed(tables, states, may_be_at_work=is_unanswered(error)):
            raise _refusal(tables, states, error) from error


def _is_committed(tables: JavaTables, states: Sequence[NextState], *, may_be_at_work: bool) -> bool:
    """Whether the tables' histories contain the commit; raises LakehouseError where only some of the tables have it."""
    moved = [state for state in states if not state.is_empty]
    for is_last in tries(_TRIES if may_be_at_work else 1, _FIRST_PAUSE_SECONDS):
        shown = [state for state in moved if load(tables, state.table).snapshot(state.snapshot_id) is not None]
        if shown:
            _require_all(moved, shown)
            return True
        if is_last:
            return False
    raise AssertionError


def _require_all(moved: Sequence[NextState], shown: Sequence[NextState]) -> None:
    left = [state.table.key for state in moved if state not in shown]
    if left:
        told = f"committed {few([state.table.key for state in shown])} of one transaction and left {few(left)}"
        raise LakehouseError(_SUBJECT, f"{told}: it does not keep transactions", f"{_SETTING}, then load again")


def _refusal(tables: JavaTables, states: Sequence[NextState], error: Exception) -> TidemarkError | Exception:
    if _NOT_SERVED in str(error):
        reason = "does not commit several tables at once (POST /v1/{prefix}/transactions/commit)"
        return LakehouseError(_SUBJECT, reason, f"{_SETTING}, then load again")
    if is_unanswered(error):
        # The next run reads from the tables whether the commit succeeded.
        reason = f"the answer to a commit was lost, and the tables show nothing of it: {first_line(error)}"
        return LakehouseUnavailableError(_SUBJECT, reason, "Load again; what was committed is found then")
    followed = {state.table.key: str(state.base.metadataFileLocation()) for state in states}
    others = [
        state.table.key
        for state in states
        if str(load(tables, state.table).operations().current().metadataFileLocation()) != followed[state.table.key]
    ]
    if others:
        reason = "another writer changed it meanwhile"
        return PublishConflictError(few(others), reason, "Nothing was published; it is applied anew")
    return failure(_SUBJECT, error) or error
