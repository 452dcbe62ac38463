"""Notices: messages to people and other systems about published days."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, Self

from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.records import BatchRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Verdict

MOST_DELIVERIES = 20
"""One notice names at most this many object keys of each kind."""
SEND_NOW, SEND_AGAIN = "tidemark notify", "tidemark notify --again"
"""The commands that send waiting notices, and notices that receivers refused for good."""
_LONGEST_REASON = 300
_ID_LENGTH = 32


class NoticeKind(StrEnum):
    """What happened."""

    CHANGE = "change"
    """The published content of a final day changed."""
    REFUSAL = "refusal"
    """A day was refused: a check failed, and the table keeps the old state."""
    REFUSAL_END = "refusal_end"
    """A refused day was published, or its published content matches its inputs again."""
    GOLDEN_MISMATCH = "golden_mismatch"
    """The published day does not agree with the totals of an outside system."""
    GOLDEN_AGREEMENT = "golden_agreement"
    """The day agrees with its totals again, or no total covers it any more."""


_BEGUN = {NoticeKind.REFUSAL: "refused", NoticeKind.GOLDEN_MISMATCH: "differs from golden totals"}
"""Kinds that open an incident, which a notice of another kind ends."""


@dataclass(frozen=True)
class MeasureChange:
    """One measure of a slice before and after a publication; None = not measured."""

    before: float | None
    after: float | None


@dataclass(frozen=True)
class Arrivals:
    """Deliveries and exclusions since a slice was last published, on the arrival days that hold its rows."""

    delivered: tuple[str, ...] = ()
    """Keys of the first delivered objects."""
    excluded: tuple[str, ...] = ()
    """Keys of the first objects that an operator excluded, or included again."""
    deliveries: int = 0
    exclusions: int = 0
    """Their full numbers."""

    @classmethod
    def of(cls, delivered: Sequence[str], excluded: Sequence[str]) -> Self:
        """As many keys as a notice names, with the full numbers."""
        return cls(tuple(delivered[:MOST_DELIVERIES]), tuple(excluded[:MOST_DELIVERIES]), len(delivered), len(excluded))


@dataclass(frozen=True)
class Notice:
    """One message to receivers; they recognize a repetition by its id."""

    id: str
    kind: NoticeKind
    table: str
    key: Slice
    at: str
    """When readers first saw the change, or when the day was judged: ISO text, UTC."""
    run_id: str | None
    """The run that published or judged; None where no Tidemark run did."""
    measures: Mapping[str, MeasureChange] = field(default_factory=dict)
    cause: str | None = None
    """Of a change: the cause of the publication."""
    reason: str | None = None
    """Why a day was refused; for a change or an end, why an operator accepted it."""
    hint: str | None = None
    """Of a refusal or a mismatch: what the operator can do."""
    snapshot_id: int | None = None
    """Of a change: the snapshot that published it."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """Of a change: deliveries and exclusions since the slice was last published."""
    refusal_id: str | None = None
    """Of an end: the notice of the refusal or mismatch; None where that one predates notices."""
    verdict: str | None = None
    """Of an end: the day's verdict now."""

    def to_json(self) -> dict[str, Any]:
        """The JSON that receivers get and the ledger keeps."""
        common = {
            "id": self.id,
            "kind": self.kind.value,
            "table": self.table,
            "day": self.key.event_date.isoformat(),
            "project": self.key.project_id,
            "at": self.at,
            "run": self.run_id,
        }
        if self.kind is NoticeKind.CHANGE:
            arrivals = self.arrivals
            return common | {
                "measures": {name: {"before": m.before, "after": m.after} for name, m in self.measures.items()},
                "cause": self.cause,
                "accepted_reason": self.reason,
                # As text, because snapshot ids exceed the integers that JSON readers hold exactly.
                "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
                "deliveries": list(arrivals.delivered),
                "deliveries_total": arrivals.deliveries,
                "exclusions": list(arrivals.excluded),
                "exclusions_total": arrivals.exclusions,
            }
        if self.kind in _BEGUN:
            return common | {"reason": self.reason, "fix": self.hint}
        if self.kind is NoticeKind.GOLDEN_AGREEMENT:
            return common | {"mismatch": self.refusal_id}
        return common | {"refusal": self.refusal_id, "verdict": self.verdict, "accepted_reason": self.reason}

    @property
    def text(self) -> str:
        """One line for people."""
        place = f"{self.table} {self.key}"
        if self.kind is NoticeKind.CHANGE:
            because = "; ".join(shown(text, _LONGEST_REASON) for text in (self.cause, self.reason) if text)
            return f"{place} changed: {measures_text(self.measures)} ({because})"
        if self.kind in _BEGUN:
            return f"{place} {_BEGUN[self.kind]}: {shown(self.reason or '', _LONGEST_REASON)}"
        if self.kind is NoticeKind.GOLDEN_AGREEMENT:
            return f"{place} differs from no golden total any more"
        accepted = f": {shown(self.reason, _LONGEST_REASON)}" if self.reason else ""
        return f"{place} is no longer refused, it is {self.verdict}{accepted}"


def notice_from_json(body: Mapping[str, Any]) -> Notice:
    """The inverse of `to_json`."""
    snapshot = body.get("snapshot_id")
    arrivals = Arrivals(
        tuple(body.get("deliveries", ())),
        tuple(body.get("exclusions", ())),
        body.get("deliveries_total", 0),
        body.get("exclusions_total", 0),
    )
    return Notice(
        id=body["id"],
        kind=NoticeKind(body["kind"]),
        table=body["table"],
        key=Slice(date.fromisoformat(body["day"]), body["project"]),
        at=body["at"],
        run_id=body["run"],
        measures={name: MeasureChange(m["before"], m["after"]) for name, m in body.get("measures", {}).items()},
        cause=body.get("cause"),
        reason=body.get("reason", body.get("accepted_reason")),
        hint=body.get("fix"),
        snapshot_id=None if snapshot is None else int(snapshot),
        arrivals=arrivals,
        refusal_id=body.get("refusal", body.get("mismatch")),
        verdict=body.get("verdict"),
    )


def measures_text(measures: Mapping[str, MeasureChange]) -> str:
    """`rows 120 → 121, revenue 10.5 → 12`: the measures that differ, or all of them where none does."""
    differing = {name: change for name, change in measures.items() if change.before != change.after}
    parts = [f"{name} {_number(m.before)} → {_number(m.after)}" for name, m in (differing or measures).items()]
    return ", ".join(parts) + ("" if differing else ", other content")


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Standing:
    """The state of a slice before a publication, or of a day before it was judged."""

    is_final: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    is_refused: bool = False
    reason: str | None = None
    """The reason of its refusal."""


def change_id(record: PublicationRecord) -> str:
    """The id of the notice of a publication: the same for the same commit, whichever run writes it."""
    return identity_of(NoticeKind.CHANGE, record.table, record.key, record.snapshot_id, record.parent_id)


def change_notice(
    record: PublicationRecord,
    figures: Mapping[str, float],
    figures_before: Mapping[str, float],
    measures: Sequence[str],
    arrivals: Arrivals,
    at: str = "",
) -> Notice:
    """The notice of a publication that changed a final slice.

    `figures`, `figures_before`: of the published and the replaced content; `measures`: the figures that readers of the table
    know; `at`: the publication's time where its record has none.
    """
    before = {**figures_before, "rows": record.digest_before.rows}
    after = {**figures, "rows": record.digest_after.rows}
    known = [name for name in measures if name in before or name in after]
    return Notice(
        change_id(record),
        NoticeKind.CHANGE,
        record.table,
        record.key,
        record.published_at or at,
        record.run_id,
        measures={name: MeasureChange(before.get(name), after.get(name)) for name in known},
        cause=record.cause.text,
        reason=record.accepted_reason,
        snapshot_id=record.snapshot_id,
        arrivals=arrivals,
    )


def refusal_notice(
    place: tuple[str, Slice],
    record: SliceRecord | BatchRecord,
    before: Standing,
    last: Notice | None,
    inputs: str,
    at: str,
    run_id: str | None,
) -> Notice | None:
    """The notice of a new refusal of a day, or of the end of one; None for everything else.

    `record`: a load's verdict on it; `before`: the day before that; `last`: its latest notice of a refusal or of an end;
    `inputs`: what the verdict is based on, as text. A refusal with the same reason is not new, whatever else arrives; a day
    that waits or is held has not recovered.
    """
    if last is None:
        is_open, open_reason = before.is_refused, before.reason
    else:
        is_open, open_reason = last.kind is NoticeKind.REFUSAL, last.reason
    previous = last.id if last is not None else None
    is_refused = record.verdict in (Verdict.REFUSED, BatchVerdict.REFUSED)
    if is_refused and not (is_open and open_reason == record.reason):
        kind = NoticeKind.REFUSAL
        identity = identity_of(kind, *place, record.reason or "", inputs, previous or "")
        return Notice(identity, kind, *place, at, run_id, reason=record.reason, hint=record.hint)
    if is_open and record.verdict in (Verdict.PUBLISHED, Verdict.UNCHANGED, BatchVerdict.ACCEPTED):
        kind = NoticeKind.REFUSAL_END
        identity = identity_of(kind, *place, previous or open_reason or "")
        accepted, verdict = _accepted(record), record.verdict.value
        return Notice(identity, kind, *place, at, run_id, reason=accepted, refusal_id=previous, verdict=verdict)
    return None


def _accepted(record: SliceRecord | BatchRecord) -> str | None:
    """Why an operator accepted a day."""
    if isinstance(record, SliceRecord):
        return next((one.reason for one in record.evaluations if one.is_accepted_change), None)
    return next((one.reason for one in record.evaluations if one.is_passed), None) if record.is_decided else None


def identity_of(*parts: object) -> str:
    """A stable id made from these parts: a prefix of their SHA-256."""
    return hashlib.sha256(json.dumps([*map(str, parts)]).encode()).hexdigest()[:_ID_LENGTH]
