"""Which notice a comparison with golden totals causes: a new mismatch, or the end of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.golden import Agreement, GoldenComparison
from pipeline_assets.domain.notices import Notice, NoticeKind, identity_of
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice

_MOST_TOLD = 5
_HINT = "`tidemark reconcile --repair` proposes what closes it"


@dataclass(frozen=True)
class GoldenResult:
    """The result of comparing all golden totals of one day of a table."""

    table: str
    key: Slice
    mismatch: str | None
    """The measures that do not agree, with both numbers; None where all agree."""


@dataclass(frozen=True)
class GoldenStanding:
    """The recorded result for a day of a table, and its latest notice."""

    mismatch: str | None = None
    notice_id: str | None = None


def golden_results(
    comparisons: Iterable[GoldenComparison], settings: Settings, now: datetime
) -> Iterator[GoldenResult]:
    """One result for each day of a table that has totals.

    A day that is not loaded yet gets none before its deadline: its totals may arrive before its exports.
    """
    found: dict[tuple[str, Slice], list[GoldenComparison]] = {}
    for one in comparisons:
        is_early = one.agreement is Agreement.NOT_LOADED and now <= deadline(one.total.key.event_date, settings)
        if not is_early:
            found.setdefault((one.total.measure.table, one.total.key), []).append(one)
    for (table, key), of_day in sorted(found.items()):
        bad = [f"{one} by {one.total.origin}" for one in of_day if not one.is_good]
        yield GoldenResult(table, key, few(bad, _MOST_TOLD) or None)


def golden_notice(result: GoldenResult, before: GoldenStanding, at: str, run_id: str | None) -> Notice | None:
    """The notice of a new or changed mismatch, or of the end of one; None where nothing changed."""
    if result.mismatch == before.mismatch:
        return None
    kind = NoticeKind.GOLDEN_AGREEMENT if result.mismatch is None else NoticeKind.GOLDEN_MISMATCH
    identity = identity_of(kind, result.table, result.key, result.mismatch or "", before.notice_id or "")
    if result.mismatch is None:
        return Notice(identity, kind, result.table, result.key, at, run_id, refusal_id=before.notice_id)
    return Notice(identity, kind, result.table, result.key, at, run_id, reason=result.mismatch, hint=_HINT)
