"""Release held slices: what will change first, then the release. From the ledger alone, no JVM.

Lives here: which holds stand and what the next load makes of their slices. Put here: another thing to know before a release. Keep
out: holding (roll_back.py) and building (derived/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from resources.ledger_records import PublicationRecord

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load_path.ground import ground_of
from pipeline_assets.load_path.request import Books, LoadRequest
from pipeline_assets.load_path.roll_back import CAUSE
from pipeline_assets.load_path.standing import Decision, Todo, decide_all
from pipeline_assets.tables.registry import DERIVED


@dataclass(frozen=True)
class Held:
    """A held slice, and what becomes of it once it is released."""

    table: str
    key: Slice
    reason: str
    digest: Digest
    digest_before: Digest
    """Of what it was before it was rolled back."""
    then: str
    """What the next load does about it, in words."""


def preview(
    books: Books, tables: Sequence[str], projects: Sequence[str], first: date, last: date, now: datetime
) -> list[Held]:
    """The held slices of these tables (none = all) and days; writes nothing. Raises UsageError where nothing is held."""
    found: list[Held] = []
    published = books.ledger.publications()
    for table in DERIVED:
        if tables and table.key not in tables:
            continue
        holds = {
            key: reason
            for key, reason in books.ledger.decisions.holds(table.key, projects).items()
            if first <= key.event_date <= last
        }
        if not holds:
            continue
        days: dict[str, set[date]] = {}
        for key in holds:
            days.setdefault(key.project_id, set()).add(key.event_date)
        ground = ground_of(
            books, {project: frozenset(of) for project, of in days.items()}, books.ledger.first_arrivals(projects)
        )
        request = LoadRequest((), tuple(projects), frozenset(), "", now)
        decisions = {d.key: d for d in decide_all(books, request, table, ground, do_holds_count=False)}
        records = books.ledger.slices(table.key, projects, {key.event_date for key in holds})
        for key, reason in sorted(holds.items()):
            present = records[key].digest if key in records else EMPTY
            before = _before(published, table.key, key, present)
            found.append(Held(table.key, key, reason, present, before, _then(decisions.get(key))))
    if not found:
        raise UsageError(f"{first} to {last}", "nothing is held there", "`tidemark status` shows what is")
    return found


def release(books: Books, held: Sequence[Held], reason: str, run_id: str) -> None:
    """Hold these slices no more; the next load, or `heal`, builds what is stale among them. Raises UsageError for no reason."""
    if not reason.strip():
        raise UsageError("release", "needs a reason", "Say why; it stays on record")
    slices: dict[str, list[Slice]] = {}
    for one in held:
        slices.setdefault(one.table, []).append(one.key)
    books.ledger.decisions.release(slices, reason, run_id)


def _before(published: Sequence[PublicationRecord], table: str, key: Slice, present: Digest) -> Digest:
    """What the slice was before its last rollback, which others may have followed."""
    for record in reversed(published):
        if (record.table, record.key, record.cause) == (table, key, CAUSE):
            return record.digest_before
    return present


_SAID: Mapping[Todo, str] = {
    Todo.CHECK: "is compared with the days near it, and built again where they share events",
    Todo.KEEP: "stays as it is: it is what its inputs say",
    Todo.KEEP_REFUSED: "stays as it is: what its inputs say was refused",
    Todo.WAIT_TIED: "waits for days that it shares events with",
}


def _then(decision: Decision | None) -> str:
    if decision is None:
        return "stays as it is: nothing is known of its inputs"
    if decision.todo is Todo.REBUILD:
        return f"is built again ({decision.cause})"
    if decision.todo is Todo.WAIT:
        return f"waits: {decision.reason}"
    return _SAID[decision.todo]
