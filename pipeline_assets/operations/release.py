"""Release held slices: a preview of the effects, then the release. From the ledger alone, no JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.registry import OPTIONAL_TABLES, RESTORABLE
from resources.ledger.store import Ledger


@dataclass(frozen=True)
class Held:
    """A held slice, and the effect of releasing it."""

    table: str
    key: Slice
    reason: str
    digest: Digest
    digest_before: Digest
    """The digest before the rollback."""
    then: str
    """What the next load does with it, in words."""


def preview(
    ledger: Ledger,
    settings: Settings,
    tables: Sequence[str],
    projects: Sequence[str],
    first: date,
    last: date,
    now: datetime,
    *,
    is_load_next: bool,
) -> list[Held]:
    """The held slices of these tables (empty = all) and days; writes nothing. Raises UsageError where nothing is held.

    `is_load_next`: whether a load of exactly these days follows, which also rebuilds slices that other code built.
    """
    reasons = {
        (table.key, key): reason
        for table in RESTORABLE
        if (table.key in tables if tables else not table.kind.is_shared)
        for key, reason in sorted(ledger.interventions.holds(table.key, table.kind.projects(projects)).items())
        if table.kind.slice_day(first) <= key.event_date <= last
    }
    if not reasons:
        raise UsageError(f"{first} to {last}", "nothing is held there", "`tidemark status` shows what is")
    concerned = [table for table in RESTORABLE if table not in OPTIONAL_TABLES or table.key in {n for n, _ in reasons}]
    facts = Facts.read(ledger, settings, {key for _, key in reasons}, concerned, now).releasing(reasons)
    published = ledger.publications()
    held: list[Held] = []
    released: dict[tuple[str, Slice], Todo] = {}
    for table in concerned:
        slices = {key for _, key in reasons if (key.project_id == ALL_PROJECTS) is table.kind.is_shared}
        own = replace(facts, slices=frozenset(slices))
        plans = {plan.key: plan for plan in decide(own, table, slices if is_load_next else (), Acceptances(), now)}
        records = facts.records[table.key]
        for (name, key), reason in reasons.items():
            if name != table.key:
                continue
            plan = plans.get(key)
            followed = {upstream: released[upstream, key] for upstream in table.upstream if (upstream, key) in released}
            then = _FROM_LANDING if table.reads_landing(settings) else _then(plan, followed)
            if plan is not None:
                released[name, key] = plan.todo
            present = records[key].digest if key in records else EMPTY
            before = _before(published, name, key, present)
            held.append(Held(name, key, reason, present, before, then))
    return held


def release(ledger: Ledger, held: Sequence[Held], reason: str, run_id: str) -> None:
    """Release these slices; the next load, or `heal`, builds those that are stale. Raises UsageError without a reason."""
    if not reason.strip():
        raise UsageError("release", "needs a reason", "Say why; it stays on record")
    slices: dict[str, list[Slice]] = {}
    for held_slice in held:
        slices.setdefault(held_slice.table, []).append(held_slice.key)
    ledger.interventions.release(slices, reason, run_id)


def _before(published: Sequence[PublicationRecord], table: str, key: Slice, present: Digest) -> Digest:
    """The digest before the slice's last rollback; later publications may have followed it."""
    for record in reversed(published):
        if (record.table, record.key, record.cause.kind) == (table, key, CauseKind.ROLLBACK):
            return record.digest_before
    return present


_FROM_LANDING = "becomes what landing holds, with the next load of the day"
_SAID: Mapping[Todo, str] = {
    Todo.CHECK: "is compared with the days near it, and built again where they share events",
    Todo.KEEP: "stays as it is: it matches its inputs",
    Todo.KEEP_REFUSED: "stays as it is: the checks refused what its inputs give",
    Todo.WAIT_TIED: "waits for days that it shares events with",
}
_FOLLOWS: Mapping[Todo, str] = {
    Todo.REBUILD: "follows {upstream}, which is built again",
    Todo.CHECK: "follows {upstream}, if that is built again",
    Todo.WAIT: "waits for {upstream}",
    Todo.KEEP_REFUSED: "waits for {upstream}",
    Todo.REFUSE: "waits for {upstream}",
    Todo.WAIT_TIED: "waits for {upstream}",
}


def _then(plan: SlicePlan | None, followed: Mapping[str, Todo]) -> str:
    """The effect in words; `followed`: upstream table -> what happens to its slice, where that is released as well."""
    for upstream, todo in followed.items():
        if todo in _FOLLOWS:
            return _FOLLOWS[todo].format(upstream=upstream)
    if plan is None:
        return "stays as it is: its inputs are not on record"
    if plan.todo is Todo.REBUILD:
        return f"is built again ({plan.cause})"
    if plan.todo is Todo.WAIT:
        return f"waits: {plan.reason}"
    if plan.todo is Todo.REFUSE:
        return f"is refused: {plan.reason}"
    if plan.is_outdated:
        return "stays as it is: another version of the code built it, and the next load of the day builds it again"
    return _SAID[plan.todo]
