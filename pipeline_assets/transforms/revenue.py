"""Reads the revenue of an event (for tables/daily_revenue.py)."""

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
MONEY_COLUMNS = ("event_type", "event_properties")
"""Columns from which revenue and currency are read."""


def repeats_revenue(settings: Settings) -> Column:
    """Whether an event repeats the revenue of another one by its type, such as those that the vendor computes beside a sale.

    The vendor counts no computed event ("doesn't count computed events separately", amplitude.com/docs, Track revenue).
    """
    return F.coalesce(F.col("event_type").isin(*settings.event_types_without_revenue), F.lit(False))


def with_money(events: DataFrame, settings: Settings) -> DataFrame:
    """The events (with MONEY_COLUMNS) plus revenue (decimal(28,6)), currency (string) and claims_revenue (boolean).

    revenue is null if an event has none, or if it is not a number that fits. Its type is ten digits narrower than that of sums,
    so that two absurd values cannot overflow a sum and fail the load. currency is `unknown` if absent or blank, and null
    without revenue. claims_revenue is true if revenue or a price is delivered, readable or not. It is also true if the
    properties do not read as a JSON object (a number of over 1000 digits, a name of over 50,000 characters): such an event is
    counted as unreadable revenue and not as an event without revenue. An event that repeats revenue has and claims none.
    """
    # One select per intermediate value: otherwise Spark would parse the JSON once for every use of the value.
    may_claim = _may_claim_revenue(settings) & ~repeats_revenue(settings)
    claiming = events.withColumn("_json", F.when(may_claim, F.col("event_properties")))
    told = claiming.withColumns(
        {"_revenue": _property(settings.revenue_properties), "_price": _property(settings.price_properties)}
    )
    is_unreadable = ~F.col("_json").startswith("{") | F.get_json_object("_json", "$").isNull()
    is_told = F.col("_revenue").isNotNull() | F.col("_price").isNotNull()
    read = told.withColumns(
        {
            "_quantity": F.when(F.col("_price").isNotNull(), _property(settings.quantity_properties)),
            "_currency": F.when(is_told, _property(settings.currency_properties)),
            "claims_revenue": F.col("_json").isNotNull() & (is_told | is_unreadable),
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
    """False only if an event has neither revenue nor price: a search in its text, far cheaper than parsing the JSON.

    JSON may write a name with escapes, so any text with a backslash may contain it.
    """
    names = (*settings.revenue_properties, *settings.price_properties)
    shortest = [name for name in names if not any(other != name and other in name for other in names)]
    return reduce(Column.__or__, [F.contains("event_properties", F.lit(part)) for part in (*shortest, "\\")])


def _property(names: Sequence[str]) -> Column:
    """The first event property present among these names, as text."""
    found = [F.get_json_object("_json", property_path(name)) for name in names]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _number(text: Column, kind: str) -> Column:
    """The text as a decimal; null if it is not one, or too long to be an amount.

    The length is limited because Java parses digits in quadratic time.
    """
    return F.when(F.octet_length(text) <= _MOST_DIGITS, text.try_cast(kind))
