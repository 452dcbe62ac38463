"""Read the objects that changed, and judge each batch by what was found.

Contains: reading objects within one job, and the verdict on a batch.
Add here: what a batch is judged by.
Does not contain: the bounds themselves (domain/checks.py) and publishing (publish.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, Row

from pipeline_assets.domain.checks import BatchFigures, Evaluation, reconcile_batch
from pipeline_assets.domain.deliveries import NOT_READABLE, Delivery
from pipeline_assets.domain.errors import LakehouseError, LandingAccessError, PublishConflictError, error_in
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.step import RawStep
from pipeline_assets.tables.refined_events import event_hashes
from pipeline_assets.transforms.parse import (
    MOVED,
    SAME_BYTES,
    ObjectWork,
    object_summaries,
    object_summary_list,
    parse_objects,
)
from pipeline_assets.transforms.spread import distribute
from pipeline_assets.transforms.write_objects import write_objects
from resources.ledger.records import EXCLUDED, MISSING, DeliveryRecord

_TASKS_PER_CORE = 3
_ACCESS_CURE = "Check TIDEMARK_LANDING_URL and credentials, and the rights to read what is listed"


@dataclass
class Reading:
    """Objects being read: rows for one job, and what that job found of each object as it went along."""

    deliveries: Mapping[str, Delivery]
    rows: DataFrame
    """`parse_objects`; evaluated by the one action that consumes it."""
    _observed: Observation

    def summaries(self) -> dict[str, Row]:
        """Object key -> its summary; after the action. A task that was tried again tells of its objects twice."""
        return _by_key(self.deliveries, self._observed.get["objects"])


@dataclass
class Writing:
    """Objects being read into files of raw, which no snapshot names yet."""

    deliveries: Mapping[str, Delivery]
    _rows: DataFrame
    """`write_objects`."""
    _found: Sequence[Row] = ()

    def run(self) -> list[str]:
        """Read the objects and write their rows; the files, as `data_file` describes them."""
        with naming_what_workers_met():
            self._found = self._rows.collect()
        return [row["file"] for row in self._found if row["file"] is not None]

    def summaries(self) -> dict[str, Row]:
        """Object key -> its summary; after `run`."""
        return _by_key(self.deliveries, [row for row in self._found if row["file"] is None])


def _by_key(deliveries: Mapping[str, Delivery], summaries: Iterable[Row]) -> dict[str, Row]:
    found = {row["object_key"]: row for row in summaries}
    unread = deliveries.keys() - found.keys()
    if unread:
        raise LakehouseError(min(unread), "was not accounted for by the parser", "This is a defect: report it")
    return found


def read_objects(
    step: RawStep,
    deliveries: Collection[Delivery],
    *,
    known_bytes: Mapping[str, str] | None = None,
    only_refused: bool = False,
) -> Reading:
    """Nothing is read before the rows are consumed; `only_refused` leaves out the rows of good lines."""
    settings = step.runtime.settings
    observed = Observation()
    parsed = parse_objects(
        _spread(step, deliveries, known_bytes or {}),
        step.runtime.landing,
        max_object_bytes=settings.max_object_bytes,
        max_line_bytes=settings.max_line_bytes,
        only_refused=only_refused,
    )
    rows = parsed.observe(observed, object_summary_list().alias("objects"))
    return Reading({delivery.key: delivery for delivery in deliveries}, rows, observed)


def write_files(step: RawStep, deliveries: Collection[Delivery]) -> Writing:
    """Read objects into files of the step's table; nothing is read before it is asked to run."""
    runtime, settings, table = step.runtime, step.runtime.settings, step.table
    work = ObjectWork(runtime.landing, settings.max_object_bytes, settings.max_line_bytes)
    files = runtime.lakehouse.files
    rows = write_objects(
        _spread(step, deliveries, {}), work, event_hashes(), files.layout(table, is_ordered=True), files.store(table)
    )
    return Writing({delivery.key: delivery for delivery in deliveries}, rows)


def _spread(step: RawStep, deliveries: Collection[Delivery], known_bytes: Mapping[str, str]) -> DataFrame:
    spark = step.runtime.spark
    return distribute(spark, sorted(deliveries), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE, known_bytes)


def skip_excluded(step: RawStep) -> None:
    """Excluded bytes that came again under another etag stay excluded, which is recorded of that version as well."""
    ruled_out = {
        delivery.key: (plan, delivery)
        for plan in step.work
        for delivery in plan.changed
        if delivery.key in plan.exclusions
    }
    bytes_of = {
        key: {one.sha256: one for one in plan.exclusions[key] if one.sha256 is not None}
        for key, (plan, _) in ruled_out.items()
    }
    doubtful = [delivery for key, (_, delivery) in ruled_out.items() if bytes_of[key]]
    if not doubtful:
        return
    with naming_what_workers_met():
        found = object_summaries(read_objects(step, doubtful, only_refused=True).rows).collect()
    again = []
    for row in found:
        plan, delivery = ruled_out[row["object_key"]]
        known = bytes_of[delivery.key].get(row["sha256"])
        if known is not None and row["error"] != MOVED:
            again.append(replace(known, etag=delivery.etag))
            plan.rule_out(again[-1])
    step.runtime.ledger.interventions.exclude(again, step.request.run_id)
    if again:
        step.runtime.say(f"{step.table.key}: {len(again)} excluded objects came again with the same bytes")


def skip_touched(step: RawStep) -> None:
    """Objects with another etag that may hold the bytes already loaded are hashed, and need no parsing if they do."""
    known = {key: sha256 for plan in step.work for key, sha256 in plan.known_bytes.items()}
    recorded = {key: record for plan in step.work for key, record in plan.recorded.items()}
    doubtful = [
        delivery
        for plan in step.work
        for delivery in plan.changed
        if delivery.key in known and delivery.size_bytes == recorded[delivery.key].size_bytes
    ]
    if not doubtful:
        return
    reading = read_objects(step, doubtful, known_bytes=known, only_refused=True)
    with naming_what_workers_met():
        found = object_summaries(reading.rows).collect()
    for row in found:
        if row["error"] == SAME_BYTES:
            delivery = reading.deliveries[row["object_key"]]
            step.touched.add(delivery.key)
            step.summaries[delivery.key] = replace(
                recorded[delivery.key], etag=delivery.etag, size_bytes=delivery.size_bytes
            )
    if step.touched:
        step.runtime.say(f"{step.table.key}: {len(step.touched)} objects have the bytes already loaded; only hashed")


@contextmanager
def naming_what_workers_met() -> Iterator[None]:
    """What a worker meets comes back as the text of a foreign exception; raises it as the error it was."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        met = error_in(str(error))
        if met is None:
            raise
        raise met from error


def take_summaries(step: RawStep, reading: Writing) -> None:
    """What reading found of each object, for the verdict on its batch and for the ledger."""
    code = step.table.code_version(step.runtime.settings)
    step.unread = _unread(step, reading)
    for key, row in reading.summaries().items():
        delivery = reading.deliveries[key]
        step.summaries[key] = DeliveryRecord(
            batch=delivery.batch, object_key=key, etag=delivery.etag, size_bytes=delivery.size_bytes,
            sha256=row["sha256"], lines=row["lines"], rows=row["rows"], quarantined=row["quarantined"],
            blank=row["blank"], error=row["error"], is_accepted=False, code_version=code,
        )  # fmt: skip


def _unread(step: RawStep, reading: Writing) -> dict[str, str]:
    """Objects that could not be read, and why; raises LandingAccessError where nothing can be."""
    summaries = reading.summaries()
    unread = {key: row["error_detail"] for key, row in sorted(summaries.items()) if row["error"] == NOT_READABLE}
    if unread and len(unread) == len(summaries):
        # The last object that is wanted may be the one that is refused for good: others tell whether landing is.
        listed = [delivery for plan in step.plans.values() for delivery in plan.listed.values()]
        if not any(step.runtime.landing.is_readable(one) for one in witnesses(listed, unread)):
            (key, reason), *more = unread.items()
            among = f", and so are all of {len(more) + 1} objects" if more else ", and no other object can be read"
            raise LandingAccessError(key, f"{reason}{among}", _ACCESS_CURE)
    return unread


def witnesses(listed: Iterable[Delivery], unread: Collection[str]) -> list[Delivery]:
    """Whose reading tells a refused object from a refused connection: of each source and project the smallest other object.

    Rights and keys are often a project's, so that more of the same project would tell no more.
    """
    smallest: dict[tuple[Source, str], Delivery] = {}
    for one in sorted(listed, key=lambda one: (one.size_bytes, one.key)):
        # Of an empty object no byte can be asked for.
        if one.size_bytes and one.key not in unread:
            smallest.setdefault((one.batch.source, one.batch.project_id), one)
    return list(smallest.values())


def require_unmoved(reading: Reading | Writing) -> None:
    """Objects that are read once more must be what they were the first time; raises PublishConflictError."""
    moved = sorted(key for key, row in reading.summaries().items() if row["error"] in (MOVED, NOT_READABLE))
    if moved:
        raise PublishConflictError(moved[0], "changed while it was read", "The load lists and reads it again")


def judge(step: RawStep) -> None:
    """Give every batch its verdict."""
    for key, plan in step.plans.items():
        if plan.verdict is not None:
            step.verdicts[key] = plan.verdict
        elif plan.is_repeated_refusal and plan.prior is not None:
            step.verdicts[key] = (BatchVerdict.REFUSED, plan.prior.evaluations[0])
        else:
            step.verdicts[key] = _judge_parsed(step, plan)


def _judge_parsed(step: RawStep, plan: BatchPlan) -> tuple[BatchVerdict, Evaluation]:
    records = [step.summaries.get(key) or plan.recorded[key] for key in sorted(plan.listed)]
    evaluation = reconcile_batch(
        BatchFigures(
            objects=len(records),
            unreadable=tuple(f"{r.object_key}: {r.error}" for r in records if r.error and r.error != MOVED),
            lines=sum(r.lines for r in records),
            rows=sum(r.rows for r in records),
            quarantined=sum(r.quarantined for r in records),
            blank=sum(r.blank for r in records),
        ),
        step.runtime.settings,
    )
    unread = [f"{key}: {NOT_READABLE}, {why}" for key, why in sorted(step.unread.items()) if key in plan.listed]
    if unread:
        # Not a matter of bounds: nobody knows what is in it.
        reason = f"unreadable objects: {len(unread)}, first {unread[0]}"
        hint = "Restore the object, or the right to read it, or take it out of landing; every load tries again"
        return BatchVerdict.REFUSED, replace(evaluation, is_passed=False, reason=reason, hint=hint)
    moved = [r.object_key for r in records if r.error == MOVED]
    if moved:
        reason = f"objects changed while they were read: {len(moved)}, first {moved[0]}"
        return BatchVerdict.MOVED, Evaluation(
            evaluation.check, False, reason, "The next load reads them again", evaluation.figures
        )
    if evaluation.is_passed and plan.let_go and plan.accepted_reason is not None:
        figures = {**evaluation.figures, MISSING: len(plan.let_go)}
        reason = f"{len(plan.let_go)} withdrawn: {plan.accepted_reason}"
        evaluation = replace(evaluation, reason=reason, figures=figures)
    if evaluation.is_passed and plan.exclusion_reason is not None:
        figures = {**evaluation.figures, EXCLUDED: len(plan.excluded.keys() | plan.ruled_out)}
        reason = "; ".join(filter(None, (evaluation.reason, plan.exclusion_reason)))
        evaluation = replace(evaluation, reason=reason, figures=figures)
    return (BatchVerdict.ACCEPTED if evaluation.is_passed else BatchVerdict.REFUSED), evaluation
