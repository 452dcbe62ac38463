"""What a load is asked to do and what it reports.

Contains: request, outcomes, reports.
Add here: a value that crosses the border to Dagster or the shell.
Does not contain: doing anything, what steps work with (runtime.py).
"""

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
    """Aware; deadlines are measured against it."""
    accepted: Acceptances = field(default_factory=Acceptances)
    """What a person lets through."""

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
        """The slices that the requested days are filed under in tables of a kind."""
        projects = kind.projects(self.projects)
        return frozenset(Slice(kind.slice_day(day), project) for day in self.days for project in projects)

    @property
    def attempt(self) -> str:
        """The run's part of branch names."""
        return self.run_id.replace("-", "")


@dataclass(frozen=True)
class Outcome:
    """What became of one slice in this run."""

    table: str
    key: Slice
    verdict: Verdict
    reason: str | None = None
    hint: str | None = None
    is_repeat: bool = False
    """The same refusal, wait or hold as in an earlier run over the same inputs: it fails no further run."""
    is_early: bool = False
    """It waits for deliveries whose deadline lies ahead: nothing is wrong, so it fails no run and its checks only warn."""
    is_requested: bool = True
    was_good: bool = True
    """Whether the day stood well before; one that recovers is told of even where nobody asked for it."""
    is_final: bool | None = None
    """Whether everything that may still change the day has arrived; None where that is not asked: raw days."""
    digest: Digest = EMPTY
    figures: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def fails_the_run(self) -> bool:
        """New refusals fail the run wherever they are, new waits only on requested days past their deadline."""
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
    """Slices that were computed, whatever became of them."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """Key of each upstream table -> the snapshot that they were computed from."""


def merged(former: TableReport | None, later: TableReport, accepted: Collection[Slice]) -> TableReport:
    """One report of two walks over a table; `accepted`: slices that are published, by either.

    The later walk finds in place what the former one accepted, and known what that refused: both are news of this run still.
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
    # Days that nobody asked for, and of which the later walk had nothing to tell.
    outcomes += [before for key, before in told.items() if key in accepted or before.verdict is Verdict.REFUSED]
    return replace(
        later,
        outcomes=tuple(sorted(outcomes, key=lambda outcome: (not outcome.is_requested, outcome.key))),
        seconds=former.seconds + later.seconds,
        built=tuple(sorted({*former.built, *later.built})),
    )
