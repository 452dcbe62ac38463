"""One attempt at a raw table: reads changed objects into files and stages them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import NOT_READABLE, BatchKey, Delivery
from pipeline_assets.domain.errors import LakehouseError, LandingAccessError, ReadTwiceError
from pipeline_assets.domain.plain_text import sql_text
from pipeline_assets.domain.records import THIS_LOAD, UNREAD, DeliveryRecord
from pipeline_assets.domain.skew import READS_PER_CORE, StepSkew, share_of
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.draft import LoadRuntime
from pipeline_assets.load.file_tasks import objects_of_batches
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.tables.events import QUARANTINE, event_hashes
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms import write_objects
from pipeline_assets.transforms.object_text import MOVED, SUMMARY_COUNTS, Share, Summary, hashed_objects, shares
from pipeline_assets.transforms.parse import ObjectWork
from pipeline_assets.transforms.write_objects import Written
from resources.iceberg.lakehouse import Staged
from resources.ledger.changes import Changes


@dataclass(frozen=True)
class Losses:
    """Slices of a raw table or of quarantine that cannot be read; lost ones are empty in the attempt's base."""

    found: Mapping[Slice, Evaluation] = field(default_factory=dict)
    before: frozenset[Slice] = frozenset()
    of_lines: frozenset[Slice] = frozenset()
    holding: Mapping[Slice, Set[BatchKey]] = field(default_factory=dict)


@dataclass
class Attempt:
    """One attempt of a load at a raw table, filled in by its steps; another follows if objects moved."""

    runtime: LoadRuntime
    request: LoadRequest
    source: Source
    table: Table
    base_id: int
    name: str
    started_at: float
    """Monotonic clock, seconds, at the first attempt."""
    may_list_again: bool
    losses: Losses
    batches: dict[BatchKey, BatchPlan]
    published: dict[Slice, Digest]
    touched: dict[str, DeliveryRecord] = field(default_factory=dict)
    """Object with another etag but known bytes -> its record with that etag: hashed, not parsed."""
    summaries: dict[str, DeliveryRecord] = field(default_factory=dict)
    """Object key -> the result of reading it; for a touched object, the earlier one."""
    details: dict[str, str] = field(default_factory=dict)
    """Unread object -> why it cannot be read, or what it is instead of an export."""
    staged: Staged | None = None
    staged_plans: Sequence[BatchPlan] = ()
    present: dict[BatchKey, dict[str, int]] = field(default_factory=dict)
    verdicts: dict[BatchKey, tuple[BatchVerdict, Evaluation]] = field(default_factory=dict)
    brought_back: dict[Slice, list[BatchKey]] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)

    @property
    def work(self) -> list[BatchPlan]:
        """Batches to read or remove something of, unless refused beforehand."""
        return [plan for plan in self.batches.values() if plan.needs_work and plan.verdict is None]

    def replaced(self, plan: BatchPlan) -> list[str]:
        """Objects of a batch whose rows in raw are outdated."""
        return sorted({*(delivery.key for delivery in self.to_parse([plan])), *plan.withdrawn})

    def to_parse(self, plans: Iterable[BatchPlan]) -> list[Delivery]:
        """Objects whose bytes are new to raw."""
        return [delivery for plan in plans for delivery in plan.changed if delivery.key not in self.touched]

    def judged(self, verdict: BatchVerdict) -> list[BatchPlan]:
        """Batches in work with this verdict."""
        return [plan for key, plan in self.batches.items() if plan.needs_work and self.verdicts[key][0] is verdict]

    def drop(self) -> None:
        """Drop the staged branch, unless later steps of the load read it."""
        if self.staged is not None:
            self.runtime.draft.drop(self.staged)
        self.staged, self.staged_plans = None, ()


_STEP = "read"
_ACCESS_HINT = "Check TIDEMARK_LANDING_URL and credentials, and the rights to read what is listed"
_KEYS_PER_STATEMENT = 500


def read_and_stage(attempt: Attempt) -> None:
    """Stage the rows of changed objects, as if every batch were accepted. Raises LandingAccessError if none is readable."""
    attempt.summaries = dict(attempt.touched)
    plans = [plan for plan in attempt.work if attempt.replaced(plan)]
    if plans:
        files, found = _written(attempt, attempt.to_parse(plans))
        _require_readable(attempt, found)
        code = attempt.table.code_version(attempt.runtime.settings)
        for plan in attempt.work:
            for delivery in attempt.to_parse([plan]):
                row, known = found[delivery.key], plan.recorded.get(delivery.key)
                known = known if known is not None and known.sha256 in (None, row["sha256"]) else None
                attempt.summaries[delivery.key] = DeliveryRecord(
                    batch=delivery.batch,
                    object_key=delivery.key,
                    etag=delivery.etag,
                    size_bytes=delivery.size_bytes,
                    is_accepted=False,
                    code_version=code,
                    line_reasons=tuple(json.loads(row["line_reasons"] or "{}").items()),
                    recorded_at=known.recorded_at if known is not None else THIS_LOAD,
                    run_id=known.run_id if known is not None else None,
                    **{name: row[name] for name in ("sha256", "lines", "rows", "quarantined", "blank", "error")},
                )
        attempt.details = {key: row["error_detail"] for key, row in found.items() if row["error"]}
        _stage(attempt, plans, files)


def stage_accepted(attempt: Attempt) -> None:
    """Stage accepted batches alone: again if others are not accepted, because files may hold rows of both."""
    plans = [plan for plan in attempt.judged(BatchVerdict.ACCEPTED) if attempt.replaced(plan)]
    if len(plans) == len(attempt.staged_plans):
        return
    attempt.drop()
    if plans:
        files, found = _written(attempt, attempt.to_parse(plans))
        _require_unmoved(found)
        _stage(attempt, plans, files)


def _stage(attempt: Attempt, plans: Sequence[BatchPlan], files: Sequence[str]) -> None:
    runtime, table = attempt.runtime, attempt.table
    replaced = {plan.key: set(attempt.replaced(plan)) for plan in plans}
    # From the table, because a dead run may have left rows without a ledger record.
    found = objects_of_batches(runtime, table, attempt.base_id, list(replaced))
    attempt.present = {batch: {key: of.rows for key, of in objects.items()} for batch, objects in found.items()}
    old = {key for batch in replaced for key in attempt.present[batch].keys() & replaced[batch]}
    reach = {Slice(batch.arrival_date, batch.project_id) for batch in replaced}

    def write(target: str) -> None:
        if old:
            _delete_objects(runtime, target, ("_arrival_date", "_object_key"), reach, old)
        if files:
            runtime.lakehouse.files.append(table, target, files)

    runtime.log(f"{table.key}: staging {sum(map(len, replaced.values()))} objects of {len(plans)} batches")
    attempt.staged, attempt.staged_plans = runtime.lakehouse.stage(table, attempt.base_id, attempt.name, write), plans


def _delete_objects(
    runtime: Runtime, target: str, columns: tuple[str, str], reach: set[Slice], keys: Set[str], also: str = "TRUE"
) -> None:
    """Copy-on-write of files with rows of these objects that meet `also`; `columns`: arrival day, object key."""
    day_column, key_column = columns
    days = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted({key.event_date for key in reach}))
    projects = ", ".join(sql_text(project) for project in sorted({key.project_id for key in reach}))
    named = sorted(keys)
    for start in range(0, len(named), _KEYS_PER_STATEMENT):
        listed = ", ".join(map(sql_text, named[start : start + _KEYS_PER_STATEMENT]))
        runtime.spark.sql(
            f"DELETE FROM {target} WHERE {day_column} IN ({days}) AND project_id IN ({projects}) "
            f"AND {key_column} IN ({listed}) AND {also}"
        )


def quarantine(attempt: Attempt) -> None:
    """Replace the lines of the read objects in raw.quarantine; runs before raw, idempotent like it."""
    runtime, summaries = attempt.runtime, attempt.summaries
    restored = attempt.losses.of_lines & attempt.brought_back.keys()
    # Lines beside those of a lost file would hide its loss; they are read again with it.
    stuck = {BatchKey(attempt.source, key.project_id, key.event_date) for key in attempt.losses.of_lines - restored}
    accepted = {plan.key: plan for plan in attempt.judged(BatchVerdict.ACCEPTED) if plan.key not in stuck}
    refused = [*attempt.judged(BatchVerdict.REFUSED), *attempt.judged(BatchVerdict.WAITING)]
    plans = [*accepted.values(), *(plan for plan in refused if plan.key not in stuck)]
    of_accepted = {key for plan in accepted.values() for key in attempt.replaced(plan)}
    old = {key for plan in accepted.values() for key in attempt.replaced(plan) if _is_bad(plan.recorded.get(key))}
    old_refusals = {
        key
        for plan in plans
        for key, record in plan.refused.items()
        if _is_bad(record) and (plan.key in accepted or key in summaries or key in plan.stale_refusals)
    }
    unread = {key for key in attempt.details if summaries[key].error == NOT_READABLE}
    new = {key for plan in plans for key in attempt.replaced(plan) if _is_bad(summaries.get(key))} - unread
    concerned = old | old_refusals | new
    if not (concerned or restored):
        return
    batches = [plan.key for plan in plans if not concerned.isdisjoint({*plan.listed, *plan.recorded, *plan.refused})]
    slices = {*restored, *(Slice(batch.arrival_date, batch.project_id) for batch in batches)}

    # A second reading, because one pass would have to keep all rows for the sake of few refused lines.
    bad = [delivery for plan in plans for delivery in plan.changed if delivery.key in new]
    runtime.new_bytes.add(sum(one.size_bytes for one in bad if one.key in attempt.touched))
    files, found = _written(attempt, bad, accepted.keys())
    _require_unmoved(found)

    def write(target: str) -> None:
        # A dead run may have left rows of the same objects, so those go first.
        columns = ("arrival_date", "object_key")
        _delete_objects(runtime, target, columns, slices, old_refusals | new, "NOT is_batch_accepted")
        _delete_objects(runtime, target, columns, slices, old | (new & of_accepted))
        if files:
            runtime.lakehouse.files.append(QUARANTINE, target, files)

    if restored:
        runtime.draft.record(QUARANTINE, _read_by_next_load(attempt, restored))
    staged = runtime.lakehouse.stage(QUARANTINE, runtime.draft.pin(QUARANTINE), attempt.name, write)
    runtime.draft.accept(staged, slices, is_whole=True)


def _read_by_next_load(attempt: Attempt, slices: Collection[Slice]) -> Changes:
    ledger, other = attempt.runtime.ledger, attempt.source.other
    known = [
        record
        for key in slices
        for kept in (True, False)
        for record in ledger.deliveries(
            other, [key.project_id], key.event_date, key.event_date, is_accepted=kept
        ).values()
    ]
    marked = [
        replace(one, etag=f"{UNREAD}{one.etag.removeprefix(UNREAD)}", sha256=None) for one in known if _is_bad(one)
    ]
    return Changes(deliveries=marked)


def _is_bad(record: DeliveryRecord | None) -> bool:
    return record is not None and bool(
        record.quarantined or record.error or record.etag.startswith(UNREAD) or not record.etag
    )


_Found = tuple[list[str], dict[str, Summary]]


def _written(
    attempt: Attempt, deliveries: Sequence[Delivery], accepted: Collection[BatchKey] | None = None
) -> tuple[list[str], dict[str, Summary]]:
    """Write good lines to files of raw, or the refused ones to files of raw.quarantine; `accepted`: then the loaded batches."""
    if not deliveries:
        return [], {}
    runtime, settings, files = attempt.runtime, attempt.runtime.settings, attempt.runtime.lakehouse.files
    is_raw, table = accepted is None, attempt.table if accepted is None else QUARANTINE
    work = ObjectWork(runtime.landing, settings.max_object_bytes, settings.max_line_bytes, only_refused=not is_raw)
    tasks = shares(sorted(deliveries), runtime.tasks.parallelism * READS_PER_CORE, is_divided=is_raw)
    layout, store = files.layout(table, is_ordered=is_raw), files.store(table)
    is_spread = is_raw and len(tasks) > 1
    function: Callable[[Sequence[Share]], Written]
    if accepted is None:
        function = partial(write_objects.write_rows, work, event_hashes(), layout, store)
    else:
        function = partial(write_objects.write_refused, work, layout, store, accepted)
    if is_spread:
        largest = (
            share_of("object", ((one.key, one.size_bytes) for one in deliveries)),
            share_of("project", ((one.batch.project_id, one.size_bytes) for one in deliveries)),
            share_of("arrival day", ((one.batch.arrival_date.isoformat(), one.size_bytes) for one in deliveries)),
        )
        sizes = tuple(sum(share.weight for share in task) for task in tasks)
        runtime.skew.forecast(StepSkew(table.key, _STEP, "bytes", largest, sizes), runtime)
    written = runtime.tasks.run(function, tasks, read_bytes=0)
    if is_spread:
        runtime.skew.measured(table.key, _STEP, [one.rows for one in written], runtime)
    parts: dict[str, list[Summary]] = {}
    for summary in (summary for one in written for summary in one.summaries):
        parts.setdefault(summary["object_key"], []).append(summary)
    expected = Counter(share.delivery.key for task in tasks for share in task)
    if lacking := {key for key, count in expected.items() if len(parts.get(key, ())) != count}:
        raise LakehouseError(min(lacking), "was not accounted for by the parser", "This is a defect: report it")
    return [file for one in written for file in one.files], {key: joined(of) for key, of in parts.items()}


def joined(parts: Sequence[Summary]) -> Summary:
    """The summary of an object from those of its parts; MOVED if they saw different versions of it."""
    first = parts[0]
    if len({(part["error"], part["sha256"]) for part in parts}) > 1:
        detail = "was read in parts, which saw different versions of it"
        counts = dict.fromkeys(SUMMARY_COUNTS, 0)
        return {**first, **counts, "sha256": None, "line_reasons": None, "error": MOVED, "error_detail": detail}
    reasons = sum((Counter(json.loads(part["line_reasons"] or "{}")) for part in parts), Counter[str]())
    counts = {name: sum(part[name] for part in parts) for name in SUMMARY_COUNTS}
    return {**first, **counts, "line_reasons": json.dumps(reasons, sort_keys=True) if reasons else None}


def hashes_of(attempt: Attempt, deliveries: Collection[Delivery]) -> dict[str, str]:
    """Object key -> sha256 of its stored bytes, for readable objects within the size limit."""
    runtime = attempt.runtime
    readable = [one for one in deliveries if one.size_bytes <= runtime.settings.max_object_bytes]
    tasks = shares(sorted(readable), runtime.tasks.parallelism * READS_PER_CORE, is_divided=False) if readable else []
    read_bytes = sum(one.size_bytes for one in readable)
    found = runtime.tasks.run(partial(hashed_objects, runtime.landing), tasks, read_bytes=read_bytes)
    return {key: sha256 for hashes in found for key, sha256 in hashes.items()}


def _require_unmoved(found: Mapping[str, Summary]) -> None:
    moved = sorted(key for key, row in found.items() if row["error"] in (MOVED, NOT_READABLE))
    if moved:
        raise ReadTwiceError(moved[0], "changed while it was read", "The load lists and reads it again")


def _require_readable(attempt: Attempt, found: Mapping[str, Summary]) -> None:
    unread = {key: row["error_detail"] for key, row in sorted(found.items()) if row["error"] == NOT_READABLE}
    if unread and len(unread) == len(found):
        # Other objects show whether only this one is refused, or landing as a whole.
        listed = [delivery for plan in attempt.batches.values() for delivery in plan.listed.values()]
        if not any(attempt.runtime.landing.is_readable(witness) for witness in witnesses(listed, unread)):
            (key, reason), *more = unread.items()
            among = f", and so are all of {len(more) + 1} objects" if more else ", and no other object can be read"
            raise LandingAccessError(key, f"{reason}{among}", _ACCESS_HINT)


def witnesses(listed: Iterable[Delivery], unread: Collection[str]) -> list[Delivery]:
    """The smallest other object of each source and project, since rights and keys are often a project's."""
    smallest: dict[tuple[Source, str], Delivery] = {}
    for delivery in sorted(listed, key=lambda delivery: (delivery.size_bytes, delivery.key)):
        if delivery.size_bytes and delivery.key not in unread:
            smallest.setdefault((delivery.batch.source, delivery.batch.project_id), delivery)
    return list(smallest.values())
