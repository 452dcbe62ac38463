"""Revenue of an event, as the tables define it (tables/daily_revenue.py).

Contains: how money is read from an event.
Add here: another value read from property bags.
Does not contain: who a user is (users.py), grouping (tables/).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.property_paths import property_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.named import named

MONEY = "decimal(38,6)"
_REVENUE = "decimal(28,6)"
_FACTOR = "decimal(18,6)"
_MOST_DIGITS = 1_000
PROPERTIES = ("event_properties",)
"""Columns that revenue and currency are read from."""


def with_money(events: DataFrame, settings: Settings) -> DataFrame:
    """The events, with `event_properties`, plus revenue (decimal(28,6)), currency (string) and claims_revenue (boolean).

    revenue is null where an event has none or where it does not read as a number of that size: ten digits narrower than the
    sums, which would else fail the load over two absurd values. currency is `unknown` where absent or blank, null without
    revenue. claims_revenue: revenue or a price is delivered, readable or not; and also where Spark's reader gives up on the
    properties (a number of over 1000 digits, a name of over 50,000 characters): what may be revenue is to be counted as
    unreadable, not to pass for none.
    """
    # One select for each value that others are made of: Spark would read the JSON once for each time that it is named.
    claiming = events.withColumn("_json", F.when(_may_claim_revenue(settings), F.col("event_properties")))
    told = claiming.withColumns(
        {"_revenue": _property(settings.revenue_properties), "_price": _property(settings.price_properties)}
    )
    is_told = F.col("_revenue").isNotNull() | F.col("_price").isNotNull()
    read = told.withColumns(
        {
            "_quantity": F.when(F.col("_price").isNotNull(), _property(settings.quantity_properties)),
            "_currency": F.when(is_told, _property(settings.currency_properties)),
            "claims_revenue": F.col("_json").isNotNull() & (is_told | F.get_json_object("_json", "$").isNull()),
        }
    )
    price, quantity = _number(F.col("_price"), _FACTOR), _number(F.col("_quantity"), _FACTOR)
    product = price * F.when(F.col("_quantity").isNull(), F.lit(1).cast(_FACTOR)).otherwise(quantity)
    direct = F.when(F.col("_revenue").isNotNull(), _number(F.col("_revenue"), _REVENUE))
    valued = read.withColumn("revenue", direct.otherwise(product.try_cast(_REVENUE)))
    currency = F.coalesce(named(F.col("_currency")), F.lit("unknown"))
    found = valued.withColumn("currency", F.when(F.col("revenue").isNotNull(), currency))
    return found.drop("_json", "_revenue", "_price", "_quantity", "_currency")


def _may_claim_revenue(settings: Settings) -> Column:
    """False only where an event has neither revenue nor price: a look at its text, far cheaper than reading it as JSON.

    A name may be written with escapes, so any text with one may hold it.
    """
    names = (*settings.revenue_properties, *settings.price_properties)
    shortest = [name for name in names if not any(other != name and other in name for other in names)]
    return reduce(Column.__or__, [F.contains("event_properties", F.lit(part)) for part in (*shortest, "\\")])


def _property(names: Sequence[str]) -> Column:
    """The first present event property of these names, as text."""
    found = [F.get_json_object("_json", property_path(name)) for name in names]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _number(text: Column, kind: str) -> Column:
    """The text as a decimal, null where it is none.

    Java reads digits in quadratic time; a text so long is no amount.
    """
    return F.when(F.octet_length(text) <= _MOST_DIGITS, text.try_cast(kind))
