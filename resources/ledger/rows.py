"""Convert the ledger's rows to records and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from typing import Any

from sqlalchemy.engine import RowMapping

from pipeline_assets.domain.changes import Baseline, Cause
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import (
    BatchDay,
    BatchRecord,
    DeliveryRecord,
    Exclusion,
    Head,
    Hold,
    InputDay,
    InputState,
    PublicationRecord,
    Rejection,
    SliceRecord,
)
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict

_CROSS_DAY, _JUDGED_BY, _WAITS_FOR, _DELIVERED = "rivals", "code", "waits for", "delivered"
"""Keys of a stored state beside those of upstream days, which have the form `table:day`."""


def _dump(evaluations: Iterable[Evaluation]) -> list[dict[str, Any]]:
    return [evaluation.to_json() for evaluation in evaluations]


def _load(rows: Any) -> tuple[Evaluation, ...]:
    return tuple(Evaluation.from_json(row) for row in rows or ())


def delivery_of(row: RowMapping) -> DeliveryRecord:
    """A row of `deliveries` as its record."""
    names = (
        "object_key",
        "etag",
        "size_bytes",
        "sha256",
        "lines",
        "rows",
        "quarantined",
        "blank",
        "error",
        "is_accepted",
        "code_version",
        "recorded_at",
        "run_id",
    )
    batch = _batch_key(row["source"], row["project_id"], row["arrival_date"])
    reasons = tuple((row["line_reasons"] or {}).items())
    return DeliveryRecord(batch=batch, line_reasons=reasons, **{name: row[name] for name in names})


@lru_cache(maxsize=1 << 14)
def _batch_key(source: str, project_id: str, arrival_date: date) -> BatchKey:
    """Share one key among all deliveries of a batch, to save memory: a load of a month has a hundred deliveries per batch."""
    return BatchKey(Source(source), project_id, arrival_date)


def delivery_row(record: DeliveryRecord) -> dict[str, Any]:
    """A record as a row of `deliveries`; run and time of a new one are not known yet."""
    values = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != "batch"}
    return values | {"line_reasons": dict(record.line_reasons) or None} | _batch_columns(record.batch)


def _batch_columns(batch: BatchKey) -> dict[str, Any]:
    return {"source": batch.source.value, "project_id": batch.project_id, "arrival_date": batch.arrival_date}


def batch_of(row: RowMapping) -> BatchRecord:
    """A row of `batches` as its record."""
    names = ("reason", "input_state", "deliveries", "hours_delivered", "hours_marked", "is_closed", "run_id")
    hours = None if row["hours"] is None else tuple(row["hours"])
    return BatchRecord(
        key=BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"]),
        verdict=BatchVerdict(row["verdict"]), evaluations=_load(row["evaluations"]),
        hours=hours, hint=row["cure"], **{name: row[name] for name in names},
    )  # fmt: skip


def batch_row(record: BatchRecord) -> dict[str, Any]:
    """A record as a row of `batches`, without run and time."""
    values = {
        name: getattr(record, name) for name in record.__dataclass_fields__ if name not in ("key", "run_id", "hint")
    }
    return (
        values
        | {"cure": record.hint}
        | _batch_columns(record.key)
        | {"verdict": record.verdict.value, "evaluations": _dump(record.evaluations)}
        | {"hours": None if record.hours is None else list(record.hours)}
    )


def batch_day_row(day: date, part: BatchDay, known: Mapping[tuple[date, str], str | None]) -> dict[str, Any]:
    """An event day of a batch as a row of `batch_days`, without the batch; `known` is (day, digest) -> recorded sketch."""
    digest = str(part.digest)
    lateness = part.lateness.to_text() if part.lateness is not None else known.get((day, digest))
    return {"event_date": day, "digest": digest, "lineage": part.lineage, "lateness": lateness}


def exclusion_of(row: RowMapping) -> Exclusion:
    """A row of `exclusions` as its record."""
    names = ("object_key", "etag", "sha256", "reason", "run_id", "excluded_at", "lift_reason", "lifted_at")
    batch = BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"])
    return Exclusion(batch=batch, **{name: row[name] for name in names})


def exclusion_row(record: Exclusion) -> dict[str, Any]:
    """A record as a row of `exclusions`, without run and time."""
    values = {name: getattr(record, name) for name in ("object_key", "etag", "sha256", "reason")}
    return values | _batch_columns(record.batch)


def hold_of(row: RowMapping) -> Hold:
    """A row of `holds` as its record."""
    names = ("reason", "run_id", "held_at", "release_reason", "released_at")
    key = Slice(row["event_date"], row["project_id"])
    return Hold(row["table_name"], key, **{name: row[name] for name in names})


def slice_of(row: RowMapping) -> SliceRecord:
    """A row of `slices` as its record."""
    names = (
        "reason",
        "is_final",
        "final_at",
        "file_hash",
        "code_version",
        "run_id",
    )
    return SliceRecord(
        table=row["table_name"], key=Slice(row["event_date"], row["project_id"]), verdict=Verdict(row["verdict"]),
        digest=Digest.parse(row["digest"]), figures=row["figures"] or {}, evaluations=_load(row["evaluations"]),
        refused_evaluations=_load(row["refused_evaluations"]), read_hash=row["file_hash"],
        input_state=input_state_of(row["input_state"]), rejection=rejection_of(row["refused_state"]),
        baseline=Baseline.from_json(row["baseline"]) if row["baseline"] else None,
        hint=row["cure"], **{name: row[name] for name in names},
    )  # fmt: skip


def slice_row(record: SliceRecord) -> dict[str, Any]:
    """A record as a row of `slices`, without run and time."""
    return {
        "table_name": record.table, "event_date": record.key.event_date, "project_id": record.key.project_id,
        "verdict": record.verdict.value, "reason": record.reason, "cure": record.hint, "is_final": record.is_final,
        "final_at": record.final_at, "baseline": record.baseline.to_json() if record.baseline is not None else None,
        "digest": str(record.digest), "file_hash": record.file_hash, "input_state": input_state_json(record.input_state),
        "code_version": record.code_version, "refused_state": rejection_json(record.rejection),
        "figures": _sorted(record.figures), "evaluations": _dump(record.evaluations),
        "refused_evaluations": _dump(record.refused_evaluations),
    }  # fmt: skip


def publication_of(row: RowMapping) -> PublicationRecord:
    """A row of `publications` as its record."""
    names = (
        "snapshot_id",
        "parent_id",
        "run_id",
        "code_version",
        "accepted_reason",
        "figures",
        "seconds",
        "published_at",
        "settings",
    )
    pins = row["pins"]
    return PublicationRecord(
        table=row["table_name"], key=Slice(row["event_date"], row["project_id"]),
        digest_before=Digest.parse(row["digest_before"]), digest_after=Digest.parse(row["digest_after"]), number=row["id"],
        cause=Cause.parse(row["cause"] or ""), input_state=input_state_of(row["input_state"]),
        pins=None if pins is None else {name: int(snapshot_id) for name, snapshot_id in pins.items()},
        **{name: row[name] for name in names},
    )  # fmt: skip


def publication_row(record: PublicationRecord, stamp: str) -> dict[str, Any]:
    """A record as a row of `publications`, without run and time."""
    return {
        "table_name": record.table, "event_date": record.key.event_date, "project_id": record.key.project_id,
        "snapshot_id": record.snapshot_id, "parent_id": record.parent_id, "digest_before": str(record.digest_before),
        "digest_after": str(record.digest_after), "cause": record.cause.text, "run_id": record.run_id,
        "input_state": input_state_json(record.input_state), "code_version": record.code_version,
        "accepted_reason": record.accepted_reason, "figures": _sorted(record.figures), "seconds": record.seconds,
        "published_at": record.published_at or stamp,
        # As text, because snapshot ids exceed what readers of JSON hold exactly.
        "pins": None if record.pins is None else {name: str(record.pins[name]) for name in sorted(record.pins)},
        "settings": _sorted(record.settings),
    }  # fmt: skip


def input_state_of(stored: Mapping[str, str] | None) -> InputState | None:
    """Parse a stored input state; None where there is none or it cannot be parsed."""
    if stored is None:
        return None
    try:
        upstream = {
            _input_day(name): Digest.parse(text)
            for name, text in stored.items()
            if name not in (_CROSS_DAY, _JUDGED_BY, _WAITS_FOR, _DELIVERED)
        }
    except ValueError:
        return None
    return InputState(upstream, stored.get(_CROSS_DAY), stored.get(_DELIVERED))


@lru_cache(maxsize=1 << 16)
def _input_day(name: str) -> InputDay:
    table, _, day = name.rpartition(":")
    return InputDay(table, date.fromisoformat(day))


def input_state_json(state: InputState | None) -> dict[str, str] | None:
    """The stored form of an input state, sorted by key; the inverse of `input_state_of`."""
    if state is None:
        return None
    entries = {f"{name.table}:{name.day.isoformat()}": str(digest) for name, digest in state.upstream.items()}
    beside = _given({_CROSS_DAY: state.cross_day, _DELIVERED: state.delivered})
    return dict(sorted((entries | beside).items()))


def rejection_of(stored: Mapping[str, str] | None) -> Rejection | None:
    """Parse a stored refused state: its inputs, the code that judged it, and the days it waits for."""
    inputs = input_state_of(stored)
    if stored is None or inputs is None:
        return None
    waits_for = tuple(date.fromisoformat(day) for day in stored[_WAITS_FOR].split(",")) if _WAITS_FOR in stored else ()
    return Rejection(inputs, stored.get(_JUDGED_BY), waits_for)


def rejection_json(rejection: Rejection | None) -> dict[str, str] | None:
    """The stored form of a rejection; the inverse of `rejection_of`."""
    if rejection is None:
        return None
    waits_for = ",".join(day.isoformat() for day in rejection.waits_for) or None
    beside = _given({_JUDGED_BY: rejection.judged_by, _WAITS_FOR: waits_for})
    return dict(sorted(((input_state_json(rejection.inputs) or {}) | beside).items()))


def _given(entries: Mapping[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in entries.items() if text is not None}


def head_of(snapshot_id: int) -> Head:
    """Parse a stored head: a doubted head is the negative of its snapshot id, which no table's head equals."""
    return Head(abs(snapshot_id), snapshot_id > 0)


def head_number(head: Head) -> int:
    """The stored number of a head; the inverse of `head_of`."""
    return head.snapshot_id if head.is_trusted else -head.snapshot_id


def _sorted(value: Mapping[str, Any] | None) -> Any:
    return None if value is None else json.loads(json.dumps(value, sort_keys=True))
