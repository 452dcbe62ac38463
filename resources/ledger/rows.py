"""The ledger's rows as its records, and back.

Contains: one pair of functions per kind of row.
Add here: how a new field is kept.
Does not contain: what a field means (records.py), columns (schema.py), queries and transactions
(store.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.engine import RowMapping

from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from resources.ledger.records import BatchRecord, DeliveryRecord, Exclusion, Hold, PublicationRecord, SliceRecord


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
    )
    batch = BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"])
    return DeliveryRecord(batch=batch, **{name: row[name] for name in names})


def delivery_row(record: DeliveryRecord) -> dict[str, Any]:
    """A record as a row of `deliveries`, without run and time."""
    values = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != "batch"}
    return values | _batch_columns(record.batch)


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
        "input_state",
        "code_version",
        "refused_state",
        "run_id",
    )
    return SliceRecord(
        table=row["table_name"], key=Slice(row["event_date"], row["project_id"]), verdict=Verdict(row["verdict"]),
        digest=Digest.parse(row["digest"]), figures=row["figures"] or {}, evaluations=_load(row["evaluations"]),
        refused_evaluations=_load(row["refused_evaluations"]), read_hash=row["file_hash"],
        baseline=Baseline.from_json(row["baseline"]) if row["baseline"] else None,
        hint=row["cure"], **{name: row[name] for name in names},
    )  # fmt: skip


def slice_row(record: SliceRecord) -> dict[str, Any]:
    """A record as a row of `slices`, without run and time."""
    return {
        "table_name": record.table, "event_date": record.key.event_date, "project_id": record.key.project_id,
        "verdict": record.verdict.value, "reason": record.reason, "cure": record.hint, "is_final": record.is_final,
        "final_at": record.final_at, "baseline": record.baseline.to_json() if record.baseline is not None else None,
        "digest": str(record.digest), "file_hash": record.file_hash, "input_state": _sorted(record.input_state),
        "code_version": record.code_version, "refused_state": _sorted(record.refused_state),
        "figures": _sorted(record.figures), "evaluations": _dump(record.evaluations),
        "refused_evaluations": _dump(record.refused_evaluations),
    }  # fmt: skip


def publication_of(row: RowMapping) -> PublicationRecord:
    """A row of `publications` as its record."""
    names = ("snapshot_id", "parent_id", "cause", "run_id", "input_state", "code_version", "accepted_reason", "figures",
             "seconds", "published_at")  # fmt: skip
    return PublicationRecord(
        table=row["table_name"], key=Slice(row["event_date"], row["project_id"]),
        digest_before=Digest.parse(row["digest_before"]), digest_after=Digest.parse(row["digest_after"]), number=row["id"],
        **{name: row[name] for name in names},
    )  # fmt: skip


def publication_row(record: PublicationRecord, stamp: str) -> dict[str, Any]:
    """A record as a row of `publications`, without run and time."""
    return {
        "table_name": record.table, "event_date": record.key.event_date, "project_id": record.key.project_id,
        "snapshot_id": record.snapshot_id, "parent_id": record.parent_id, "digest_before": str(record.digest_before),
        "digest_after": str(record.digest_after), "cause": record.cause, "run_id": record.run_id,
        "input_state": _sorted(record.input_state), "code_version": record.code_version,
        "accepted_reason": record.accepted_reason, "figures": _sorted(record.figures), "seconds": record.seconds,
        "published_at": record.published_at or stamp,
    }  # fmt: skip


def _sorted(value: Mapping[str, Any] | None) -> Any:
    return None if value is None else json.loads(json.dumps(value, sort_keys=True))
