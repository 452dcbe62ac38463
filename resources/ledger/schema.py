"""The ledger's SQL tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

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
