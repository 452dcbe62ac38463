"""Which promise the publishes of a deployment keep, and which publisher keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from resources.iceberg.pointers import share_a_database
from resources.publishing.one_transaction import OneTransaction
from resources.publishing.request import Publisher
from resources.publishing.table_by_table import TableByTable
from resources.publishing.tables_together import TablesTogether

if TYPE_CHECKING:
    from pipeline_assets.domain.settings import Settings
    from resources.iceberg.lakehouse import Lakehouse
    from resources.ledger.store import Ledger


class Promise(StrEnum):
    """What a reader may rely on while a run publishes."""

    ONE_TRANSACTION = "one transaction"
    """Every table and the ledger change at the same moment, or none does."""
    TABLES_TOGETHER = "tables together"
    """Every table changes at the same moment, or none does; the ledger follows, after a kill by a look of the next run."""
    TABLE_BY_TABLE = "table by table"
    """Each table changes in one commit, the ledger follows; what a killed run left is found by the next one."""

    @property
    def sentence(self) -> str:
        """For people."""
        if self is Promise.ONE_TRANSACTION:
            return "a load publishes all its tables and the ledger's rows in one transaction"
        if self is Promise.TABLES_TOGETHER:
            return (
                "a load publishes all its tables in one commit of the REST catalog (TIDEMARK_CATALOG_TRANSACTIONS), and the"
                " ledger follows: after a kill in between, the next run records what the tables show"
            )
        return (
            "a load publishes table by table, because the ledger lies in another place than the catalog"
            " (TIDEMARK_LEDGER_URL): a reader may see refined ahead of its aggregates for a moment"
        )


def promise_of(settings: Settings) -> Promise:
    """The strongest promise that the places of catalog and ledger allow."""
    if settings.catalog_transactions:
        return Promise.TABLES_TOGETHER
    shared = share_a_database(settings.ledger_database_url, settings.catalog_url)
    return Promise.ONE_TRANSACTION if shared else Promise.TABLE_BY_TABLE


_PUBLISHERS: Mapping[Promise, Callable[[Lakehouse, Ledger], Publisher]] = {
    Promise.ONE_TRANSACTION: OneTransaction,
    Promise.TABLES_TOGETHER: TablesTogether,
    Promise.TABLE_BY_TABLE: TableByTable,
}


def publisher_of(settings: Settings, lakehouse: Lakehouse, ledger: Ledger) -> Publisher:
    """The publisher that keeps the deployment's promise."""
    return _PUBLISHERS[promise_of(settings)](lakehouse, ledger)
