"""All tables in topological order: the one list the load path, the graph and the shell walk.

Lives here: the order. Put here: a new table. Keep out: everything about a table (its own module).
"""

from __future__ import annotations

from pipeline_assets.domain.slices import Source
from pipeline_assets.tables.active_users import ACTIVE_USERS
from pipeline_assets.tables.daily_revenue import DAILY_REVENUE
from pipeline_assets.tables.event_counts import EVENT_COUNTS
from pipeline_assets.tables.quarantine import QUARANTINE
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import AggregateTable, Table

AGGREGATES: tuple[AggregateTable, ...] = (DAILY_REVENUE, EVENT_COUNTS, ACTIVE_USERS)
DERIVED: tuple[Table, ...] = (REFINED_EVENTS, *AGGREGATES)
ASSET_TABLES: tuple[Table, ...] = (*RAW_TABLES.values(), *DERIVED)
ALL_TABLES: tuple[Table, ...] = (*ASSET_TABLES, QUARANTINE)

SOURCE_OF_TABLE: dict[str, Source] = {table.key: source for source, table in RAW_TABLES.items()}


def table_by_key(key: str) -> Table:
    """The table of an asset key such as `refined/events`; raises KeyError."""
    return {table.key: table for table in ALL_TABLES}[key]
