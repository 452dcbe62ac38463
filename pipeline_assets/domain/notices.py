"""Notices: messages to operators and other systems about published days."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, Self, TypedDict

from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.records import BatchRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Verdict

Place = tuple[str, Slice]
"""Table and slice; for a raw table the slice holds the arrival day."""
Judged = SliceRecord | BatchRecord
MOST_DELIVERIES = 20
SEND_NOW, SEND_AGAIN = "tidemark notify", "tidemark notify --again"
"""Send waiting notices, and notices that receivers refused for good."""
_LONGEST_REASON = 300
_ID_LENGTH = 32


class NoticeKind(StrEnum):
    """Kinds of notices."""

    CHANGE = "change"
    REFUSAL = "refusal"
    REFUSAL_END = "refusal_end"
    """A refused day was published, or its published content matches its inputs again."""
    GOLDEN_MISMATCH = "golden_mismatch"
    GOLDEN_AGREEMENT = "golden_agreement"
    """The day agrees with its totals again, or no total covers it."""


_ARRIVALS = ("deliveries", "deliveries_total", "exclusions", "exclusions_total")
_FIELDS: Mapping[NoticeKind, Sequence[str]] = {
    NoticeKind.CHANGE: ("measures", "cause", "accepted_reason", "snapshot_id", *_ARRIVALS),
    NoticeKind.REFUSAL: ("reason", "fix"),
    NoticeKind.REFUSAL_END: ("refusal", "verdict", "accepted_reason"),
    NoticeKind.GOLDEN_MISMATCH: ("reason", "fix"),
    NoticeKind.GOLDEN_AGREEMENT: ("mismatch",),
}
_ATTRIBUTES = {"accepted_reason": "reason", "fix": "hint", "refusal": "refusal_id", "mismatch": "refusal_id"}
"""JSON field -> attribute of `Notice`, where they differ."""


class MeasureChange(TypedDict):
    """One measure of a slice before and after a publication; None = not measured."""

    before: float | None
    after: float | None


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
    measures: Mapping[str, MeasureChange] = field(default_factory=dict)
    cause: str | None = None
    reason: str | None = None
    """Why a day was refused; for a change or an end, why an operator accepted it."""
    hint: str | None = None
    snapshot_id: str | None = None
    """Of a change; text, because ids exceed the integers that JSON readers hold exactly."""
    deliveries: Sequence[str] = ()
    """Of a change: the first objects delivered since the last publication, on arrival days with its rows."""
    deliveries_total: int = 0
    exclusions: Sequence[str] = ()
    exclusions_total: int = 0
    refusal_id: str | None = None
    """Of an end: the notice of the refusal or mismatch; None if that has none."""
    verdict: str | None = None
    number: int = field(default=0, compare=False)
    """Position among all notices; the ledger assigns it."""
    recorded_by: str | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The JSON that receivers get and the ledger keeps."""
        place = place_json(self.table, self.key)
        common = {"id": self.id, "kind": self.kind.value, **place, "at": self.at, "run": self.run_id}
        return common | {name: getattr(self, _ATTRIBUTES.get(name, name)) for name in _FIELDS[self.kind]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], number: int = 0, recorded_by: str | None = None) -> Self:
        """The inverse of `to_json`, with the ledger's columns."""
        kind, key = NoticeKind(body["kind"]), Slice(date.fromisoformat(body["day"]), body["project"])
        own = {_ATTRIBUTES.get(name, name): body[name] for name in _FIELDS[kind] if name in body}
        common = body["id"], kind, body["table"], key, body["at"], body["run"]
        return cls(*common, number=number, recorded_by=recorded_by, **own)

    @property
    def text(self) -> str:
        """One line for operators."""
        reason = shown(self.reason or "", _LONGEST_REASON)
        because = "; ".join(filter(None, (shown(self.cause or "", _LONGEST_REASON), reason)))
        told = {
            NoticeKind.CHANGE: f"changed: {measures_text(self.measures)} ({because})",
            NoticeKind.REFUSAL: f"refused: {reason}",
            NoticeKind.REFUSAL_END: f"is no longer refused, it is {self.verdict}{reason and f': {reason}'}",
            NoticeKind.GOLDEN_MISMATCH: f"differs from golden totals: {reason}",
            NoticeKind.GOLDEN_AGREEMENT: "differs from no golden total any more",
        }
        return f"{self.table} {self.key} {told[self.kind]}"


def place_json(table: str, key: Slice) -> dict[str, str]:
    """A slice of a table in JSON."""
    return {"table": table, "day": key.event_date.isoformat(), "project": key.project_id}


def measures_text(measures: Mapping[str, MeasureChange]) -> str:
    """The measures that differ, or else all: `rows 120 → 121, revenue 10.5 → 12`."""
    differing = {name: change for name, change in measures.items() if change["before"] != change["after"]}
    parts = [f"{name} {_number(m['before'])} → {_number(m['after'])}" for name, m in (differing or measures).items()]
    return ", ".join(parts) + ("" if differing else ", other content")


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}".rstrip("0").rstrip(".")


def change_id(record: PublicationRecord) -> str:
    """The id of a publication's notice: the same for the same commit, whichever run writes it."""
    return identity_of(NoticeKind.CHANGE, record.table, record.key, record.snapshot_id, record.parent_id)


def change_notice(
    record: PublicationRecord,
    figures: Mapping[str, float],
    figures_before: Mapping[str, float],
    measures: Sequence[str],
    arrivals: tuple[Sequence[str], Sequence[str]] = ((), ()),
    at: str = "",
) -> Notice:
    """The notice of a publication that changed a final slice.

    `figures`, `figures_before`: of the published and the replaced content; `measures`: the figures that readers know;
    `arrivals`: keys of objects delivered, and excluded or included again, since the last publication; `at`: the time if
    the record has none.
    """
    before = {**figures_before, "rows": record.digest_before.rows}
    after = {**figures, "rows": record.digest_after.rows}
    delivered, excluded = arrivals
    own = record.table, record.key, record.published_at or at, record.run_id
    return Notice(
        change_id(record),
        NoticeKind.CHANGE,
        *own,
        {name: {"before": before.get(name), "after": after.get(name)} for name in measures if name in before | after},
        record.cause.text,
        record.accepted_reason,
        snapshot_id=str(record.snapshot_id),
        deliveries=list(delivered[:MOST_DELIVERIES]),
        deliveries_total=len(delivered),
        exclusions=list(excluded[:MOST_DELIVERIES]),
        exclusions_total=len(excluded),
    )


def refusal_notice(
    place: Place, record: Judged, before: Judged | None, last: Notice | None, inputs: str, at: str, run_id: str | None
) -> Notice | None:
    """The notice of a day's new refusal, or of the end of one; otherwise None.

    `record`, `before`: a load's verdict and the one before; `last`: the latest notice of a refusal or end; `inputs`:
    the verdict's inputs. A refusal with the same reason is not new; a day that waits or is held has not recovered.
    """
    is_open = _is_refused(before) if last is None else last.kind is NoticeKind.REFUSAL
    begun, previous = last or before, last.id if last is not None else None
    reason = begun.reason if begun is not None else None
    if _is_refused(record) and not (is_open and reason == record.reason):
        kind = NoticeKind.REFUSAL
        identity = identity_of(kind, *place, record.reason or "", inputs, previous or "")
        return Notice(identity, kind, *place, at, run_id, reason=record.reason, hint=record.hint)
    if is_open and record.verdict in (Verdict.PUBLISHED, Verdict.UNCHANGED, BatchVerdict.ACCEPTED):
        kind = NoticeKind.REFUSAL_END
        identity = identity_of(kind, *place, previous or reason or "")
        accepted, verdict = _accepted(record), record.verdict.value
        return Notice(identity, kind, *place, at, run_id, reason=accepted, refusal_id=previous, verdict=verdict)
    return None


def _is_refused(record: Judged | None) -> bool:
    return record is not None and record.verdict in (Verdict.REFUSED, BatchVerdict.REFUSED)


def _accepted(record: Judged) -> str | None:
    if isinstance(record, SliceRecord):
        return next((one.reason for one in record.evaluations if one.is_accepted_change), None)
    return next((one.reason for one in record.evaluations if one.is_passed), None) if record.is_decided else None


def identity_of(*parts: object) -> str:
    """A stable id of these parts: a prefix of their SHA-256."""
    return hashlib.sha256(json.dumps([*map(str, parts)]).encode()).hexdigest()[:_ID_LENGTH]
