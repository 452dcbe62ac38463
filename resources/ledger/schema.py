"""The ledger's SQL tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
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

SCHEMA_VERSION = 12
METADATA = sa.MetaData()


def _table(name: str, *columns: Any, **options: Any) -> sa.Table:
    return sa.Table(f"tidemark_{name}", METADATA, *columns, **options)


def _key(name: str, kind: Any = sa.String) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True)


def _of_a_slice() -> list[sa.Column[Any]]:
    """The columns of a slice, published on main or rebuilt beside it."""
    return [
        _key("table_name"), _key("event_date", sa.Date), _key("project_id"),
        sa.Column("verdict", sa.String, nullable=False), sa.Column("reason", sa.String), sa.Column("cure", sa.String),
        sa.Column("is_final", sa.Boolean, nullable=False), sa.Column("digest", sa.String, nullable=False),
        sa.Column("file_hash", sa.String), sa.Column("input_state", sa.JSON), sa.Column("code_version", sa.String),
        sa.Column("refused_state", sa.JSON), sa.Column("figures", sa.JSON), sa.Column("evaluations", sa.JSON),
        sa.Column("refused_evaluations", sa.JSON), sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
        sa.Column("final_at", sa.String), sa.Column("baseline", sa.JSON),
    ]  # fmt: skip


SCHEMA = _table("schema", sa.Column("version", sa.Integer, nullable=False))
HEADS = _table("heads", _key("table_name"), sa.Column("snapshot_id", sa.BigInteger, nullable=False))
DELIVERIES = _table(
    "deliveries", _key("source"), _key("object_key"), _key("is_accepted", sa.Boolean),
    sa.Column("project_id", sa.String, nullable=False),
    sa.Column("arrival_date", sa.Date, nullable=False), sa.Column("etag", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger), sa.Column("sha256", sa.String), sa.Column("lines", sa.BigInteger),
    sa.Column("rows", sa.BigInteger), sa.Column("quarantined", sa.BigInteger), sa.Column("blank", sa.BigInteger),
    sa.Column("error", sa.String), sa.Column("code_version", sa.String),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
    # Reason -> number of quarantined lines, and of unreadable values by column; null where there are none.
    sa.Column("line_reasons", sa.JSON(none_as_null=True)),
    sa.Index("tidemark_deliveries_by_day", "source", "project_id", "arrival_date"),
)  # fmt: skip
HAS_REFUSALS = sa.or_(
    # A literal instead of a bound parameter: the database uses the partial index only for the same condition.
    DELIVERIES.c.quarantined > sa.literal_column("0"),
    DELIVERIES.c.error.is_not(None),
    DELIVERIES.c.line_reasons.is_not(None),
)
"""Deliveries with refused lines or unreadable values, or refused as a whole: few among tens of millions, for an index."""
sa.Index(
    "tidemark_deliveries_refused", DELIVERIES.c.project_id, DELIVERIES.c.arrival_date,
    sqlite_where=HAS_REFUSALS, postgresql_where=HAS_REFUSALS,
)  # fmt: skip
BATCHES = _table(
    "batches", _key("source"), _key("project_id"), _key("arrival_date", sa.Date),
    sa.Column("verdict", sa.String, nullable=False), sa.Column("reason", sa.String), sa.Column("cure", sa.String),
    sa.Column("input_state", sa.String), sa.Column("deliveries", sa.Integer), sa.Column("hours_delivered", sa.Integer),
    sa.Column("hours_marked", sa.Integer), sa.Column("is_closed", sa.Boolean), sa.Column("evaluations", sa.JSON),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String), sa.Column("hours", sa.JSON),
    sa.Index("tidemark_batches_by_verdict", "verdict", "source", "arrival_date", "project_id"),
)  # fmt: skip
BATCH_DAYS = _table(
    "batch_days", _key("source"), _key("project_id"), _key("arrival_date", sa.Date), _key("event_date", sa.Date),
    sa.Column("digest", sa.String, nullable=False), sa.Column("lineage", sa.String),
    # Sketch of how late the rows arrived; null where an older version loaded them.
    sa.Column("lateness", sa.Text),
    sa.Index("tidemark_batch_days_by_event", "source", "project_id", "event_date"),
)  # fmt: skip
SLICES = _table(
    "slices", *_of_a_slice(),
    # Finds the few faults, and counts verdicts without reading the long texts.
    sa.Index("tidemark_slices_by_verdict", "verdict", "table_name", "event_date", "project_id"),
)  # fmt: skip
PUBLICATIONS = _table(
    "publications", sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("table_name", sa.String, nullable=False), sa.Column("event_date", sa.Date, nullable=False),
    sa.Column("project_id", sa.String, nullable=False), sa.Column("snapshot_id", sa.BigInteger, nullable=False),
    sa.Column("parent_id", sa.BigInteger), sa.Column("digest_before", sa.String), sa.Column("digest_after", sa.String),
    sa.Column("cause", sa.String), sa.Column("accepted_reason", sa.String), sa.Column("input_state", sa.JSON),
    sa.Column("code_version", sa.String), sa.Column("figures", sa.JSON), sa.Column("run_id", sa.String),
    sa.Column("seconds", sa.Float), sa.Column("published_at", sa.String),
    # Whether the slice was final before; null where an older version recorded the publication.
    sa.Column("was_final", sa.Boolean),
    # Input snapshots and settings, to build it again; null where an older version recorded the publication.
    sa.Column("pins", sa.JSON), sa.Column("settings", sa.JSON),
    # The parent is part of the key: somebody may set main back to a snapshot, which then follows another parent.
    sa.UniqueConstraint("table_name", "event_date", "project_id", "snapshot_id", "parent_id"),
    sa.Index("tidemark_publications_by_final", "was_final", "table_name"),
)  # fmt: skip
RUNS = _table(
    "runs", _key("run_id"), sa.Column("tables", sa.JSON), sa.Column("first_day", sa.Date),
    sa.Column("last_day", sa.Date), sa.Column("started_at", sa.String), sa.Column("finished_at", sa.String),
    sa.Column("verdicts", sa.JSON), sa.Column("snapshots", sa.JSON),
    # Heavy steps: forecast and task metrics (domain/skew.py); null where an older version recorded the run.
    sa.Column("skew", sa.JSON),
)  # fmt: skip
CUTS = _table(
    "cuts", sa.Column("number", sa.Integer, primary_key=True, autoincrement=True), sa.Column("run_id", sa.String),
    sa.Column("published_at", sa.String, nullable=False),
    # Table -> snapshot id as text, because ids exceed the integers that JSON readers hold exactly.
    sa.Column("snapshots", sa.JSON, nullable=False),
    sa.Index("tidemark_cuts_by_run", "run_id"), sa.Index("tidemark_cuts_by_time", "published_at"),
)  # fmt: skip
"""Snapshots of all tables that belong together, one row for each publish."""
EXCLUSIONS = _table(
    "exclusions", sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("source", sa.String, nullable=False), sa.Column("project_id", sa.String, nullable=False),
    sa.Column("arrival_date", sa.Date, nullable=False), sa.Column("object_key", sa.String, nullable=False),
    sa.Column("etag", sa.String, nullable=False), sa.Column("sha256", sa.String),
    sa.Column("reason", sa.String, nullable=False), sa.Column("run_id", sa.String),
    sa.Column("excluded_at", sa.String, nullable=False),
    # The lift; null while the exclusion is in force.
    sa.Column("lift_reason", sa.String), sa.Column("lift_run_id", sa.String), sa.Column("lifted_at", sa.String),
    sa.Index("tidemark_exclusions_by_day", "source", "project_id", "arrival_date"),
)  # fmt: skip
STRAYS = _table(
    "strays", _key("source"), _key("object_key"), sa.Column("project_id", sa.String, nullable=False),
    sa.Column("arrival_date", sa.Date, nullable=False), sa.Column("seen_at", sa.String),
)  # fmt: skip
HOLDS = _table(
    "holds", sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("table_name", sa.String, nullable=False), sa.Column("event_date", sa.Date, nullable=False),
    sa.Column("project_id", sa.String, nullable=False), sa.Column("reason", sa.String), sa.Column("run_id", sa.String),
    sa.Column("held_at", sa.String),
    # The release; null while the hold is in force.
    sa.Column("release_reason", sa.String), sa.Column("release_run_id", sa.String), sa.Column("released_at", sa.String),
    sa.Index("tidemark_holds_by_day", "table_name", "project_id", "event_date"),
)  # fmt: skip
PROCESSES = _table(
    "processes", _key("run_id"),
    sa.Column("job", sa.String), sa.Column("host", sa.String), sa.Column("place", sa.String), sa.Column("pid", sa.Integer),
    sa.Column("started_ticks", sa.BigInteger), sa.Column("steps", sa.Integer), sa.Column("begun_at", sa.String),
    sa.Column("beats", sa.BigInteger), sa.Column("beat_at", sa.String),
    sa.Column("ended_at", sa.String), sa.Column("lost_at", sa.String),
    # Written by observers: the last heartbeat seen, and the number of observations since without a new one.
    sa.Column("seen_beats", sa.BigInteger), sa.Column("still_looks", sa.Integer), sa.Column("looked_at", sa.String),
)  # fmt: skip
LAKE = _table("lake", _key("number", sa.Integer), sa.Column("id", sa.String, nullable=False))
"""Two rows: the lake that this ledger belongs to, and the ledger's own identity, which the lake's mark names."""
DECISIONS = _table("decisions", _key("name"), sa.Column("recorded_at", sa.String))
"""Names of the decision objects in the warehouse whose acts this ledger holds."""
NOTICES = _table(
    "notices", sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String, nullable=False, unique=True), sa.Column("kind", sa.String, nullable=False),
    sa.Column("table_name", sa.String, nullable=False), sa.Column("event_date", sa.Date, nullable=False),
    sa.Column("project_id", sa.String, nullable=False), sa.Column("body", sa.JSON, nullable=False),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
    sa.Index("tidemark_notices_by_day", "table_name", "event_date", "project_id"),
    # Receivers remember the last number they got, so no number may be reused, even after the last rows are deleted.
    sqlite_autoincrement=True,
)  # fmt: skip
RECEIVERS = _table(
    "receivers", _key("id"), sa.Column("place", sa.String), sa.Column("sent_number", sa.Integer, nullable=False),
    sa.Column("seen_at", sa.String),
    # The last failed attempt; null after a success.
    sa.Column("failures", sa.Integer), sa.Column("failed_at", sa.String), sa.Column("error", sa.String),
    sa.Column("retry_at", sa.String),
    # The body that it last refused for good, and how often.
    sa.Column("refused_body", sa.String), sa.Column("refusals", sa.Integer),
)  # fmt: skip
"""Receivers of notices, by a hash of the address: the address itself is a secret that grants access."""
SET_ASIDE = _table(
    "set_aside", _key("receiver_id"), _key("first_number", sa.Integer),
    sa.Column("last_number", sa.Integer, nullable=False), sa.Column("notices", sa.Integer, nullable=False),
    sa.Column("run_id", sa.String), sa.Column("error", sa.String), sa.Column("set_aside_at", sa.String),
)  # fmt: skip
"""Notices that a receiver refused for good and that later notices overtake; removed once it accepts them."""
RECOVERIES = _table(
    "recoveries", _key("project_id"), _key("arrival_date", sa.Date), _key("hour", sa.Integer),
    sa.Column("begun_at", sa.String), sa.Column("ended_at", sa.String),
    # Object -> size, of what was written for an hour on record as missing; null for other hours.
    sa.Column("brought", sa.JSON(none_as_null=True)),
)  # fmt: skip
"""Claims of recoveries on hours below the backfill prefix; a claim ends when the hour's marker is written."""
REBUILDS = _table(
    "rebuilds", sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("tables", sa.JSON, nullable=False), sa.Column("first_day", sa.Date, nullable=False),
    sa.Column("last_day", sa.Date, nullable=False), sa.Column("projects", sa.JSON, nullable=False),
    sa.Column("reason", sa.String, nullable=False), sa.Column("who", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False), sa.Column("run_id", sa.String), sa.Column("started_at", sa.String),
    sa.Column("finished_at", sa.String), sa.Column("swap_after", sa.Integer), sa.Column("swap_runs", sa.JSON),
    sa.Column("answered_by", sa.String), sa.Column("answer", sa.String),
    # Branches are named after the number, so no number may be reused, even after the last rows are deleted.
    sqlite_autoincrement=True,
)  # fmt: skip
REBUILT_SLICES = _table(
    "rebuilt_slices", _key("rebuild", sa.Integer), *_of_a_slice(),
    sa.Column("published", sa.String), sa.Column("difference", sa.JSON), sa.Column("blocked_by", sa.JSON),
    # The slice in the report that the operator was last shown; null before there is a report.
    sa.Column("reported", sa.JSON(none_as_null=True)),
)  # fmt: skip
"""Rebuilt slices that wait beside main; columns as in `slices`."""
GOLDEN_TOTALS = _table(
    "golden_totals", _key("source"), _key("event_date", sa.Date), _key("project_id"), _key("table_name"), _key("measure"),
    # As text, because no numeric type of every database holds all decimals exactly.
    sa.Column("value", sa.String, nullable=False), sa.Column("origin", sa.String), sa.Column("recorded_at", sa.String),
)  # fmt: skip
"""Totals of published days from an outside system, as last read."""
GOLDEN_FAULTS = _table(
    "golden_faults", sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("source", sa.String, nullable=False), sa.Column("origin", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False), sa.Column("fix", sa.String), sa.Column("recorded_at", sa.String),
)  # fmt: skip
"""Lines and files of the last reading that were not valid totals."""


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
