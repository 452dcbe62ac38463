"""The builder of each kind of derived table; no other module knows all kinds."""

from __future__ import annotations

from typing import Any

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.load.build.aggregate import AggregateBuilder
from pipeline_assets.load.build.as_of import AsOfBuilder
from pipeline_assets.load.build.builder import Builder
from pipeline_assets.load.build.refined import RefinedBuilder
from pipeline_assets.load.build.snapshot import SnapshotBuilder
from pipeline_assets.load.build.validity import ValidityBuilder
from pipeline_assets.tables.kinds import AGGREGATE, AS_OF, REFINED, SNAPSHOT, VALIDITY, TableKind
from pipeline_assets.tables.table import Table

BUILDERS: dict[TableKind, type[Builder[Any]]] = {
    REFINED: RefinedBuilder,
    AGGREGATE: AggregateBuilder,
    SNAPSHOT: SnapshotBuilder,
    VALIDITY: ValidityBuilder,
    AS_OF: AsOfBuilder,
}


def builder_of(table: Table) -> Builder[Any]:
    """The builder of a derived table; raises UsageError for a table of a kind without a builder."""
    builder = BUILDERS.get(table.kind)
    if builder is None:
        reason = f"is a {table.kind.name} table, which nothing builds"
        raise UsageError(table.key, reason, f"Built are {', '.join(kind.name for kind in BUILDERS)} tables")
    return builder(table)
