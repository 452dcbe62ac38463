"""The cheap look at an event's text loses no revenue that reading it as JSON would find.

Contains: claims on revenue expressions.
Add here: another way revenue is written.
Does not contain: the table built of it (scenarios/).
"""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.revenue import with_money

pytestmark = pytest.mark.slow

TEXTS = {
    '{"$revenue": 2.5}': True,
    '{"revenue": "2.5"}': True,
    '{"price": 2, "quantity": 3}': True,
    r'{"\u0072evenue": 2.5}': True,
    r'{"pr\u0069ce": 2.5}': True,
    '{"note": "no money"}': False,
    "{}": False,
}
SALE = "[Amplitude] Revenue"


def _events(spark: Any, *texts: str, event_type: str | None = SALE) -> Any:
    return spark.createDataFrame([(event_type, text) for text in texts], "event_type string, event_properties string")


def test_no_revenue_is_lost_to_the_look_at_the_text(spark: Any) -> None:
    settings = Settings()
    events = _events(spark, *TEXTS)
    rows = with_money(events, settings).collect()
    found = {row["event_properties"]: (row["claims_revenue"], row["revenue"] is not None) for row in rows}
    assert found == {text: (has_revenue, has_revenue) for text, has_revenue in TEXTS.items()}


def test_what_repeats_the_revenue_of_another_event_neither_has_nor_claims_any(spark: Any) -> None:
    """Outcome: by default the two types that the vendor computes; an event without a type has revenue, and an empty list excepts
    none."""
    kinds = (SALE, f"{SALE} (Verified)", f"{SALE} (Unverified)", f"{SALE} (verified)", None)
    texts = ('{"$revenue": 2.5}', '{"$revenue": "much"}')
    events = [_events(spark, *texts, event_type=kind) for kind in kinds]

    def found(settings: Settings) -> list[list[tuple[bool, Decimal | None]]]:
        rows = [with_money(frame, settings).collect() for frame in events]
        return [[(row["claims_revenue"], row["revenue"]) for row in of_kind] for of_kind in rows]

    has, none = [(True, Decimal("2.5")), (True, None)], [(False, None)] * 2
    assert found(Settings()) == [has, none, none, has, has]
    assert found(Settings(event_types_without_revenue=())) == [has] * 5


def test_properties_that_are_no_object_are_unreadable_revenue(spark: Any) -> None:
    """Scenario: text and lists in place of a bag, as rows of before or of another program hold them. Outcome: counted, not 0."""
    texts = (r'"{\"$revenue\": 20}"', '[{"$revenue": 20}]', '"revenue"', '{"note": "no \\\\ money"}')
    rows = with_money(_events(spark, *texts), Settings()).collect()
    assert [(row["claims_revenue"], row["revenue"]) for row in rows] == [(True, None)] * 3 + [(False, None)]


ABSURD = (
    '{"price": 1700000000000}',
    '{"price": 1e30, "quantity": 2}',
    '{"revenue": 5e31}',
    '{"revenue": "1e400"}',
    '{"price": 2, "quantity": 1e20}',
    '{"price": 99999999999, "quantity": 999999999999}',
)


def test_an_absurd_amount_is_unreadable_and_fails_nothing(spark: Any) -> None:
    """Scenario: milliseconds sent as a price, amounts beyond any currency, beside a good one. Outcome: they count as unreadable,
    the sum of the day is the good one's."""
    settings = Settings()
    events = _events(spark, *ABSURD, '{"revenue": 2.5}')
    (row,) = with_money(events, settings).groupBy().agg({"revenue": "sum", "*": "count"}).collect()
    claimed = with_money(events, settings).where("claims_revenue").count()
    assert (row["sum(revenue)"], row["count(1)"], claimed) == (Decimal("2.5"), 7, 7)
    wide = _events(spark, *['{"revenue": 9999999999999999999999}'] * 3)
    (widest,) = with_money(wide, settings).groupBy().agg({"revenue": "sum"}).collect()
    assert widest[0] == 3 * Decimal("9999999999999999999999")


NAMES = ("it's", "a.b", "a[0]", "a?b", "$", 'quo"te', "é", "a\\b", "x y", "'", "a/b", "trail ", "a\nb")


def test_every_name_that_settings_take_is_read(spark: Any) -> None:
    """Scenario: revenue in properties whose names hold quotes, dots, brackets, blanks. Outcome: each is read, and no other."""
    texts = [json.dumps({"other": 1, "quo": 1, "a": {"b": 1}, name: 7.5}, ensure_ascii=False) for name in NAMES]
    rows = [(name, SALE, text) for name, text in zip(NAMES, texts, strict=True)]
    events = spark.createDataFrame(rows, "name string, event_type string, event_properties string")
    for name in NAMES:
        settings = Settings(revenue_properties=(name,), price_properties=())
        found = with_money(events.where(F.col("name") == name), settings).collect()
        assert [row["revenue"] for row in found] == [Decimal("7.5")], name


def test_an_amount_of_a_million_digits_is_unreadable_at_once(spark: Any) -> None:
    """Scenario: texts of a million digits as revenue, price and quantity, and numbers and names beyond what the reader of JSON
    takes beside a good amount. Outcome: within seconds none reads as an amount, and each is claimed, so that it is counted."""
    digits = "1" * 1_000_000
    long_texts = [
        f'{{"{name}": "{text}", "price": 1}}' for name in ("revenue", "quantity") for text in (digits, f"0.{digits}")
    ]
    beyond = [f'{{"x": {digits[:1001]}, "revenue": 5}}', f'{{"{"n" * 50_001}": 1, "revenue": 5}}']
    settings = Settings()
    events = _events(spark, *long_texts, *beyond).cache()
    began = events.count() and time.monotonic()
    rows = with_money(events, settings).drop("event_properties").collect()
    assert time.monotonic() - began < 20
    assert [(row["revenue"], row["claims_revenue"]) for row in rows] == [(None, True)] * len(rows)
    assert len(rows) == len(long_texts) + len(beyond)
