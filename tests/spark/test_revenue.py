"""The cheap look at an event's text loses no revenue that reading it as JSON would find.

Lives here: claims on revenue expressions. Put here: another way revenue is written. Keep out: the table built of it (scenarios/).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.revenue import may_claim_revenue, revenue

pytestmark = pytest.mark.slow

TEXTS = {
    '{"$revenue": 2.5}': True, '{"revenue": "2.5"}': True, '{"price": 2, "quantity": 3}': True,
    r'{"\u0072evenue": 2.5}': True, r'{"pr\u0069ce": 2.5}': True, '{"note": "no money"}': False, "{}": False,
}  # fmt: skip


def test_no_revenue_is_lost_to_the_look_at_the_text(spark: Any) -> None:
    settings = Settings()
    events = spark.createDataFrame([(text,) for text in TEXTS], "event_properties string")
    claims = may_claim_revenue(settings).alias("may_claim")
    rows = events.select("event_properties", claims, revenue(settings).alias("revenue"))
    found = {row["event_properties"]: (row["may_claim"], row["revenue"] is not None) for row in rows.collect()}
    assert found == {text: (has_revenue, has_revenue) for text, has_revenue in TEXTS.items()}


ABSURD = ('{"price": 1700000000000}', '{"price": 1e30, "quantity": 2}', '{"revenue": 5e31}', '{"revenue": "1e400"}',
          '{"price": 2, "quantity": 1e20}', '{"price": 99999999999, "quantity": 999999999999}')  # fmt: skip


def test_an_absurd_amount_is_unreadable_and_fails_nothing(spark: Any) -> None:
    """Scenario: milliseconds sent as a price, amounts beyond any currency, beside a good one. Outcome: they count as unreadable,
    the sum of the day is the good one's."""
    settings = Settings()
    events = spark.createDataFrame([(text,) for text in (*ABSURD, '{"revenue": 2.5}')], "event_properties string")
    (row,) = events.select(revenue(settings).alias("revenue")).groupBy().agg({"revenue": "sum", "*": "count"}).collect()
    claimed = events.where(may_claim_revenue(settings)).count()
    assert (row["sum(revenue)"], row["count(1)"], claimed) == (Decimal("2.5"), 7, 7)
    (widest,) = spark.createDataFrame([('{"revenue": 9999999999999999999999}',)] * 3, "event_properties string").select(
        revenue(settings).alias("revenue")
    ).groupBy().agg({"revenue": "sum"}).collect()  # fmt: skip
    assert widest[0] == 3 * Decimal("9999999999999999999999")
