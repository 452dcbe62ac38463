"""Revenue and users of an event, as the tables define them (tables/daily_revenue.py, tables/active_users.py).

Lives here: the expressions that read money and users from an event. Put here: another value read from property bags.
Keep out: grouping (tables/).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.property_paths import property_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.named import named

MONEY = "decimal(38,6)"
_REVENUE = "decimal(28,6)"
_MOST_DIGITS = 1_000
PROPERTIES = ("event_properties",)
"""Columns that revenue and currency are read from."""
USER_COLUMNS = ("amplitude_id", "user_id", "device_id")
"""Columns that a user is read from."""


def _property(names: Sequence[str]) -> Column:
    """The first present event property of these names, as text."""
    found = [F.get_json_object("event_properties", property_path(name)) for name in names]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _number(text: Column, kind: str) -> Column:
    """The text as a decimal, null where it is none.

    Java reads digits in quadratic time; a text so long is no amount.
    """
    return F.when(F.octet_length(text) <= _MOST_DIGITS, text.try_cast(kind))


def may_claim_revenue(settings: Settings) -> Column:
    """False only where an event has neither revenue nor price: a look at its text, far cheaper than reading it as JSON.

    A name may be written with escapes, so any text with one may hold it.
    """
    names = (*settings.revenue_properties, *settings.price_properties)
    return reduce(Column.__or__, [F.contains(F.col("event_properties"), F.lit(name)) for name in (*names, "\\")])


def revenue_text(settings: Settings) -> Column:
    """The delivered revenue, price or null: set where the event claims revenue, readable or not.

    Properties that Spark's reader gives up on (a number of over 1000 digits, a name of over 50,000 characters) claim it too: what
    may be revenue is to be counted as unreadable, not to pass for none.
    """
    is_unreadable = F.col("event_properties").isNotNull() & F.get_json_object("event_properties", "$").isNull()
    unread = F.when(is_unreadable, F.lit("unreadable properties"))
    return F.coalesce(_property(settings.revenue_properties), _property(settings.price_properties), unread)


def revenue(settings: Settings) -> Column:
    """Revenue of an event, decimal(28,6), null where it has none or it does not read as a number of that size.

    Ten digits narrower than the sums, which would else fail the load over two absurd values.
    """
    direct = _number(_property(settings.revenue_properties), _REVENUE)
    price = _number(_property(settings.price_properties), "decimal(18,6)")
    delivered_quantity = _property(settings.quantity_properties)
    quantity = F.when(delivered_quantity.isNull(), F.lit(1).cast("decimal(18,6)")).otherwise(
        _number(delivered_quantity, "decimal(18,6)")
    )
    product = (price * quantity).try_cast(_REVENUE)
    return F.when(_property(settings.revenue_properties).isNotNull(), direct).otherwise(product)


def currency(settings: Settings) -> Column:
    """Currency of a revenue event, `unknown` where absent or blank."""
    return F.coalesce(named(_property(settings.currency_properties)), F.lit("unknown"))


def user() -> Column:
    """A user: `amplitude_id`, else `user_id`, else `device_id`, told apart by a prefix; null where none is given.

    A blank id is none.
    """
    return F.coalesce(
        F.concat(F.lit("a:"), F.col("amplitude_id").cast("string")),
        F.concat(F.lit("u:"), named("user_id")),
        F.concat(F.lit("d:"), named("device_id")),
    )
