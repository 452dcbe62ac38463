"""Attaches a ledger to a lake whose own ledger is lost: measures the tables, reads decisions back, and names it in the mark."""

from __future__ import annotations

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.load.ledger_sync import read_back, sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import QUARANTINE
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose, read_mark

UNKNOWN = (
    "which days were final, since when, and from which rows on growth is bounded: until a load has judged them again, changes of"
    " any size are published",
    "accepted changes and accepted missing deliveries, each with its reason",
    "publications whose snapshots have expired, and of all of them the inputs, settings and checks: days are built again, and a"
    " rollback reaches back to what is measured here",
    "refused deliveries, the bytes' digest of all others, hours and markers: what landing still holds is read again",
    "golden totals, how late rows arrived, objects outside of the loaded days",
    "hours that a recovery claimed, open rebuilds, notices and which receiver got them, cuts of all tables, runs and processes",
)
"""What no table and no object of the warehouse tells."""


def attach_ledger(runtime: Runtime, run_id: str) -> None:
    """Record in this ledger what the tables and the warehouse tell, then make it the lake's; repeatable after a failure.

    Raises LakehouseError where catalog and warehouse are no lake, LedgerError for the ledger of another lake.
    """
    ledger, settings = runtime.ledger.lake, runtime.settings
    with lakehouse_failures("tables"):
        runtime.lakehouse.require_own(settings, EVERY_TABLE, Purpose.KEEP, None)
        mark = read_mark(settings)
        if mark is None:
            raise LakehouseError(
                settings.warehouse_url, "holds no lake", "Load days: the first load takes the ledger that is set"
            )
        ledger.require(mark.lake)
        read_back(runtime.ledger, runtime.log)
        for table in EVERY_TABLE:
            if table is not QUARANTINE and runtime.lakehouse.knows(table):
                sync_ledger(runtime, table, run_id)
    ledger.bind(mark.lake)
    now = read_mark(settings)
    if now is None or now.id != mark.id:
        reason = "was attached to another catalog while its tables were measured"
        raise LakehouseError(settings.warehouse_url, reason, "Look with tidemark attach, then do the same again")
    # Last and in one step: until then the lake's own ledger, if it is not lost after all, is the one that may write.
    now.of_ledger(ledger.identity(), ledger.url).write(settings)
