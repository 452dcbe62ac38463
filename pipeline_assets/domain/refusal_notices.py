"""Which notice follows from what a load made of a day: that it was refused, or is so no longer.

Contains: the rule over what was on record and told before.
Add here: another verdict that people are told.
Does not contain: the notice itself (notices.py), what was told before (resources/ledger/notices.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_assets.domain.notices import Notice, NoticeKind, Standing, identity_of
from pipeline_assets.domain.slices import Slice


@dataclass(frozen=True)
class Judged:
    """What a load made of a day: of a slice of a derived table, or of the deliveries of an arrival day."""

    table: str
    key: Slice
    verdict: str
    is_refused: bool
    is_good: bool
    reason: str | None = None
    hint: str | None = None
    inputs: str = ""
    """What it was judged on, as text."""
    accepted_reason: str | None = None
    """Why a person let it through."""


def refusal_notice(
    judged: Judged, standing: Standing, last: Notice | None, at: str, run_id: str | None
) -> Notice | None:
    """The notice of a refusal that is news, or of the end of one; None for everything else.

    `last`: the latest notice of a refusal, or of an end, of this day. A refusal for the same reason goes on, whatever
    arrives beside it; a day that waits or is held is not recovered.
    """
    if last is None:
        is_open, open_reason = standing.is_refused, standing.reason
    else:
        is_open, open_reason = last.kind is NoticeKind.REFUSAL, last.reason
    previous = last.id if last is not None else None
    if judged.is_refused and not (is_open and open_reason == judged.reason):
        identity = identity_of(
            NoticeKind.REFUSAL, judged.table, judged.key, judged.reason or "", judged.inputs, previous or ""
        )
        return Notice(
            identity, NoticeKind.REFUSAL, judged.table, judged.key, at, run_id, reason=judged.reason, hint=judged.hint
        )
    if judged.is_good and is_open:
        identity = identity_of(NoticeKind.REFUSAL_END, judged.table, judged.key, previous or open_reason or "")
        return Notice(
            identity,
            NoticeKind.REFUSAL_END,
            judged.table,
            judged.key,
            at,
            run_id,
            reason=judged.accepted_reason,
            refusal_id=previous,
            verdict=judged.verdict,
        )
    return None
