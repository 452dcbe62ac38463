"""The ledger's SQL tables.

Contains: tables, columns, indexes, the schema's version.
Add here: a column, together with a migration (migrations.py).
Does not contain: records (pipeline_assets/domain/records.py), the way from and to a row (rows.py).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

SCHEMA_VERSION = 11
METADATA = sa.MetaData()


def _table(name: str, *columns: Any, **options: Any) -> sa.Table:
    return sa.Table(f"tidemark_{name}", METADATA, *columns, **options)


def _key(name: str, kind: Any = sa.String) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True)


def _of_a_slice() -> list[sa.Column[Any]]:
    """What is recorded of a slice, on main or beside it."""
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
HEADS = _table(
    "heads", _key("table_name"), sa.Column("snapshot_id", sa.BigInteger, nullable=False),
    # The version of the row hash that all digests of the table's slices are known to have.
    sa.Column("row_hash_version", sa.Integer),
)  # fmt: skip
DELIVERIES = _table(
    "deliveries", _key("source"), _key("object_key"), _key("is_accepted", sa.Boolean),
    sa.Column("project_id", sa.String, nullable=False),
    sa.Column("arrival_date", sa.Date, nullable=False), sa.Column("etag", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger), sa.Column("sha256", sa.String), sa.Column("lines", sa.BigInteger),
    sa.Column("rows", sa.BigInteger), sa.Column("quarantined", sa.BigInteger), sa.Column("blank", sa.BigInteger),
    sa.Column("error", sa.String), sa.Column("code_version", sa.String),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
    # Reason -> quarantined lines; null where there are none, or where an older version recorded them.
    sa.Column("line_reasons", sa.JSON(none_as_null=True)),
    sa.Index("tidemark_deliveries_by_day", "source", "project_id", "arrival_date"),
)  # fmt: skip
HAS_REFUSALS = sa.or_(
    # A number of the statement, not a value beside it: the database has to see that the question is the index's own.
    DELIVERIES.c.quarantined > sa.literal_column("0"),
    DELIVERIES.c.error.is_not(None),
)
"""Of a delivery: lines of it, or all of it, were refused; hardly any, so that an index finds them among tens of millions."""
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
    # A sketch of how late its rows arrived; null where an older version loaded them.
    sa.Column("lateness", sa.Text),
    sa.Index("tidemark_batch_days_by_event", "source", "project_id", "event_date"),
)  # fmt: skip
SLICES = _table(
    "slices", *_of_a_slice(),
    # Faults are few, and counts of verdicts need none of the texts.
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
    # Whether the slice stood final before it; null where an older version recorded it.
    sa.Column("was_final", sa.Boolean),
    # What it was built from, so that it can be built again; null where an older version recorded it.
    sa.Column("pins", sa.JSON), sa.Column("settings", sa.JSON),
    # Main may come back to a snapshot: set back behind our back, it follows another one then.
    sa.UniqueConstraint("table_name", "event_date", "project_id", "snapshot_id", "parent_id"),
    sa.Index("tidemark_publications_by_final", "was_final", "table_name"),
)  # fmt: skip
RUNS = _table(
    "runs", _key("run_id"), sa.Column("tables", sa.JSON), sa.Column("first_day", sa.Date),
    sa.Column("last_day", sa.Date), sa.Column("started_at", sa.String), sa.Column("finished_at", sa.String),
    sa.Column("verdicts", sa.JSON), sa.Column("snapshots", sa.JSON),
    # Of heavy steps: what was forecast and what tasks told (domain/skew.py); null where an older version recorded the run.
    sa.Column("skew", sa.JSON),
)  # fmt: skip
CUTS = _table(
    "cuts", sa.Column("number", sa.Integer, primary_key=True, autoincrement=True), sa.Column("run_id", sa.String),
    sa.Column("published_at", sa.String, nullable=False),
    # Table -> snapshot, as text: snapshot ids exceed what readers of JSON hold exactly.
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
    # Of the lift; an exclusion stands while there is none.
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
    # Of the release; a hold stands while there is none.
    sa.Column("release_reason", sa.String), sa.Column("release_run_id", sa.String), sa.Column("released_at", sa.String),
    sa.Index("tidemark_holds_by_day", "table_name", "project_id", "event_date"),
)  # fmt: skip
PROCESSES = _table(
    "processes", _key("run_id"),
    sa.Column("job", sa.String), sa.Column("host", sa.String), sa.Column("place", sa.String), sa.Column("pid", sa.Integer),
    sa.Column("started_ticks", sa.BigInteger), sa.Column("steps", sa.Integer), sa.Column("begun_at", sa.String),
    sa.Column("beats", sa.BigInteger), sa.Column("beat_at", sa.String),
    sa.Column("ended_at", sa.String), sa.Column("lost_at", sa.String),
    # Of observers: the beat they saw last, and in how many looks since it stood still.
    sa.Column("seen_beats", sa.BigInteger), sa.Column("still_looks", sa.Integer), sa.Column("looked_at", sa.String),
)  # fmt: skip
LAKE = _table("lake", _key("number", sa.Integer), sa.Column("id", sa.String, nullable=False))
"""One row at most: the lake whose ledger this is."""
DECISIONS = _table("decisions", _key("name"), sa.Column("recorded_at", sa.String))
"""Objects in the warehouse whose acts this ledger holds."""
NOTICES = _table(
    "notices", sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String, nullable=False, unique=True), sa.Column("kind", sa.String, nullable=False),
    sa.Column("table_name", sa.String, nullable=False), sa.Column("event_date", sa.Date, nullable=False),
    sa.Column("project_id", sa.String, nullable=False), sa.Column("body", sa.JSON, nullable=False),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
    sa.Index("tidemark_notices_by_day", "table_name", "event_date", "project_id"),
    # A receiver remembers the number it was told last, so that no number comes twice, also where the last rows are gone.
    sqlite_autoincrement=True,
)  # fmt: skip
RECEIVERS = _table(
    "receivers", _key("id"), sa.Column("place", sa.String), sa.Column("sent_number", sa.Integer, nullable=False),
    sa.Column("seen_at", sa.String),
    # Of the last attempt that failed; null where it did not.
    sa.Column("failures", sa.Integer), sa.Column("failed_at", sa.String), sa.Column("error", sa.String),
    sa.Column("retry_at", sa.String),
    # The body that it refused for good last, and how often.
    sa.Column("refused_body", sa.String), sa.Column("refusals", sa.Integer),
)  # fmt: skip
"""Addresses that notices are sent to, by a hash: the address itself opens them."""
SET_ASIDE = _table(
    "set_aside", _key("receiver_id"), _key("first_number", sa.Integer),
    sa.Column("last_number", sa.Integer, nullable=False), sa.Column("notices", sa.Integer, nullable=False),
    sa.Column("run_id", sa.String), sa.Column("error", sa.String), sa.Column("set_aside_at", sa.String),
)  # fmt: skip
"""Notices that a receiver refused for good, so that later ones pass them; gone once it took them."""
RECOVERIES = _table(
    "recoveries", _key("project_id"), _key("arrival_date", sa.Date), _key("hour", sa.Integer),
    sa.Column("begun_at", sa.String), sa.Column("ended_at", sa.String),
)  # fmt: skip
"""Hours that a recovery writes below the backfill prefix; a claim ends with the hour's marker."""
REBUILDS = _table(
    "rebuilds", sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("tables", sa.JSON, nullable=False), sa.Column("first_day", sa.Date, nullable=False),
    sa.Column("last_day", sa.Date, nullable=False), sa.Column("projects", sa.JSON, nullable=False),
    sa.Column("reason", sa.String, nullable=False), sa.Column("who", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False), sa.Column("run_id", sa.String), sa.Column("started_at", sa.String),
    sa.Column("finished_at", sa.String), sa.Column("swap_after", sa.Integer), sa.Column("swap_runs", sa.JSON),
    sa.Column("answered_by", sa.String), sa.Column("answer", sa.String),
    # A branch is named for the number, so that none comes twice, also where the last rows are gone.
    sqlite_autoincrement=True,
)  # fmt: skip
REBUILT_SLICES = _table(
    "rebuilt_slices", _key("rebuild", sa.Integer), *_of_a_slice(),
    sa.Column("published", sa.String), sa.Column("difference", sa.JSON), sa.Column("blocked_by", sa.JSON),
    # What the report said of it that a person was shown last; null before there is one.
    sa.Column("reported", sa.JSON(none_as_null=True)),
)  # fmt: skip
"""Slices that wait beside main, as `slices` has those of main."""
GOLDEN_TOTALS = _table(
    "golden_totals", _key("source"), _key("event_date", sa.Date), _key("project_id"), _key("table_name"), _key("measure"),
    # As text: no number of a database holds every decimal exactly.
    sa.Column("value", sa.String, nullable=False), sa.Column("origin", sa.String), sa.Column("recorded_at", sa.String),
)  # fmt: skip
"""What an outside system says of published days, as it was read last; compared whenever somebody asks."""
GOLDEN_FAULTS = _table(
    "golden_faults", sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("source", sa.String, nullable=False), sa.Column("origin", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False), sa.Column("fix", sa.String), sa.Column("recorded_at", sa.String),
)  # fmt: skip
"""What was no total when it was read last: lines, and files."""
GOLDEN_RESULTS = _table(
    "golden_results", _key("table_name"), _key("event_date", sa.Date), _key("project_id"),
    # What did not agree; null where all totals did.
    sa.Column("mismatch", sa.String), sa.Column("notice_id", sa.String),
    sa.Column("run_id", sa.String), sa.Column("recorded_at", sa.String),
)  # fmt: skip
"""What comparing a published day with its golden totals gave last, as far as people were told."""
