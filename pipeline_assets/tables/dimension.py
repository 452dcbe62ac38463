"""Declares the two tables of every dimension: daily snapshots, and validity intervals."""

from __future__ import annotations

import re

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Check
from pipeline_assets.tables.kinds import SNAPSHOT, VALIDITY
from pipeline_assets.tables.table import Dimension, Measure, Table, TableColumn

_PROJECT = TableColumn("project_id", "string", "`all`: a dimension belongs to no project", is_required=True)
_ID = TableColumn("id", "string", "as the delivery spells it, without white space around it")


def dimension(name: str, description: str) -> Dimension:
    """Return the dimension delivered below `dimensions/{name}/`; raise ValueError if `name` is not a valid table name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        msg = f"dimension {name[:50]!r} is not a name of small letters, digits and _"
        raise ValueError(msg)
    snapshot = Table(
        key=f"dimensions/{name}_snapshot",
        description=f"{description} One row per day and id, as delivered below `dimensions/{name}/`.",
        columns=(
            TableColumn("snapshot_date", "date", "UTC day that the snapshot is of; the partition", is_required=True),
            _PROJECT,
            _ID,
            TableColumn("name", "string"),
            TableColumn("status", "string", "as the delivery spells it, without white space around it"),
            TableColumn("attributes", "string", "JSON text of the further columns, keys sorted; null without any"),
            TableColumn("_object_key", "string", "the delivery of the row"),
            TableColumn("_object_etag", "string", "its version when it was read"),
            TableColumn("_line_number", "int", "line in the object, from 1"),
        ),
        write_order=("id",),
        kind=SNAPSHOT,
        version="2",
        day_column="snapshot_date",
        checks=(Check.SNAPSHOT_IS_WHOLE, Check.COUNT_IS_EXPECTED),
        measures={"rows": Measure(lambda: F.count(F.lit(1)))},
        recovery="Correct the snapshot in landing and load the day again, or accept its count with a reason.",
    )
    validity = Table(
        key=f"dimensions/{name}_validity",
        description=f"{description} From when until when each id had which status, month by month.",
        columns=(
            TableColumn("validity_month", "date", "first day of the month; the partition", is_required=True),
            _PROJECT,
            _ID,
            TableColumn("status", "string"),
            TableColumn(
                "active_start_date", "date", "first day with this status, or of the month", sources=("snapshot_date",)
            ),
            TableColumn("active_end_date", "date", "last day that a delivery says so", sources=("snapshot_date",)),
            TableColumn("attributes", "string", "JSON text of the further columns of delivered intervals, keys sorted"),
        ),
        write_order=("id", "active_start_date"),
        kind=VALIDITY,
        day_column="validity_month",
        upstream=(snapshot.key,),
        # Version 2 adds `attributes`.
        version="2",
        checks=(Check.RECONCILES_WITH_SNAPSHOTS, Check.INTERVALS_ARE_WHOLE),
        measures={"rows": Measure(lambda: F.count(F.lit(1)))},
        recovery=(
            f"Recover {snapshot.key} for the days of the month; this table follows. Delivered intervals: correct the newest "
            "delivery in landing and load its day again, or accept its counts with a reason."
        ),
    )
    return Dimension(name, snapshot, validity)
