"""One attempt at accepting a source's deliveries; reads the objects that changed into files; what reading found of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import NOT_READABLE, BatchKey, Delivery
from pipeline_assets.domain.errors import LakehouseError, LandingAccessError, ReadTwiceError
from pipeline_assets.domain.records import THIS_LOAD, DeliveryRecord
from pipeline_assets.domain.skew import READS_PER_CORE, StepSkew, share_of
from pipeline_assets.domain.slices import Digest, Slice, Source
from pipeline_assets.load.deliveries.plan import Plan
from pipeline_assets.load.draft import LoadRuntime
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.tables.raw_events import QUARANTINE
from pipeline_assets.tables.refined_events import event_hashes
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms import write_objects
from pipeline_assets.transforms.object_text import MOVED, SUMMARY_COUNTS, Share, Summary, hashed_objects, shares
from pipeline_assets.transforms.parse import ObjectWork
from pipeline_assets.transforms.write_objects import Written


@dataclass(frozen=True)
class Losses:
    """Slices of a raw table that cannot be read, or whose day in quarantine cannot; lost ones are empty in the attempt's base."""

    found: Mapping[Slice, Evaluation] = field(default_factory=dict)
    """Slice -> its refusal, which names a data file that is gone."""
    before: frozenset[Slice] = frozenset()
    """Those of them that an earlier run found, too."""
    of_lines: frozenset[Slice] = frozenset()
    """Those of which quarantine lost the refused lines."""
    holding: Mapping[Slice, Set[BatchKey]] = field(default_factory=dict)
    """Slice -> the batches that brought rows or refused lines of it."""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a load; another follows where objects moved."""

    runtime: LoadRuntime
    request: LoadRequest
    source: Source
    table: Table
    base_id: int
    """Snapshot of the table that everything is staged on."""
    name: str
    """Of branches and files; each attempt has another."""
    started_at: float
    """By the monotonic clock, seconds: of the first attempt."""
    may_list_again: bool = False
    """Whether batches that moved are tried once more in this run."""
    losses: Losses = field(default_factory=Losses)
    published_before: Mapping[Slice, Digest] = field(default_factory=dict)
    """What former attempts of this load accepted."""


_STEP = "read"
_ACCESS_HINT = "Check TIDEMARK_LANDING_URL and credentials, and the rights to read what is listed"


@dataclass(frozen=True)
class ReadResult:
    """What reading found of the objects of a plan."""

    plan: Plan
    summaries: Mapping[str, DeliveryRecord]
    """Object key -> what reading it found; of a touched object what was known of its bytes."""
    details: Mapping[str, str]
    """Object that is not read -> what was found instead of an export, or why nothing could be."""

    @property
    def unread(self) -> list[str]:
        """Objects of which nothing could be read, sorted."""
        return sorted(key for key in self.details if self.summaries[key].error == NOT_READABLE)


@dataclass
class Writing:
    """Objects that tasks read into files, which no snapshot names yet."""

    deliveries: Collection[Delivery]
    _runtime: Runtime
    _function: Callable[[Sequence[Share]], Written]
    _tasks: Sequence[Sequence[Share]]
    _found: Sequence[Written] = ()

    def run(self) -> list[str]:
        """Read the objects and write what is wanted of them; the files, as `data_file` describes them."""
        self._found = self._runtime.tasks.run(self._function, self._tasks, read_bytes=0)
        return [file for written in self._found for file in written.files]

    def summaries(self) -> dict[str, Summary]:
        """Object key -> its summary; after `run`."""
        parts: dict[str, list[Summary]] = {}
        for summary in (summary for written in self._found for summary in written.summaries):
            parts.setdefault(summary["object_key"], []).append(summary)
        expected = Counter(share.delivery.key for task in self._tasks for share in task)
        if unread := {key for key, count in expected.items() if len(parts.get(key, ())) != count}:
            raise LakehouseError(min(unread), "was not accounted for by the parser", "This is a defect: report it")
        return {key: joined(of) for key, of in parts.items()}

    def require_unmoved(self) -> None:
        """Objects that are read once more must be what they were the first time; raises ReadTwiceError."""
        moved = sorted(key for key, row in self.summaries().items() if row["error"] in (MOVED, NOT_READABLE))
        if moved:
            raise ReadTwiceError(moved[0], "changed while it was read", "The load lists and reads it again")


@dataclass
class WritingRaw(Writing):
    """The same for files of a raw table, whose skew is told."""

    table: str = ""

    def run(self) -> list[str]:
        """Read the objects and write their rows."""
        runtime = self._runtime
        runtime.skew.forecast(_skew(self.table, self.deliveries, self._tasks), runtime)
        files = super().run()
        runtime.skew.measured(self.table, _STEP, [written.rows for written in self._found], runtime)
        return files


def _skew(table: str, deliveries: Collection[Delivery], tasks: Sequence[Sequence[Share]]) -> StepSkew:
    """How the bytes that are about to be read lie on objects, projects, arrival days and tasks."""
    names: dict[str, Callable[[Delivery], str]] = {
        "object": lambda delivery: delivery.key,
        "project": lambda delivery: delivery.batch.project_id,
        "arrival day": lambda delivery: delivery.batch.arrival_date.isoformat(),
    }
    keys = [
        share_of(key, ((name_of(delivery), delivery.size_bytes) for delivery in deliveries))
        for key, name_of in names.items()
    ]
    sizes = tuple(sum(share.weight for share in task) for task in tasks)
    return StepSkew(table, _STEP, "bytes", tuple(keys), sizes)


def joined(parts: Sequence[Summary]) -> Summary:
    """The summary of an object from those of its parts; MOVED where they saw different versions of it.

    What is wrong with a whole object every part finds alike.
    """
    first = parts[0]
    if len({(part["error"], part["sha256"]) for part in parts}) > 1:
        detail = "was read in parts, which saw different versions of it"
        return {
            **first,
            **dict.fromkeys(SUMMARY_COUNTS, 0),
            "sha256": None,
            "line_reasons": None,
            "error": MOVED,
            "error_detail": detail,
        }
    reasons = sum((Counter(json.loads(part["line_reasons"] or "{}")) for part in parts), Counter[str]())
    counts = {name: sum(part[name] for part in parts) for name in SUMMARY_COUNTS}
    return {**first, **counts, "line_reasons": json.dumps(reasons, sort_keys=True) if reasons else None}


def write_rows(attempt: Attempt, deliveries: Collection[Delivery]) -> Writing:
    """Read objects into files of the attempt's table; nothing is read before it is asked to run."""
    runtime, table = attempt.runtime, attempt.table
    files = runtime.lakehouse.files
    layout = files.layout(table, is_ordered=True)
    function = partial(write_objects.write_rows, _work(runtime), event_hashes(), layout, files.store(table))
    tasks = _shares(runtime, deliveries, is_divided=True)
    return WritingRaw(deliveries, runtime, function, tasks, table=table.key)


def write_refused(attempt: Attempt, deliveries: Collection[Delivery], accepted: Collection[BatchKey]) -> Writing:
    """Read objects, and write their refused lines to files of raw.quarantine; `accepted`: batches whose good lines are loaded."""
    runtime = attempt.runtime
    files = runtime.lakehouse.files
    work = replace(_work(runtime), only_refused=True)
    layout = files.layout(QUARANTINE, is_ordered=False)
    function = partial(write_objects.write_refused, work, layout, files.store(QUARANTINE), accepted)
    return Writing(deliveries, runtime, function, _shares(runtime, deliveries))


def hashes_of(attempt: Attempt, deliveries: Collection[Delivery]) -> dict[str, str]:
    """Object key -> sha256 of its stored bytes; of objects that are readable, and are not too large to be read at all."""
    runtime = attempt.runtime
    readable = [one for one in deliveries if one.size_bytes <= runtime.settings.max_object_bytes]
    tasks = _shares(runtime, readable) if readable else []
    read_bytes = sum(one.size_bytes for one in readable)
    found = runtime.tasks.run(partial(hashed_objects, runtime.landing), tasks, read_bytes=read_bytes)
    return {key: sha256 for hashes in found for key, sha256 in hashes.items()}


def _work(runtime: Runtime) -> ObjectWork:
    return ObjectWork(runtime.landing, runtime.settings.max_object_bytes, runtime.settings.max_line_bytes)


def _shares(runtime: Runtime, deliveries: Collection[Delivery], *, is_divided: bool = False) -> list[list[Share]]:
    return shares(sorted(deliveries), runtime.tasks.parallelism * READS_PER_CORE, is_divided=is_divided)


def result_of(attempt: Attempt, plan: Plan, writing: Writing | None) -> ReadResult:
    """What a finished writing found, for the verdicts on batches and for the ledger; None where nothing had to be read.

    Raises LandingAccessError where no object of landing can be read.
    """
    if writing is None:
        return ReadResult(plan, plan.touched, {})
    code = attempt.table.code_version(attempt.runtime.settings)
    rows = writing.summaries()
    _require_readable(attempt, plan, rows)
    summaries = dict(plan.touched)
    for delivery in writing.deliveries:
        key, row = delivery.key, rows[delivery.key]
        known = plan.batches[delivery.batch].recorded.get(key)
        # Bytes of which no hash is on record may be the same ones.
        known = known if known is not None and known.sha256 in (None, row["sha256"]) else None
        summaries[key] = DeliveryRecord(
            batch=delivery.batch,
            object_key=key,
            etag=delivery.etag,
            size_bytes=delivery.size_bytes,
            sha256=row["sha256"],
            lines=row["lines"],
            rows=row["rows"],
            quarantined=row["quarantined"],
            blank=row["blank"],
            error=row["error"],
            is_accepted=False,
            code_version=code,
            line_reasons=tuple(json.loads(row["line_reasons"] or "{}").items()),
            recorded_at=known.recorded_at if known is not None else THIS_LOAD,
            run_id=known.run_id if known is not None else None,
        )
    return ReadResult(plan, summaries, {key: row["error_detail"] for key, row in rows.items() if row["error"]})


def _require_readable(attempt: Attempt, plan: Plan, summaries: Mapping[str, Summary]) -> None:
    """Raise LandingAccessError where no object can be read."""
    unread = {key: row["error_detail"] for key, row in sorted(summaries.items()) if row["error"] == NOT_READABLE}
    if unread and len(unread) == len(summaries):
        # The last object that is wanted may be the one that is refused for good: others tell whether landing is.
        listed = [delivery for batch in plan.batches.values() for delivery in batch.listed.values()]
        if not any(attempt.runtime.landing.is_readable(witness) for witness in witnesses(listed, unread)):
            (key, reason), *more = unread.items()
            among = f", and so are all of {len(more) + 1} objects" if more else ", and no other object can be read"
            raise LandingAccessError(key, f"{reason}{among}", _ACCESS_HINT)


def witnesses(listed: Iterable[Delivery], unread: Collection[str]) -> list[Delivery]:
    """Whose reading tells a refused object from a refused connection: of each source and project the smallest other object.

    Rights and keys are often a project's, so that more of the same project would tell no more.
    """
    smallest: dict[tuple[Source, str], Delivery] = {}
    for delivery in sorted(listed, key=lambda delivery: (delivery.size_bytes, delivery.key)):
        # Of an empty object no byte can be asked for.
        if delivery.size_bytes and delivery.key not in unread:
            smallest.setdefault((delivery.batch.source, delivery.batch.project_id), delivery)
    return list(smallest.values())
