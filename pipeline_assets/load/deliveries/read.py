"""Read the objects that changed: into rows, or into files of raw; and what reading found of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Observation, Row

from pipeline_assets.domain.deliveries import NOT_READABLE, Delivery
from pipeline_assets.domain.errors import LakehouseError, LandingAccessError, ReadTwiceError
from pipeline_assets.domain.records import THIS_LOAD, DeliveryRecord
from pipeline_assets.domain.skew import READS_PER_CORE, StepSkew, Unit, null_share, share_of, sizes_of
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.deliveries.attempt import Attempt
from pipeline_assets.load.deliveries.plan import Plan
from pipeline_assets.tables.refined_events import event_hashes
from pipeline_assets.transforms.object_text import MOVED
from pipeline_assets.transforms.parse import SUMMARY_COUNTS, ObjectWork, parse_objects
from pipeline_assets.transforms.parsed_batches import object_summary_list
from pipeline_assets.transforms.spread import Share, distribute, placed, shares, weights
from pipeline_assets.transforms.write_objects import write_objects
from resources.spark.tasks import naming_what_workers_met

_STEP = "read"
_SEND_ID = EXPORT_FORMAT.identity.send_id
_ACCESS_HINT = "Check TIDEMARK_LANDING_URL and credentials, and the rights to read what is listed"

Summary: TypeAlias = dict[str, Any]
"""Column of `object_summaries` -> value."""


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


@dataclass(frozen=True)
class Reading:
    """Objects being read: rows for one job, and what that job found of each object as it went along."""

    deliveries: Mapping[str, Delivery]
    rows: DataFrame
    """`parse_objects`; evaluated by the one action that consumes it."""
    _observed: Observation

    def summaries(self) -> dict[str, Summary]:
        """Object key -> its summary; after the action. A task that was tried again tells of its objects twice."""
        return _by_key(self.deliveries, {row["object_key"]: row.asDict() for row in self._observed.get["objects"]})


@dataclass
class Writing:
    """Objects being read into files of raw, which no snapshot names yet."""

    deliveries: Mapping[str, Delivery]
    _attempt: Attempt
    _tasks: Sequence[Sequence[Share]]
    _rows: DataFrame
    """`write_objects`."""
    _found: Sequence[Row] = ()

    def run(self) -> list[str]:
        """Read the objects and write their rows; the files, as `data_file` describes them."""
        runtime, table = self._attempt.runtime, self._attempt.table.key
        runtime.skew.forecast(_skew(table, list(self.deliveries.values()), self._tasks), runtime)
        with naming_what_workers_met():
            self._found = self._rows.collect()
        tasks = [row for row in self._found if row["task_rows"] is not None]
        done = [(row["task_rows"], row["task_bytes"]) for row in tasks]
        without = sum(row["task_rows_without_id"] for row in tasks)
        ids = null_share(_SEND_ID, without, sum(rows for rows, _ in done))
        runtime.skew.measured(table, _STEP, done, runtime, ids)
        return [row["file"] for row in self._found if row["file"] is not None]

    def summaries(self) -> dict[str, Summary]:
        """Object key -> its summary; after `run`."""
        parts: dict[str, list[Summary]] = {}
        for row in self._found:
            if row["object_key"] is not None:
                parts.setdefault(row["object_key"], []).append(row.asDict())
        expected = Counter(share.delivery.key for task in self._tasks for share in task)
        return _by_key(self.deliveries, {key: joined(of) for key, of in parts.items() if len(of) == expected[key]})


def _skew(table: str, deliveries: Sequence[Delivery], tasks: Sequence[Sequence[Share]]) -> StepSkew:
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
    whole = weights(shares(deliveries, len(tasks)))
    # Tasks that have no object to read while another reads a large one.
    idle = [0.0] * (len(tasks) - len(whole))
    return StepSkew(table, _STEP, Unit.BYTES, tuple(keys), sizes_of([*whole, *idle]), sizes_of(weights(tasks)))


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


def _by_key(deliveries: Mapping[str, Delivery], by_key: dict[str, Summary]) -> dict[str, Summary]:
    unread = deliveries.keys() - by_key.keys()
    if unread:
        raise LakehouseError(min(unread), "was not accounted for by the parser", "This is a defect: report it")
    return by_key


def read_objects(
    attempt: Attempt,
    deliveries: Collection[Delivery],
    *,
    known_bytes: Mapping[str, str] | None = None,
    only_refused: bool = False,
) -> Reading:
    """Nothing is read before the rows are consumed; `only_refused` leaves out the rows of good lines."""
    settings = attempt.runtime.settings
    observed = Observation()
    parsed = parse_objects(
        distribute(attempt.runtime.spark, sorted(deliveries), _parallelism(attempt), known_bytes or {}),
        attempt.runtime.landing,
        max_object_bytes=settings.max_object_bytes,
        max_line_bytes=settings.max_line_bytes,
        only_refused=only_refused,
    )
    rows = parsed.observe(observed, object_summary_list().alias("objects"))
    return Reading({delivery.key: delivery for delivery in deliveries}, rows, observed)


def write_files(attempt: Attempt, deliveries: Collection[Delivery]) -> Writing:
    """Read objects into files of the attempt's table; nothing is read before it is asked to run."""
    runtime, settings, table = attempt.runtime, attempt.runtime.settings, attempt.table
    work = ObjectWork(runtime.landing, settings.max_object_bytes, settings.max_line_bytes)
    files = runtime.lakehouse.files
    tasks = shares(sorted(deliveries), _parallelism(attempt), settings.split_object_bytes)
    objects = placed(runtime.spark, tasks, {})
    rows = write_objects(objects, work, event_hashes(), files.layout(table, is_ordered=True), files.store(table))
    return Writing({delivery.key: delivery for delivery in deliveries}, attempt, tasks, rows)


def _parallelism(attempt: Attempt) -> int:
    return attempt.runtime.spark.sparkContext.defaultParallelism * READS_PER_CORE


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
    for key, row in rows.items():
        delivery = writing.deliveries[key]
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


def require_unmoved(reading: Reading | Writing) -> None:
    """Objects that are read once more must be what they were the first time; raises ReadTwiceError."""
    moved = sorted(key for key, row in reading.summaries().items() if row["error"] in (MOVED, NOT_READABLE))
    if moved:
        raise ReadTwiceError(moved[0], "changed while it was read", "The load lists and reads it again")
