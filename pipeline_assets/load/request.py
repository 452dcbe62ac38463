"""The request of a load, and the reports that it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict

if TYPE_CHECKING:
    from pipeline_assets.tables.kinds import TableKind


@dataclass(frozen=True)
class LoadRequest:
    """One run of the load path."""

    days: tuple[date, ...]
    """Requested days, ascending and without gaps."""
    projects: tuple[str, ...]
    tables: frozenset[str]
    """Keys of the selected tables."""
    run_id: str
    now: datetime
    """Timezone-aware; deadlines are compared with it."""
    accepted: Acceptances = field(default_factory=Acceptances)
    """Changes and losses that an operator accepts."""
    is_read_again: bool = False
    """Whether slices of which a data file is gone are brought back: raw from landing, others from their inputs."""

    @property
    def first_day(self) -> date:
        """First requested day."""
        return self.days[0]

    @property
    def last_day(self) -> date:
        """Last requested day."""
        return self.days[-1]

    @property
    def slices(self) -> frozenset[Slice]:
        """The requested days of each project."""
        return frozenset(Slice(day, project) for day in self.days for project in self.projects)

    def slices_of(self, kind: TableKind) -> frozenset[Slice]:
        """The slices of tables of this kind under which the requested days are filed."""
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
    """The same refusal, wait or hold as in an earlier run over the same inputs; it does not fail the run again."""
    is_early: bool = False
    """It waits for deliveries whose deadline lies ahead. Nothing is wrong: the run does not fail and checks only warn."""
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
    """Slices that were computed, published or not."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """Key of each upstream table -> the snapshot from which the slices were computed."""


def merged(former: TableReport | None, later: TableReport, accepted: Collection[Slice]) -> TableReport:
    """Merge the reports of two passes over a table; `accepted`: slices that the load publishes, from either pass.

    The later pass sees the former pass's acceptances as unchanged and its refusals as repeats; the merged report shows both
    as results of this run.
    """
    if former is None:
        return later
    told = {outcome.key: outcome for outcome in former.outcomes}
    outcomes = []
    for outcome in later.outcomes:
        before = told.pop(outcome.key, None)
        is_settled = outcome.key in accepted and outcome.verdict is Verdict.UNCHANGED
        if before is not None and before.verdict is Verdict.PUBLISHED and is_settled:
            outcomes.append(before)
        elif before is not None and before.verdict is outcome.verdict and not before.is_repeat:
            outcomes.append(replace(outcome, is_repeat=False))
        else:
            outcomes.append(outcome)
    # Days that were not requested and that the later pass did not report.
    outcomes += [before for key, before in told.items() if key in accepted or before.verdict is Verdict.REFUSED]
    return replace(
        later,
        outcomes=tuple(sorted(outcomes, key=lambda outcome: (not outcome.is_requested, outcome.key))),
        seconds=former.seconds + later.seconds,
        built=tuple(sorted({*former.built, *later.built})),
    )
