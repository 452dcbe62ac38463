"""Revenue and users of an event, as the tables define them (tables/daily_revenue.py, tables/active_users.py).

Lives here: the expressions that read money and users from an event. Put here: another value read from property bags.
Keep out: grouping (tables/).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.settings import Settings

MONEY = "decimal(38,6)"
_REVENUE = "decimal(28,6)"
PROPERTIES = ("event_properties",)
"""Columns that revenue and currency are read from."""
USER_COLUMNS = ("amplitude_id", "user_id", "device_id")
"""Columns that a user is read from."""


def _property(names: Sequence[str]) -> Column:
    """The first present event property of these names, as text.

    `get_json_object` with a quoted member reads names with dots and `$` as they are.
    """
    return F.coalesce(*[F.get_json_object("event_properties", f"$['{name}']") for name in names])


def may_claim_revenue(settings: Settings) -> Column:
    """False only where an event has neither revenue nor price: a look at its text, far cheaper than reading it as JSON.

    A name may be written with escapes, so any text with one may hold it.
    """
    names = (*settings.revenue_properties, *settings.price_properties)
    return reduce(Column.__or__, [F.contains(F.col("event_properties"), F.lit(name)) for name in (*names, "\\")])


def revenue_text(settings: Settings) -> Column:
    """The delivered revenue, price or null: set where the event claims revenue, readable or not."""
    return F.coalesce(_property(settings.revenue_properties), _property(settings.price_properties))


def revenue(settings: Settings) -> Column:
    """Revenue of an event, decimal(28,6), null where it has none or it does not read as a number of that size.

    Ten digits narrower than the sums, which would else fail the load over two absurd values.
    """
    direct = _property(settings.revenue_properties).try_cast(_REVENUE)
    price = _property(settings.price_properties).try_cast("decimal(18,6)")
    delivered_quantity = _property(settings.quantity_properties)
    quantity = F.when(delivered_quantity.isNull(), F.lit(1).cast("decimal(18,6)")).otherwise(
        delivered_quantity.try_cast("decimal(18,6)")
    )
    product = (price * quantity).try_cast(_REVENUE)
    return F.when(_property(settings.revenue_properties).isNotNull(), direct).otherwise(product)


def currency(settings: Settings) -> Column:
    """Currency of a revenue event, `unknown` where absent."""
    return F.coalesce(F.nullif(_property(settings.currency_properties), F.lit("")), F.lit("unknown"))


def user() -> Column:
    """A user: `amplitude_id`, else `user_id`, else `device_id`, told apart by a prefix; null where all are."""
    return F.coalesce(
        F.concat(F.lit("a:"), F.col("amplitude_id").cast("string")),
        F.concat(F.lit("u:"), F.col("user_id")),
        F.concat(F.lit("d:"), F.col("device_id")),
    )
