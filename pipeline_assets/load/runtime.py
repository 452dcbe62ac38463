"""The request, resources, skew and reports of a load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.checks import Acceptances, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.machine import NewBytes
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.skew import StepSkew, ratio_of
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Verdict
from pipeline_assets.load.build.folds import SharedFolds
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from resources.ledger.store import Ledger
from resources.spark.tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline_assets.tables.table import TableKind
    from resources.iceberg.lakehouse import Lakehouse
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger


@dataclass
class SkewLog:
    """The heavy steps of one load; only the last attempt of each step is kept."""

    announce: Callable[[StepSkew], None] = lambda _: None
    steps: dict[tuple[str, str], StepSkew] = field(default_factory=dict)
    """(table, step) -> its skew, in the order in which they began."""

    def forecast(self, step: StepSkew, runtime: Runtime) -> None:
        """Log a step that is about to begin, if one task has far more work than the others."""
        self.steps[step.table, step.step] = step
        if step.warning is not None:
            runtime.log(f"{step.table}: warning: {step.warning}: docs/operations.md, One task takes most of a load")
        self.announce(step)

    def measured(self, table: str, step: str, rows: Sequence[int], runtime: Runtime) -> None:
        """Record the rows of each task beside the forecast."""
        done = self.steps[table, step] = replace(self.steps[table, step], measured=tuple(rows))
        if done.is_uneven:
            runtime.log(
                f"{table}: {step} done: {sum(rows):,.0f} rows in {len(rows)} tasks, "
                f"largest to median {ratio_of(rows):.1f}, forecast {ratio_of(done.forecast):.1f}"
            )


@dataclass(frozen=True)
class Runtime:
    """The resources of a step of the load."""

    lakehouse: Lakehouse
    ledger: Ledger
    landing: LandingStore
    settings: Settings
    log: Callable[[str], None] = lambda _: None
    """Writes a line of progress; lines are escaped and shortened, because names in them may come from data."""
    folds: SharedFolds = field(default_factory=SharedFolds, compare=False)
    skew: SkewLog = field(default_factory=SkewLog, compare=False)
    new_bytes: NewBytes = field(default_factory=NewBytes, compare=False)

    def __post_init__(self) -> None:
        """Make every line of the log plain text."""
        log = self.log
        object.__setattr__(self, "log", lambda text: log(shown(text)))

    @property
    def tasks(self) -> Tasks:
        """Runs the steps of the load; starts Spark on first use."""
        return Tasks(lambda: self.spark, self.settings, self.new_bytes)

    @property
    def spark(self) -> SparkSession:
        """The lakehouse's Spark session, started on first use."""
        return self.lakehouse.spark


@dataclass(frozen=True)
class LoadRequest:
    """One run of the load path."""

    days: tuple[date, ...]
    """Ascending."""
    projects: tuple[str, ...]
    tables: frozenset[str]
    run_id: str
    now: datetime
    accepted: Acceptances = field(default_factory=dict)
    is_read_again: bool = False
    """Whether slices with a lost data file are restored: raw from landing, others from their inputs."""

    def slices_of(self, kind: TableKind) -> frozenset[Slice]:
        """The slices of tables of this kind that hold the requested days."""
        projects = kind.projects(self.projects)
        return frozenset(Slice(kind.slice_day(day), project) for day in self.days for project in projects)

    @property
    def attempt(self) -> str:
        """The run's id as it occurs in branch names."""
        return self.run_id.replace("-", "")


@dataclass(frozen=True)
class Outcome:
    """The result of one slice in this run."""

    table: str
    key: Slice
    verdict: Verdict
    reason: str | None = None
    hint: str | None = None
    is_repeat: bool = False
    """The same refusal, wait or hold as before over the same inputs; it does not fail the run again."""
    is_early: bool = False
    """It waits for deliveries before their deadline: the run does not fail, and checks only warn."""
    is_requested: bool = True
    was_good: bool = True
    """Whether the verdict was good before; a day that recovers is reported even if it was not requested."""
    is_final: bool | None = None
    """Whether everything that may still change the day has arrived; None for raw days."""
    digest: Digest = EMPTY
    figures: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def fails_the_run(self) -> bool:
        """Whether it fails the run: any new refusal does; a new wait does only on a requested day past its deadline."""
        if self.is_repeat or self.is_early or self.verdict.is_good or self.verdict is Verdict.HELD:
            return False
        return self.verdict is Verdict.REFUSED or self.is_requested


@dataclass(frozen=True)
class TableReport:
    """All outcomes of one table, requested days first."""

    table: str
    outcomes: tuple[Outcome, ...]
    snapshot_id: int | None = None
    seconds: float = 0.0
    built: tuple[Slice, ...] = ()
    pins: Mapping[str, int] = field(default_factory=dict)


def merged(former: TableReport | None, later: TableReport, accepted: Collection[Slice]) -> TableReport:
    """Merge the reports of two passes over a table, with both passes' results; `accepted`: slices that the load publishes."""
    if former is None:
        return later
    told = {outcome.key: outcome for outcome in former.outcomes}
    outcomes = []
    for one in later.outcomes:
        before = told.pop(one.key, None)
        if before is not None and before.verdict is Verdict.PUBLISHED and one.verdict is Verdict.UNCHANGED:
            outcomes.append(before if one.key in accepted else one)
        elif before is not None and before.verdict is one.verdict and not before.is_repeat:
            outcomes.append(replace(one, is_repeat=False))
        else:
            outcomes.append(one)
    outcomes += [before for key, before in told.items() if key in accepted or before.verdict is Verdict.REFUSED]
    return replace(
        later,
        outcomes=tuple(sorted(outcomes, key=lambda outcome: (not outcome.is_requested, outcome.key))),
        seconds=former.seconds + later.seconds,
        built=tuple(sorted({*former.built, *later.built})),
    )


def early_slices(batches: Mapping[BatchKey, BatchRecord]) -> frozenset[Slice]:
    """Days without deliveries of either source before their deadline."""
    found: dict[Slice, list[BatchRecord]] = {}
    for key, batch in batches.items():
        found.setdefault(Slice(key.arrival_date, key.project_id), []).append(batch)
    return frozenset(
        key
        for key, here in found.items()
        if any(batch.verdict is BatchVerdict.WAITING for batch in here)
        and not any(batch.deliveries or batch.verdict is BatchVerdict.REFUSED for batch in here)
    )


DAY_VERDICTS = {
    BatchVerdict.ACCEPTED: Verdict.UNCHANGED,
    BatchVerdict.REFUSED: Verdict.REFUSED,
    BatchVerdict.WAITING: Verdict.WAITING,
    BatchVerdict.MOVED: Verdict.WAITING,
}


def outcome_of(record: SliceRecord, **changes: Any) -> Outcome:
    """The outcome in a slice's record."""
    is_refused = record.verdict is Verdict.REFUSED
    told = Outcome(
        record.table,
        record.key,
        record.verdict,
        record.reason,
        record.hint,
        is_final=record.is_final,
        digest=record.digest,
        figures={"rows": record.digest.rows, **record.figures},
        evaluations=record.refused_evaluations if is_refused else record.evaluations,
    )
    return replace(told, **changes)


def standing_outcomes(ledger: Ledger, table: str, projects: Sequence[str], days: Collection[date]) -> list[Outcome]:
    """The recorded outcomes of a table's slices on these days; the outcome of a raw day is that of its batch."""
    if not days:
        return []
    records = ledger.slices(table, projects, days)
    batches = ledger.batches(projects, min(days), max(days))
    if table not in SOURCE_OF_TABLE:
        early = early_slices(batches) if any(one.verdict is Verdict.WAITING for one in records.values()) else ()
        return [
            outcome_of(one, is_repeat=True, is_early=one.verdict is Verdict.WAITING and key in early)
            for key, one in records.items()
        ]
    found = []
    for batch_key, batch in batches.items():
        key = Slice(batch_key.arrival_date, batch_key.project_id)
        if batch_key.source is not SOURCE_OF_TABLE[table] or key.event_date not in days:
            continue
        record = records.get(key) or SliceRecord(table, key, Verdict.UNCHANGED)
        loss = record.loss
        told = loss or batch
        outcome = Outcome(
            table,
            key,
            Verdict.REFUSED if loss else DAY_VERDICTS[batch.verdict],
            told.reason,
            told.hint,
            is_repeat=True,
            is_early=not loss and batch.verdict is BatchVerdict.WAITING and not batch.hours_delivered,
            digest=record.digest,
            figures={"rows": record.digest.rows, **(batch.evaluations[0].figures if batch.evaluations else {})},
            evaluations=() if loss else batch.evaluations,
        )
        found.append(outcome)
    return found
