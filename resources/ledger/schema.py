"""The ledger's SQL tables, and the conversion between records and rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from enum import Enum
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, TypeVar, get_type_hints

import sqlalchemy as sa

from pipeline_assets.domain.changes import Baseline, Cause
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.rebuilds import ReportedSlice, SliceDifference
from pipeline_assets.domain.records import BatchDay, Head, InputDay, InputState, Rejection
from pipeline_assets.domain.slices import Digest, Slice, Source

SCHEMA_VERSION = 12
METADATA = sa.MetaData()


def _table(name: str, *columns: Any, **options: Any) -> sa.Table:
    return sa.Table(f"tidemark_{name}", METADATA, *columns, **options)


def _columns(names: str, kind: Any = sa.String, **options: Any) -> list[sa.Column[Any]]:
    """Columns of one kind; `*` before a name: part of the key, `!`: not null."""
    return [
        sa.Column(name.strip("*!"), kind, primary_key=name[0] == "*", nullable=name[0] not in "*!", **options)
        for name in names.split()
    ]


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=True)


def _of_a_slice() -> list[sa.Column[Any]]:
    return [
        *_columns("*table_name"), *_columns("*event_date", sa.Date), *_columns("*project_id !verdict reason cure"),
        *_columns("!is_final", sa.Boolean), *_columns("!digest file_hash"), *_columns("input_state", sa.JSON),
        *_columns("code_version"), *_columns("refused_state figures evaluations refused_evaluations", sa.JSON),
        *_columns("run_id recorded_at final_at"), *_columns("baseline", sa.JSON),
    ]  # fmt: skip


def _of_a_day() -> list[sa.Column[Any]]:
    return [*_columns("!table_name"), *_columns("!event_date", sa.Date), *_columns("!project_id")]


SCHEMA = _table("schema", *_columns("!version", sa.Integer))
HEADS = _table("heads", *_columns("*table_name"), *_columns("!snapshot_id", sa.BigInteger))
DELIVERIES = _table(
    "deliveries", *_columns("*source *object_key"), *_columns("*is_accepted", sa.Boolean), *_columns("!project_id"),
    *_columns("!arrival_date", sa.Date), *_columns("!etag"), *_columns("size_bytes", sa.BigInteger), *_columns("sha256"),
    *_columns("lines rows quarantined blank", sa.BigInteger), *_columns("error code_version run_id recorded_at"),
    # Reason -> number of quarantined lines, and of unreadable values by column; null without any.
    *_columns("line_reasons", sa.JSON(none_as_null=True)),
    sa.Index("tidemark_deliveries_by_day", "source", "project_id", "arrival_date"),
)  # fmt: skip
HAS_REFUSALS = sa.or_(
    # A literal: the database uses the partial index only for exactly this condition.
    DELIVERIES.c.quarantined > sa.literal_column("0"),
    DELIVERIES.c.error.is_not(None),
    DELIVERIES.c.line_reasons.is_not(None),
)
"""Deliveries with refused lines or unreadable values, or refused whole: few among tens of millions."""
sa.Index(
    "tidemark_deliveries_refused", DELIVERIES.c.project_id, DELIVERIES.c.arrival_date,
    sqlite_where=HAS_REFUSALS, postgresql_where=HAS_REFUSALS,
)  # fmt: skip
BATCHES = _table(
    "batches", *_columns("*source *project_id"), *_columns("*arrival_date", sa.Date),
    *_columns("!verdict reason cure input_state"), *_columns("deliveries hours_delivered hours_marked", sa.Integer),
    *_columns("is_closed", sa.Boolean), *_columns("evaluations", sa.JSON), *_columns("run_id recorded_at"),
    *_columns("hours", sa.JSON),
    sa.Index("tidemark_batches_by_verdict", "verdict", "source", "arrival_date", "project_id"),
)  # fmt: skip
BATCH_DAYS = _table(
    "batch_days", *_columns("*source *project_id"), *_columns("*arrival_date *event_date", sa.Date),
    *_columns("!digest lineage"),
    *_columns("lateness", sa.Text),
    sa.Index("tidemark_batch_days_by_event", "source", "project_id", "event_date"),
)  # fmt: skip
SLICES = _table(
    "slices", *_of_a_slice(),
    # Finds the few faults, and counts verdicts without reading texts.
    sa.Index("tidemark_slices_by_verdict", "verdict", "table_name", "event_date", "project_id"),
)  # fmt: skip
PUBLICATIONS = _table(
    "publications", _number("id"), *_of_a_day(), *_columns("!snapshot_id parent_id", sa.BigInteger),
    *_columns("digest_before digest_after cause accepted_reason"), *_columns("input_state", sa.JSON),
    *_columns("code_version"), *_columns("figures", sa.JSON), *_columns("run_id"), *_columns("seconds", sa.Float),
    *_columns("published_at"),
    *_columns("was_final", sa.Boolean),
    *_columns("pins settings", sa.JSON),
    # The parent is part of the key, as main may be set back to a snapshot, which then follows another parent.
    sa.UniqueConstraint("table_name", "event_date", "project_id", "snapshot_id", "parent_id"),
    sa.Index("tidemark_publications_by_final", "was_final", "table_name"),
)  # fmt: skip
RUNS = _table(
    "runs", *_columns("*run_id"), *_columns("tables", sa.JSON), *_columns("first_day last_day", sa.Date),
    *_columns("started_at finished_at"), *_columns("verdicts snapshots skew", sa.JSON),
)  # fmt: skip
CUTS = _table(
    "cuts", _number("number"), *_columns("run_id !published_at"),
    # Table -> snapshot id as text: ids exceed the integers that JSON readers hold exactly.
    *_columns("!snapshots", sa.JSON),
    sa.Index("tidemark_cuts_by_run", "run_id"), sa.Index("tidemark_cuts_by_time", "published_at"),
)  # fmt: skip
EXCLUSIONS = _table(
    "exclusions", _number("id"), *_columns("!source !project_id"), *_columns("!arrival_date", sa.Date),
    *_columns("!object_key !etag sha256 !reason run_id !excluded_at"),
    *_columns("lift_reason lift_run_id lifted_at"),
    sa.Index("tidemark_exclusions_by_day", "source", "project_id", "arrival_date"),
)  # fmt: skip
STRAYS = _table(
    "strays", *_columns("*source *object_key !project_id"), *_columns("!arrival_date", sa.Date), *_columns("seen_at")
)
HOLDS = _table(
    "holds", _number("id"), *_of_a_day(), *_columns("reason run_id held_at"),
    *_columns("release_reason release_run_id released_at"),
    sa.Index("tidemark_holds_by_day", "table_name", "project_id", "event_date"),
)  # fmt: skip
PROCESSES = _table(
    "processes", *_columns("*run_id job host place"), *_columns("pid", sa.Integer),
    *_columns("started_ticks", sa.BigInteger), *_columns("steps", sa.Integer), *_columns("begun_at"),
    *_columns("beats", sa.BigInteger), *_columns("beat_at ended_at lost_at"),
    # Of observers: the last heartbeat seen, and the number of observations since without a new one.
    *_columns("seen_beats", sa.BigInteger), *_columns("still_looks", sa.Integer), *_columns("looked_at"),
)  # fmt: skip
LAKE = _table("lake", *_columns("*number", sa.Integer), *_columns("!id"))
"""The identities of the lake and of the ledger itself."""
DECISIONS = _table("decisions", *_columns("*name recorded_at"))
NOTICES = _table(
    "notices", _number("number"), *_columns("!id", unique=True), *_columns("!kind"), *_of_a_day(),
    *_columns("!body", sa.JSON), *_columns("run_id recorded_at"),
    sa.Index("tidemark_notices_by_day", "table_name", "event_date", "project_id"),
    # Receivers remember a number, so none may be reused, even after the last rows are deleted.
    sqlite_autoincrement=True,
)  # fmt: skip
RECEIVERS = _table(
    "receivers", *_columns("*id place"), *_columns("!sent_number", sa.Integer), *_columns("seen_at"),
    *_columns("failures", sa.Integer), *_columns("failed_at error retry_at"),
    *_columns("refused_body"), *_columns("refusals", sa.Integer),
)  # fmt: skip
"""Receivers of notices, by a hash of the address, which is a secret that grants access."""
SET_ASIDE = _table(
    "set_aside", *_columns("*receiver_id"), *_columns("*first_number !last_number !notices", sa.Integer),
    *_columns("run_id error set_aside_at"),
)  # fmt: skip
"""Notices that a receiver refused for good, until it accepts them; later notices overtake them."""
RECOVERIES = _table(
    "recoveries", *_columns("*project_id"), *_columns("*arrival_date", sa.Date), *_columns("*hour", sa.Integer),
    *_columns("begun_at ended_at"),
    # Object -> size, for an hour on record as missing; null for other hours.
    *_columns("brought", sa.JSON(none_as_null=True)),
)  # fmt: skip
"""Claims of recoveries on hours below the backfill prefix, until the hour's marker is written."""
REBUILDS = _table(
    "rebuilds", _number("number"), *_columns("!tables", sa.JSON), *_columns("!first_day !last_day", sa.Date),
    *_columns("!projects", sa.JSON), *_columns("!reason !who !state run_id started_at finished_at"),
    *_columns("swap_after", sa.Integer), *_columns("swap_runs", sa.JSON), *_columns("answered_by answer"),
    # Branches are named after the number, so none may be reused, even after the last rows are deleted.
    sqlite_autoincrement=True,
)  # fmt: skip
REBUILT_SLICES = _table(
    "rebuilt_slices", *_columns("*rebuild", sa.Integer), *_of_a_slice(), *_columns("published"),
    *_columns("difference blocked_by", sa.JSON),
    *_columns("reported", sa.JSON(none_as_null=True)),
)  # fmt: skip
GOLDEN_TOTALS = _table(
    "golden_totals", *_columns("*source"), *_columns("*event_date", sa.Date),
    # As text, because no numeric type of every database holds all decimals exactly.
    *_columns("*project_id *table_name *measure !value origin recorded_at"),
)  # fmt: skip
GOLDEN_FAULTS = _table("golden_faults", _number("id"), *_columns("!source !origin !reason fix recorded_at"))


_BESIDE = _CROSS_DAY, _JUDGED_BY, _WAITS_FOR, _DELIVERED = "rivals", "code", "waits for", "delivered"
"""Keys of a stored state beside upstream days, which have the form `table:day`."""


def input_state_of(stored: Mapping[str, str] | None) -> InputState | None:
    """Parse a stored input state; None where there is none or it cannot be parsed."""
    if stored is None:
        return None
    try:
        upstream = {_input_day(name): Digest.parse(text) for name, text in stored.items() if name not in _BESIDE}
    except ValueError:
        return None
    return InputState(upstream, stored.get(_CROSS_DAY), stored.get(_DELIVERED))


@lru_cache(maxsize=1 << 16)
def _input_day(name: str) -> InputDay:
    table, _, day = name.rpartition(":")
    return InputDay(table, date.fromisoformat(day))


def input_state_json(state: InputState | None, **beside: str | None) -> dict[str, str] | None:
    """Return the stored form of an input state, sorted by key."""
    if state is None:
        return None
    entries = {f"{name.table}:{name.day.isoformat()}": str(digest) for name, digest in state.upstream.items()}
    more = {_CROSS_DAY: state.cross_day, _DELIVERED: state.delivered, **beside}
    return dict(sorted((entries | {name: text for name, text in more.items() if text is not None}).items()))


def _rejection_of(stored: Mapping[str, str] | None) -> Rejection | None:
    inputs = input_state_of(stored)
    if stored is None or inputs is None:
        return None
    waits_for = tuple(date.fromisoformat(day) for day in stored.get(_WAITS_FOR, "").split(",") if day)
    return Rejection(inputs, stored.get(_JUDGED_BY), waits_for)


def rejection_json(rejection: Rejection | None) -> dict[str, str] | None:
    """Return the stored form of a rejection."""
    if rejection is None:
        return None
    waits_for = ",".join(day.isoformat() for day in rejection.waits_for) or None
    return input_state_json(rejection.inputs, **{_JUDGED_BY: rejection.judged_by, _WAITS_FOR: waits_for})


@lru_cache(maxsize=1 << 14)
def _batch_key(source: str, project_id: str, arrival_date: date) -> BatchKey:
    """Deliveries of a batch share one key, to save memory: a load of a month has a hundred per batch."""
    return BatchKey(Source(source), project_id, arrival_date)


def _sorted(value: Mapping[str, Any] | None) -> Any:
    return None if value is None else json.loads(json.dumps(value, sort_keys=True))


def _optional(read: Callable[[Any], Any], write: Callable[[Any], Any]) -> tuple[Callable[..., Any], ...]:
    return (
        lambda stored: None if stored is None else read(stored),
        lambda value: None if value is None else write(value),
    )


_COLUMNS: dict[Any, tuple[tuple[str, ...], Callable[..., Any]]] = {
    BatchKey: (("source", "project_id", "arrival_date"), _batch_key),
    Slice: (("event_date", "project_id"), Slice),
}
_FORMS: dict[Any, tuple[Callable[..., Any], ...]] = {
    Digest: (Digest.parse, str),
    Cause: (lambda text: Cause.parse(text or ""), attrgetter("text")),
    Baseline | None: _optional(Baseline.from_json, Baseline.to_json),
    InputState | None: (input_state_of, input_state_json),
    Rejection | None: (_rejection_of, rejection_json),
    SliceDifference | None: _optional(SliceDifference.from_json, SliceDifference.to_json),
    ReportedSlice | None: _optional(ReportedSlice.from_json, ReportedSlice.to_json),
    datetime: (datetime.fromisoformat, datetime.isoformat),
    datetime | None: _optional(datetime.fromisoformat, datetime.isoformat),
    tuple[Evaluation, ...]: (
        lambda stored: tuple(map(Evaluation.from_json, stored or ())),
        lambda evaluations: [one.to_json() for one in evaluations],
    ),
    tuple[tuple[str, int], ...]: (lambda stored: tuple((stored or {}).items()), lambda pairs: dict(pairs) or None),
    tuple[str, ...]: (lambda stored: tuple(stored or ()), list),
    tuple[int, ...] | None: _optional(tuple, list),
    Mapping[str, float]: (lambda stored: stored or {}, _sorted),
    Mapping[str, float] | None: (lambda stored: stored, _sorted),
    Mapping[str, Any] | None: (lambda stored: stored, _sorted),
    Mapping[str, int] | None: _optional(
        lambda stored: {name: int(number) for name, number in stored.items()},
        lambda numbers: {name: str(numbers[name]) for name in sorted(numbers)},
    ),
}
"""Type of a field -> how its column is read and written; others are stored as they are."""
_RENAMED = {
    "table": "table_name", "hint": "cure", "rejection": "refused_state", "first": "first_day", "last": "last_day",
}  # fmt: skip
_RecordT = TypeVar("_RecordT")


@cache
def _fields(kind: Any, *without: str) -> tuple[dict[str, str], dict[str, tuple[str, Any, Any]], dict[str, Any]]:
    plain, coded, keys = dict[str, str](), dict[str, tuple[str, Any, Any]](), dict[str, Any]()
    for name, hint in get_type_hints(kind).items():
        column = _RENAMED.get(name, name)
        if name in without:
            continue
        if hint in _COLUMNS:
            keys[name] = _COLUMNS[hint]
        elif hint in _FORMS or (isinstance(hint, type) and issubclass(hint, Enum)):
            coded[name] = column, *(_FORMS.get(hint) or (hint, attrgetter("value")))
        else:
            plain[name] = column
    return plain, coded, keys


def record_of(kind: Callable[..., _RecordT], row: Mapping[Any, Any], **known: Any) -> _RecordT:
    """Make a record of a row; `known`: fields that the row lacks or names differently."""
    plain, coded, keys = _fields(kind, *known)
    for name, column in plain.items():
        known[name] = row[column]
    for name, (column, read, _) in coded.items():
        known[name] = read(row[column])
    for name, (columns, make) in keys.items():
        known[name] = make(*[row[column] for column in columns])
    return kind(**known)


def row_of(record: Any, *without: str) -> dict[str, Any]:
    """Make a row of a record, without these fields."""
    plain, coded, keys = _fields(record.__class__, *without)
    row = {column: getattr(record, name) for name, column in plain.items()}
    row |= {column: write(getattr(record, name)) for name, (column, _, write) in coded.items()}
    for name in keys:
        row |= columns_of(getattr(record, name))
    return row


def columns_of(key: BatchKey | Slice) -> dict[str, Any]:
    """Return the columns that name a batch or a slice."""
    if isinstance(key, Slice):
        return {"event_date": key.event_date, "project_id": key.project_id}
    return {"source": key.source.value, "project_id": key.project_id, "arrival_date": key.arrival_date}


def is_key(table: sa.Table, key: BatchKey | Slice, **more: Any) -> sa.ColumnElement[bool]:
    """Return the condition on a row's batch or slice, and on other columns."""
    return sa.and_(*(table.c[name] == value for name, value in (columns_of(key) | more).items()))


def batch_day_row(day: date, part: BatchDay, known: Mapping[tuple[date, str], str | None]) -> dict[str, Any]:
    """Return a row of `batch_days` without the batch; `known` is (day, digest) -> recorded sketch."""
    digest = str(part.digest)
    lateness = part.lateness.to_text() if part.lateness is not None else known.get((day, digest))
    return {"event_date": day, "digest": digest, "lineage": part.lineage, "lateness": lateness}


def head_of(snapshot_id: int) -> Head:
    """Parse a stored head: a doubted head is the negative of its snapshot id, which no table's head equals."""
    return Head(abs(snapshot_id), snapshot_id > 0)
