"""The lakehouse of a load that may have nothing to do: it reads heads from the catalog and starts Spark on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from resources.iceberg.branches import PREFIX, IsLive
from resources.iceberg.catalog_at_rest import CatalogAtRest, TableAtRest
from resources.iceberg.creation import KEPT_PROPERTIES
from resources.iceberg.lake_identity import NAMESPACE, Purpose, is_one_lake
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.lost_files import lost_at_rest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline_assets.tables.table import Table
    from resources.ledger.store import LakeOfLedger


class RestingLakehouse(Lakehouse):
    """Answers from the catalog's database until Spark has started; from then on it behaves as its base class."""

    def __init__(self, settings: Settings, start: Callable[[], SparkSession]) -> None:
        """Take `start`, which returns the session with the settings' catalog configured; it is called at most once."""
        super().__init__(start, settings.catalog_name)
        self._settings = settings
        self._catalog = CatalogAtRest(settings)

    def close(self) -> None:
        """Close the connection to the catalog's database."""
        self._catalog.close()

    def head(self, table: Table) -> int:
        """As `Lakehouse.head`."""
        resting = self._at_rest(table)
        return super().head(table) if resting is None or resting.head is None else resting.head

    def lost_slices(self, table: Table, snapshot_id: int, slices: Collection[Slice]) -> dict[Slice, str]:
        """As `Lakehouse.lost_slices`, by the metadata file; it needs no JVM."""
        resting = self._catalog.table(table)
        if resting is None or resting.head != snapshot_id:
            return super().lost_slices(table, snapshot_id, slices)
        lost = lost_at_rest(resting, {key.event_date for key in slices})
        return {key: path for key, path in lost.items() if key in slices}

    def knows(self, table: Table) -> bool:
        """As `Lakehouse.knows`."""
        return self._at_rest(table) is not None or super().knows(table)

    def ensure(self, table: Table) -> None:
        """Do nothing where the table is as this version creates it; otherwise as `Lakehouse.ensure`."""
        resting = self._at_rest(table)
        is_whole = (
            resting is not None
            and resting.head is not None
            and resting.is_ordered
            and resting.columns >= {column.name for column in table.columns}
            and resting.properties.items() >= KEPT_PROPERTIES.items()
        )
        if not is_whole:
            super().ensure(table)

    def sweep(self, tables: Sequence[Table], is_live: IsLive) -> list[str]:
        """Do nothing where no table has a branch of ours; otherwise as `Lakehouse.sweep`."""
        resting = [self._at_rest(table) for table in tables]
        if all(table is not None and not any(name.startswith(PREFIX) for name in table.refs) for table in resting):
            return []
        return super().sweep(tables, is_live)

    def require_own(
        self, settings: Settings, ours: Collection[Table], purpose: Purpose, ledger: LakeOfLedger | None
    ) -> None:
        """As `Lakehouse.require_own`; needs no JVM where all parts name each other, or where the catalog's database tells."""
        known = self._catalog.namespace_properties(NAMESPACE)
        if not is_one_lake(settings, known, lambda: self._catalog.outside(ours), purpose, ledger):
            super().require_own(settings, ours, purpose, ledger)

    def _at_rest(self, table: Table) -> TableAtRest | None:
        return None if self.engine is not None else self._catalog.table(table)
