"""What the ledger holds, as records: one dataclass per kind of row, and the way from and to a row.

Lives here: the records. Put here: a kind of record, or a field of one. Keep out: columns (ledger_schema.py), queries and
transactions (ledger.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from sqlalchemy.engine import RowMapping


@dataclass(frozen=True)
class DeliveryRecord:
    """What is known of one version of one object: of the one whose rows raw holds, or of the one refused last."""

    batch: BatchKey
    object_key: str
    etag: str
    size_bytes: int
    sha256: str | None
    lines: int
    rows: int
    quarantined: int
    blank: int
    error: str | None
    is_accepted: bool
    """Whether its rows are in raw; a refused version stands beside the accepted one, if there is any."""
    code_version: str | None = None
    """Of the parser; lines it refused are read again by another one."""


MISSING = "missing_objects"
"""Figure of an evaluation: recorded objects that landing no longer lists; where it passed, a person accepted that."""


@dataclass(frozen=True)
class BatchRecord:
    """The standing of one batch."""

    key: BatchKey
    verdict: BatchVerdict
    reason: str | None = None
    cure: str | None = None
    input_state: str | None = None
    deliveries: int = 0
    hours_delivered: int = 0
    hours_marked: int = 0
    is_closed: bool = False
    evaluations: tuple[Evaluation, ...] = ()
    run_id: str | None = None
    """The run that wrote it last; not written from here."""

    @property
    def is_missing(self) -> bool:
        """Whether it stands refused because deliveries are missing, which a person may accept."""
        return any(not e.is_passed and e.figures.get(MISSING) for e in self.evaluations)

    @property
    def is_loss_accepted(self) -> bool:
        """Whether a person let its deliveries go."""
        return any(e.is_passed and e.figures.get(MISSING) for e in self.evaluations)


@dataclass(frozen=True)
class BatchDay:
    """The rows of one batch that lie on one event day."""

    digest: Digest = EMPTY
    lineage: str | None = None
    """Digest of which object holds which row; None = unknown."""


@dataclass(frozen=True)
class SliceRecord:
    """The standing of one slice of one table."""

    table: str
    key: Slice
    verdict: Verdict
    reason: str | None = None
    cure: str | None = None
    is_final: bool = False
    digest: Digest = EMPTY
    file_hash: str | None = None
    input_state: Mapping[str, str] | None = None
    """What the published content was built from; None = unknown, so the slice is stale."""
    code_version: str | None = None
    refused_state: Mapping[str, str] | None = None
    """The inputs of the last refusal: the same inputs are not tried again."""
    figures: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    """Of the published content; repeated while it stands."""
    refused_evaluations: tuple[Evaluation, ...] = ()
    """Of the content that was refused last, while the refusal stands."""
    run_id: str | None = None
    """The run that wrote it last; not written from here."""
    read_hash: str | None = None
    """`file_hash` of the row this record was made from; not written: a row that names other files by now is left alone."""

    @property
    def knows_inputs(self) -> bool:
        """Whether it is told by the run that published the content, and not found in the table by another one."""
        return self.input_state is not None


@dataclass(frozen=True)
class PublicationRecord:
    """One change of one slice, never altered afterwards (law 8)."""

    table: str
    key: Slice
    snapshot_id: int
    parent_id: int
    digest_before: Digest
    digest_after: Digest
    cause: str
    run_id: str | None
    input_state: Mapping[str, str] | None = None
    code_version: str | None = None
    accepted_reason: str | None = None
    figures: Mapping[str, float] | None = None
    """Of the content published; None where a table was settled and nothing was measured."""
    seconds: float = 0.0
    published_at: str = ""
    number: int = 0
    """Its place among all publications; given by the ledger."""


@dataclass(frozen=True)
class Exclusion:
    """A person's decision that one version of an object is not to be loaded."""

    batch: BatchKey
    object_key: str
    etag: str
    sha256: str | None
    """Of its bytes, where they were ever read: the same bytes stay excluded under another etag."""
    reason: str
    run_id: str | None = None
    excluded_at: str = ""
    lift_reason: str | None = None
    lifted_at: str | None = None
    """None while it stands."""


@dataclass(frozen=True)
class Hold:
    """A person's decision that a slice stays as it is."""

    table: str
    key: Slice
    reason: str
    run_id: str | None = None
    held_at: str = ""
    release_reason: str | None = None
    released_at: str | None = None
    """None while it stands."""


@dataclass(frozen=True)
class BatchAsRead:
    """What a judgement of a batch rests on."""

    accepted: Mapping[str, str]
    """Object -> etag of the version whose rows raw holds."""
    standing: tuple[str, str | None] | None
    """Verdict and input state; None where it was not on record."""


@dataclass
class Changes:
    """What one step of a load writes, in one transaction."""

    deliveries: list[DeliveryRecord] = field(default_factory=list)
    forgotten_deliveries: list[tuple[Source, str]] = field(default_factory=list)
    batches: list[BatchRecord] = field(default_factory=list)
    forgotten_refusals: list[tuple[Source, str]] = field(default_factory=list)
    """Refused versions that were replaced by an accepted one or are gone from landing."""
    batch_days: dict[BatchKey, dict[date, BatchDay]] = field(default_factory=dict)
    """Replaces all event days of each batch named here."""
    slices: list[SliceRecord] = field(default_factory=list)
    publications: list[PublicationRecord] = field(default_factory=list)
    head: tuple[str, int, int | None] | None = None
    """(table, new snapshot, the snapshot it follows): recorded only where the ledger knows the latter, or if None."""
    read_batches: dict[BatchKey, BatchAsRead] = field(default_factory=dict)
    """What was on record of each batch when it was judged: another run may have judged or loaded it since."""


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
    names = ("reason", "cure", "input_state", "deliveries", "hours_delivered", "hours_marked", "is_closed", "run_id")
    return BatchRecord(
        key=BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"]),
        verdict=BatchVerdict(row["verdict"]), evaluations=_load(row["evaluations"]),
        **{name: row[name] for name in names},
    )  # fmt: skip


def batch_row(record: BatchRecord) -> dict[str, Any]:
    """A record as a row of `batches`, without run and time."""
    values = {name: getattr(record, name) for name in record.__dataclass_fields__ if name not in ("key", "run_id")}
    return (
        values
        | _batch_columns(record.key)
        | {"verdict": record.verdict.value, "evaluations": _dump(record.evaluations)}
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
    names = ("reason", "cure", "is_final", "file_hash", "input_state", "code_version", "refused_state", "run_id")
    return SliceRecord(
        table=row["table_name"], key=Slice(row["event_date"], row["project_id"]), verdict=Verdict(row["verdict"]),
        digest=Digest.parse(row["digest"]), figures=row["figures"] or {}, evaluations=_load(row["evaluations"]),
        refused_evaluations=_load(row["refused_evaluations"]), read_hash=row["file_hash"],
        **{name: row[name] for name in names},
    )  # fmt: skip


def slice_row(record: SliceRecord) -> dict[str, Any]:
    """A record as a row of `slices`, without run and time."""
    return {
        "table_name": record.table, "event_date": record.key.event_date, "project_id": record.key.project_id,
        "verdict": record.verdict.value, "reason": record.reason, "cure": record.cure, "is_final": record.is_final,
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
