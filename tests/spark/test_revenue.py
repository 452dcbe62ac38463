"""The cheap look at an event's text loses no revenue that reading it as JSON would find.

Lives here: claims on revenue expressions. Put here: another way revenue is written. Keep out: the table built of it (scenarios/).
"""

from __future__ import annotations

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
