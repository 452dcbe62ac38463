"""The ledger: what is recorded of deliveries, batches, slices and publications, in a SQL database.

Lives here: the ledger's tables and every query on them. Put here: a new fact that must outlive a run. Keep out: deciding
anything (load_path/) and reading tables (lakehouse.py). No JVM is needed to read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LedgerError
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, RowMapping, make_url

SCHEMA_VERSION = 1
_metadata = sa.MetaData()


def _table(name: str, *columns: Any) -> sa.Table:
    return sa.Table(f"tidemark_{name}", _metadata, *columns)


def _key(name: str, kind: Any = sa.String) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True)


_schema = _table("schema", sa.Column("version", sa.Integer, nullable=False))
_heads = _table("heads", _key("table_name"), sa.Column("snapshot_id", sa.BigInteger, nullable=False))
_deliveries = _table(
    "deliveries", _key("source"), _key("object_key"), sa.Column("project_id", sa.String, nullable=False),
    sa.Column("arrival_date", sa.Date, nullable=False), sa.Column("etag", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger), sa.Column("sha256", sa.String), sa.Column("lines", sa.BigInteger),
    sa.Column("rows", sa.BigInteger), sa.Column("quarantined", sa.BigInteger), sa.Column("blank", sa.BigInteger),
    sa.Column("error", sa.String), sa.Column("is_accepted", sa.Boolean, nullable=False),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
    sa.Index("tidemark_deliveries_by_day", "source", "project_id", "arrival_date"),
)  # fmt: skip
_batches = _table(
    "batches", _key("source"), _key("project_id"), _key("arrival_date", sa.Date),
    sa.Column("verdict", sa.String, nullable=False), sa.Column("reason", sa.String), sa.Column("cure", sa.String),
    sa.Column("input_state", sa.String), sa.Column("deliveries", sa.Integer), sa.Column("hours_delivered", sa.Integer),
    sa.Column("hours_marked", sa.Integer), sa.Column("is_closed", sa.Boolean), sa.Column("evaluations", sa.JSON),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
)  # fmt: skip
_batch_days = _table(
    "batch_days", _key("source"), _key("project_id"), _key("arrival_date", sa.Date), _key("event_date", sa.Date),
    sa.Column("digest", sa.String, nullable=False),
    sa.Index("tidemark_batch_days_by_event", "source", "project_id", "event_date"),
)  # fmt: skip
_slices = _table(
    "slices", _key("table_name"), _key("event_date", sa.Date), _key("project_id"),
    sa.Column("verdict", sa.String, nullable=False), sa.Column("reason", sa.String), sa.Column("cure", sa.String),
    sa.Column("is_final", sa.Boolean, nullable=False), sa.Column("digest", sa.String, nullable=False),
    sa.Column("file_hash", sa.String), sa.Column("input_state", sa.JSON), sa.Column("code_version", sa.String),
    sa.Column("refused_state", sa.JSON), sa.Column("figures", sa.JSON), sa.Column("evaluations", sa.JSON),
    sa.Column("refused_evaluations", sa.JSON), sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
)  # fmt: skip
_publications = _table(
    "publications", sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("table_name", sa.String, nullable=False), sa.Column("event_date", sa.Date, nullable=False),
    sa.Column("project_id", sa.String, nullable=False), sa.Column("snapshot_id", sa.BigInteger, nullable=False),
    sa.Column("parent_id", sa.BigInteger), sa.Column("digest_before", sa.String), sa.Column("digest_after", sa.String),
    sa.Column("cause", sa.String), sa.Column("accepted_reason", sa.String), sa.Column("input_state", sa.JSON),
    sa.Column("code_version", sa.String), sa.Column("run_id", sa.String), sa.Column("seconds", sa.Float),
    sa.Column("published_at", sa.String),
    sa.UniqueConstraint("table_name", "event_date", "project_id", "snapshot_id"),
)  # fmt: skip
_runs = _table(
    "runs", _key("run_id"), sa.Column("tables", sa.JSON), sa.Column("first_day", sa.Date),
    sa.Column("last_day", sa.Date), sa.Column("started_at", sa.String), sa.Column("finished_at", sa.String),
    sa.Column("verdicts", sa.JSON), sa.Column("snapshots", sa.JSON),
)  # fmt: skip
_exclusions = _table(
    "exclusions", sa.Column("id", sa.Integer, primary_key=True, autoincrement=True), sa.Column("object_key", sa.String),
    sa.Column("etag", sa.String), sa.Column("reason", sa.String), sa.Column("excluded_at", sa.String),
    sa.Column("lifted_at", sa.String),
)  # fmt: skip
_holds = _table(
    "holds", _key("table_name"), _key("event_date", sa.Date), _key("project_id"), sa.Column("reason", sa.String),
    sa.Column("held_at", sa.String),
)  # fmt: skip


@dataclass(frozen=True)
class DeliveryRecord:
    """What is known of one delivery: the version last parsed."""

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
    """Whether its rows are in raw; False while its batch stands refused."""


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
    seconds: float = 0.0
    published_at: str = ""


@dataclass
class Changes:
    """What one step of a load writes, in one transaction."""

    deliveries: list[DeliveryRecord] = field(default_factory=list)
    forgotten_deliveries: list[tuple[Source, str]] = field(default_factory=list)
    batches: list[BatchRecord] = field(default_factory=list)
    batch_days: dict[BatchKey, dict[date, Digest]] = field(default_factory=dict)
    """Replaces all event days of each batch named here."""
    slices: list[SliceRecord] = field(default_factory=list)
    publications: list[PublicationRecord] = field(default_factory=list)
    head: tuple[str, int, int | None] | None = None
    """(table, new snapshot, the snapshot it follows): recorded only where the ledger knows the latter, or if None."""


class Ledger:
    """All reads and writes of the ledger; each write is one transaction."""

    def __init__(self, url: str) -> None:
        """Prepare for a SQLAlchemy URL; nothing is opened before first use."""
        self._url = url
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine, opened and brought to the present schema on first use; raises LedgerError."""
        if self._engine is None:
            self._engine = _open(self._url)
        return self._engine

    def close(self) -> None:
        """Release all connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    # -- reading -----------------------------------------------------------------------------------------------

    def head(self, table: str) -> int | None:
        """The snapshot of the table that the ledger agrees with."""
        with self._read() as connection:
            row = connection.execute(sa.select(_heads.c.snapshot_id).where(_heads.c.table_name == table)).first()
        return int(row[0]) if row else None

    def deliveries(self, source: Source, projects: Sequence[str], first: date, last: date) -> dict[str, DeliveryRecord]:
        """Object key -> record of the deliveries that arrived in the range."""
        with self._read() as connection:
            rows = connection.execute(
                sa.select(_deliveries).where(
                    _deliveries.c.source == source.value,
                    _deliveries.c.project_id.in_(projects),
                    _deliveries.c.arrival_date.between(first, last),
                )
            ).mappings()
            return {row["object_key"]: _delivery(row) for row in rows}

    def batches(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, BatchRecord]:
        """Batches of both sources that arrived in the range."""
        with self._read() as connection:
            rows = connection.execute(
                sa.select(_batches).where(
                    _batches.c.project_id.in_(projects), _batches.c.arrival_date.between(first, last)
                )
            ).mappings()
            return {record.key: record for record in map(_batch, rows)}

    def first_arrivals(self, projects: Sequence[str]) -> dict[str, date]:
        """Project -> earliest arrival day with a recorded delivery, either source."""
        query = sa.select(_deliveries.c.project_id, sa.func.min(_deliveries.c.arrival_date))
        with self._read() as connection:
            rows = connection.execute(
                query.where(_deliveries.c.project_id.in_(projects)).group_by(_deliveries.c.project_id)
            )
            return {row[0]: row[1] for row in rows}

    def batch_days(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[BatchKey, dict[date, Digest]]:
        """Batch -> event day -> digest of its rows in raw, for batches that arrived in the range."""
        found: dict[BatchKey, dict[date, Digest]] = {}
        for batch, day, digest in self._batch_days(source, projects, _batch_days.c.arrival_date.between(first, last)):
            found.setdefault(batch, {})[day] = digest
        return found

    def batch_days_of(
        self, source: Source, project_id: str, event_days: Sequence[date]
    ) -> dict[date, dict[BatchKey, Digest]]:
        """Event day -> batch -> digest, for event days of one project."""
        found: dict[date, dict[BatchKey, Digest]] = {day: {} for day in event_days}
        for chunk in _chunks(list(event_days)):
            for batch, day, digest in self._batch_days(source, [project_id], _batch_days.c.event_date.in_(chunk)):
                found[day][batch] = digest
        return found

    def _batch_days(
        self, source: Source, projects: Sequence[str], where: Any
    ) -> Iterator[tuple[BatchKey, date, Digest]]:
        with self._read() as connection:
            rows = connection.execute(
                sa.select(_batch_days).where(
                    _batch_days.c.source == source.value, _batch_days.c.project_id.in_(projects), where
                )
            ).mappings()
            for row in rows:
                key = BatchKey(source, row["project_id"], row["arrival_date"])
                yield key, row["event_date"], Digest.parse(row["digest"])

    def slices(
        self, table: str, projects: Sequence[str] | None, days: Iterable[date] | None = None
    ) -> dict[Slice, SliceRecord]:
        """The recorded slices of a table, of all days or of those given."""
        query = sa.select(_slices).where(_slices.c.table_name == table)
        if projects is not None:
            query = query.where(_slices.c.project_id.in_(projects))
        wanted = None if days is None else set(days)
        if wanted:
            query = query.where(_slices.c.event_date.between(min(wanted), max(wanted)))
        with self._read() as connection:
            records = map(_slice, connection.execute(query).mappings())
            return {r.key: r for r in records if wanted is None or r.key.event_date in wanted}

    def publications(self, table: str | None = None) -> list[PublicationRecord]:
        """Every recorded change, oldest first."""
        query = sa.select(_publications).order_by(_publications.c.id)
        if table is not None:
            query = query.where(_publications.c.table_name == table)
        with self._read() as connection:
            return [_publication(row) for row in connection.execute(query).mappings()]

    def holds(self, table: str, projects: Sequence[str]) -> dict[Slice, str]:
        """Slices a person holds, with the reason."""
        with self._read() as connection:
            rows = connection.execute(
                sa.select(_holds).where(_holds.c.table_name == table, _holds.c.project_id.in_(projects))
            ).mappings()
            return {Slice(row["event_date"], row["project_id"]): row["reason"] for row in rows}

    def last_run(self) -> Mapping[str, Any] | None:
        """The run recorded last: job, range, verdict counts and the snapshot of every table at its end."""
        with self._read() as connection:
            row = connection.execute(sa.select(_runs).order_by(_runs.c.finished_at.desc()).limit(1)).mappings().first()
        return dict(row) if row else None

    # -- writing -----------------------------------------------------------------------------------------------

    def record(self, changes: Changes, run_id: str) -> None:
        """Write one step's changes in one transaction; repeating it changes nothing."""
        stamp = {"run_id": run_id, "recorded_at": datetime.now(UTC).isoformat()}
        with self.engine.begin() as connection:
            for source, object_key in changes.forgotten_deliveries:
                connection.execute(
                    _deliveries.delete().where(
                        _deliveries.c.source == source.value, _deliveries.c.object_key == object_key
                    )
                )
            self._upsert(connection, _deliveries, [_delivery_row(d) | stamp for d in changes.deliveries])
            self._upsert(connection, _batches, [_batch_row(b) | stamp for b in changes.batches])
            for batch, days in changes.batch_days.items():
                self._replace_batch_days(connection, batch, days)
            self._upsert(connection, _slices, [_slice_row(s) | stamp for s in changes.slices])
            for publication in changes.publications:
                self._insert_once(connection, _publications, _publication_row(publication, stamp["recorded_at"]))
            if changes.head is not None:
                self._move_head(connection, *changes.head)

    def record_run(self, run_id: str, **values: Any) -> None:
        """Write or complete the row of a run."""
        with self.engine.begin() as connection:
            self._upsert(connection, _runs, [{"run_id": run_id, **values}])

    def _replace_batch_days(self, connection: Connection, batch: BatchKey, days: Mapping[date, Digest]) -> None:
        keys = {"source": batch.source.value, "project_id": batch.project_id, "arrival_date": batch.arrival_date}
        connection.execute(_batch_days.delete().where(*(_batch_days.c[name] == value for name, value in keys.items())))
        rows = [keys | {"event_date": day, "digest": str(digest)} for day, digest in days.items()]
        if rows:
            connection.execute(_batch_days.insert(), rows)

    def _move_head(self, connection: Connection, table: str, snapshot_id: int, follows: int | None) -> None:
        known = connection.execute(sa.select(_heads.c.snapshot_id).where(_heads.c.table_name == table)).scalar()
        # A head is moved only from the snapshot the ledger agrees with: an unrecorded commit of another writer in
        # between keeps the old head, and the next run settles.
        if follows is None or known == follows:
            self._upsert(connection, _heads, [{"table_name": table, "snapshot_id": snapshot_id}])

    def _upsert(self, connection: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        keys = [column.name for column in table.primary_key]
        insert = self._insert(table)
        updates = {name: insert.excluded[name] for name in rows[0] if name not in keys}
        connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=updates), rows)

    def _insert_once(self, connection: Connection, table: sa.Table, row: dict[str, Any]) -> None:
        connection.execute(self._insert(table).on_conflict_do_nothing(), row)

    def _insert(self, table: sa.Table) -> Any:
        return sqlite.insert(table) if self.engine.dialect.name == "sqlite" else postgresql.insert(table)

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection


def _open(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(url, connect_args={"timeout": 30} if parsed.get_backend_name() == "sqlite" else {})
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA journal_mode=WAL"))
    try:
        with engine.begin() as connection:
            _metadata.create_all(connection)
            version = connection.execute(sa.select(_schema.c.version)).scalar()
            if version is None:
                connection.execute(_schema.insert(), {"version": SCHEMA_VERSION})
    except sa.exc.SQLAlchemyError as error:
        engine.dispose()
        reason = f"cannot be opened ({getattr(error, 'orig', error)})"
        raise LedgerError(
            parsed.render_as_string(), reason, "Check TIDEMARK_LEDGER_URL and TIDEMARK_CATALOG_URL"
        ) from error
    if version is not None and version > SCHEMA_VERSION:
        engine.dispose()
        raise LedgerError(parsed.render_as_string(), f"has schema version {version}", "Install a newer Tidemark")
    return engine


def _chunks(values: list[date], size: int = 500) -> Iterator[list[date]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _dump(evaluations: Iterable[Evaluation]) -> list[dict[str, Any]]:
    return [evaluation.to_json() for evaluation in evaluations]


def _load(rows: Any) -> tuple[Evaluation, ...]:
    return tuple(Evaluation.from_json(row) for row in rows or ())


def _delivery(row: RowMapping) -> DeliveryRecord:
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
    )
    batch = BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"])
    return DeliveryRecord(batch=batch, **{name: row[name] for name in names})


def _delivery_row(record: DeliveryRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != "batch"}
    return values | _batch_columns(record.batch)


def _batch_columns(batch: BatchKey) -> dict[str, Any]:
    return {"source": batch.source.value, "project_id": batch.project_id, "arrival_date": batch.arrival_date}


def _batch(row: RowMapping) -> BatchRecord:
    names = ("reason", "cure", "input_state", "deliveries", "hours_delivered", "hours_marked", "is_closed")
    return BatchRecord(
        key=BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"]),
        verdict=BatchVerdict(row["verdict"]), evaluations=_load(row["evaluations"]),
        **{name: row[name] for name in names},
    )  # fmt: skip


def _batch_row(record: BatchRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != "key"}
    return (
        values
        | _batch_columns(record.key)
        | {"verdict": record.verdict.value, "evaluations": _dump(record.evaluations)}
    )


def _slice(row: RowMapping) -> SliceRecord:
    names = ("reason", "cure", "is_final", "file_hash", "input_state", "code_version", "refused_state")
    return SliceRecord(
        table=row["table_name"], key=Slice(row["event_date"], row["project_id"]), verdict=Verdict(row["verdict"]),
        digest=Digest.parse(row["digest"]), figures=row["figures"] or {}, evaluations=_load(row["evaluations"]),
        refused_evaluations=_load(row["refused_evaluations"]),
        **{name: row[name] for name in names},
    )  # fmt: skip


def _slice_row(record: SliceRecord) -> dict[str, Any]:
    return {
        "table_name": record.table, "event_date": record.key.event_date, "project_id": record.key.project_id,
        "verdict": record.verdict.value, "reason": record.reason, "cure": record.cure, "is_final": record.is_final,
        "digest": str(record.digest), "file_hash": record.file_hash, "input_state": _sorted(record.input_state),
        "code_version": record.code_version, "refused_state": _sorted(record.refused_state),
        "figures": _sorted(record.figures), "evaluations": _dump(record.evaluations),
        "refused_evaluations": _dump(record.refused_evaluations),
    }  # fmt: skip


def _publication(row: RowMapping) -> PublicationRecord:
    names = ("snapshot_id", "parent_id", "cause", "run_id", "input_state", "code_version", "accepted_reason", "seconds",
             "published_at")  # fmt: skip
    return PublicationRecord(
        table=row["table_name"], key=Slice(row["event_date"], row["project_id"]),
        digest_before=Digest.parse(row["digest_before"]), digest_after=Digest.parse(row["digest_after"]),
        **{name: row[name] for name in names},
    )  # fmt: skip


def _publication_row(record: PublicationRecord, stamp: str) -> dict[str, Any]:
    return {
        "table_name": record.table, "event_date": record.key.event_date, "project_id": record.key.project_id,
        "snapshot_id": record.snapshot_id, "parent_id": record.parent_id, "digest_before": str(record.digest_before),
        "digest_after": str(record.digest_after), "cause": record.cause, "run_id": record.run_id,
        "input_state": _sorted(record.input_state), "code_version": record.code_version,
        "accepted_reason": record.accepted_reason, "seconds": record.seconds,
        "published_at": record.published_at or stamp,
    }  # fmt: skip


def _sorted(value: Mapping[str, Any] | None) -> Any:
    return None if value is None else json.loads(json.dumps(value, sort_keys=True))
