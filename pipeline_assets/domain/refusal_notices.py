"""Which notice a load's verdict on a day causes: a new refusal, or the end of one."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_assets.domain.notices import Notice, NoticeKind, Standing, identity_of
from pipeline_assets.domain.slices import Slice


@dataclass(frozen=True)
class Judged:
    """A load's verdict on a slice of a derived table, or on the deliveries of an arrival day."""

    table: str
    key: Slice
    verdict: str
    is_refused: bool
    is_good: bool
    reason: str | None = None
    hint: str | None = None
    inputs: str = ""
    """The inputs that the verdict is based on, as text."""
    accepted_reason: str | None = None
    """Why an operator accepted it."""


def refusal_notice(
    judged: Judged, standing: Standing, last: Notice | None, at: str, run_id: str | None
) -> Notice | None:
    """The notice of a new refusal, or of the end of one; None for everything else.

    `standing`: the day before it was judged. `last`: the latest notice of a refusal, or of its end, for this day. A refusal
    with the same reason is not new, whatever else arrives; a day that waits or is held has not recovered.
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
