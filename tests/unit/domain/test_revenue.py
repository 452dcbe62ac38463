"""An event's revenue; JSON and numbers are compared with Spark in spark/test_revenue.py."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline_assets.domain.revenue import NO_MONEY, Money, RevenueRule
from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.fold import MONEY, event_facts

RULE = RevenueRule.of(Settings())
SALE = "[Amplitude] Revenue"
UNREADABLE = Money(None, None, True)


def _facts(*bags: str | None, event_type: str | None = SALE, rule: RevenueRule = RULE) -> list[dict[str, Any]]:
    rows = pa.table(
        {"event_type": pa.array([event_type] * len(bags), pa.string()), "event_properties": pa.array(bags, pa.string())}
    )
    told: list[dict[str, Any]] = event_facts(rows, rule, (MONEY,)).to_pylist()
    return told


def test_no_revenue_is_lost_to_the_look_at_the_text() -> None:
    money = (
        '{"$revenue": 2.5}', '{"revenue": "2.5"}', '{"price": 2, "quantity": 3}', r'{"\u0072evenue": 2.5}',
        r'{"pr\u0069ce": 2.5}',
    )  # fmt: skip
    rows = _facts(*money, '{"note": "no money"}', "{}", None)
    has = [(row["claims_revenue"], row["revenue"] is not None) for row in rows]
    assert has == [(True, True)] * 5 + [(False, False)] * 3


def test_what_repeats_the_revenue_of_another_event_neither_has_nor_claims_any() -> None:
    """Outcome: by default the vendor's two types; an event without a type has revenue, an empty list excepts none."""
    kinds = (SALE, f"{SALE} (Verified)", f"{SALE} (Unverified)", f"{SALE} (verified)", None)

    def found(rule: RevenueRule) -> list[list[tuple[bool, Decimal | None, bool]]]:
        of_kind = [_facts('{"$revenue": 2.5}', '{"$revenue": "much"}', event_type=kind, rule=rule) for kind in kinds]
        return [[(row["claims_revenue"], row["revenue"], row["repeats_revenue"]) for row in rows] for rows in of_kind]

    has, none = [(True, Decimal("2.5"), False), (True, None, False)], [(False, None, True)] * 2
    assert found(RULE) == [has, none, none, has, has]
    assert found(RevenueRule.of(Settings(event_types_without_revenue=()))) == [has] * 5


@pytest.mark.parametrize("bag", [r'"{\"$revenue\": 20}"', '[{"$revenue": 20}]', '"revenue"', '{"revenue"'])
def test_properties_that_are_no_object_are_unreadable_revenue(bag: str) -> None:
    """Scenario: text and lists in place of a bag, as other programs write them. Outcome: counted, not 0."""
    assert (RULE.money_of(bag), RULE.money_of('{"note": "no \\\\ money"}')) == (UNREADABLE, NO_MONEY)


@pytest.mark.parametrize(
    "bag",
    [
        '{"price": 1700000000000}', '{"price": 1e30, "quantity": 2}', '{"revenue": 5e31}', '{"revenue": "1e400"}',
        '{"price": 2, "quantity": 1e20}', '{"price": 99999999999, "quantity": 999999999999}',
    ],
)  # fmt: skip
def test_an_absurd_amount_is_unreadable(bag: str) -> None:
    """Scenario: milliseconds sent as a price, amounts beyond any currency."""
    assert RULE.money_of(bag) == UNREADABLE


NAMES = ("it's", "a.b", "a[0]", "a?b", "$", 'quo"te', "é", "a\\b", "x y", "'", "a/b", "trail ", "a\nb")


def test_every_name_that_settings_take_is_read() -> None:
    """Scenario: property names with quotes, dots, brackets, blanks. Outcome: each is read, and no other."""
    for name in NAMES:
        bag = json.dumps({"other": 1, "quo": 1, "a": {"b": 1}, name: 7.5}, ensure_ascii=False)
        rule = RevenueRule.of(Settings(revenue_properties=(name,), price_properties=()))
        assert [row["revenue"] for row in _facts(bag, rule=rule)] == [Decimal("7.5")], name


def test_an_amount_of_a_million_digits_is_unreadable_at_once() -> None:
    """Scenario: amounts, exponents, numbers and names beyond JSON's limits. Outcome: claimed within seconds."""
    digits = "1" * 1_000_000
    bags = [
        f'{{"{name}": "{text}", "price": 1}}' for name in ("revenue", "quantity") for text in (digits, f"0.{digits}")
    ]
    bags += [f'{{"x": {digits[:1001]}, "revenue": 5}}', f'{{"{"n" * 50_001}": 1, "revenue": 5}}']
    bags += ['{"revenue": "1e1999999999"}', f'{{"a": {"[" * 100_000}, "revenue": 5}}']
    began = time.monotonic()
    assert [RULE.money_of(bag) for bag in bags] == [UNREADABLE] * len(bags)
    assert RULE.money_of('{"revenue": "1e-1999999999"}') == Money(0, "unknown", True)
    assert time.monotonic() - began < 5
