"""An event's revenue and ids, from its properties."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline_assets.domain.revenue import NO_MONEY, Money, RevenueRule, long_of
from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.fold import MONEY, Fold, SliceFold, fold_daily_revenue

RULE = RevenueRule.of(Settings())
SALE = "[Amplitude] Revenue"
UNREADABLE = Money(None, None, True)


def _facts(*bags: str | None, event_type: str | None = SALE, rule: RevenueRule = RULE) -> list[dict[str, Any]]:
    rows = pa.table(
        {"event_type": pa.array([event_type] * len(bags), pa.string()), "event_properties": pa.array(bags, pa.string())}
    )
    told: list[dict[str, Any]] = SliceFold({"": Fold((MONEY,), fold_daily_revenue)}, rule).narrow(rows).to_pylist()
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


@pytest.mark.parametrize(("amount", "values"), [
    ("2.5", ("2.5", '"2.5"', '" 2.5\\t"', '"+2.5"', "25e-1", '"0.25E+1"')), ("100", ("1e2", '"1E2"', "100", "100.0000004")),
    ("0", ("0", "-0", "-0.0", '"0e400"', "1e-400", "4e-7", '"-4e-7"')), ("0.000001", ("5e-7", '"0.0000005"', "14e-7")),
    ("-0.000001", ("-5e-7", '"-0.0000005"')), ("0.5", ('".5"',)), ("5", ('"5."', '"005"')),
    ("1234567.123457", ("1234567.1234565", '"1234567.1234565"')), ("3.5", ('"\u0663.\u0665"',)),
    ("12345678901234567890.123457", ("12345678901234567890.1234567",)),
    ("9999999999999999999999.999999", ('"9999999999999999999999.9999994"', "9999999999999999999999.999999")),
    (None, ("9999999999999999999999.9999995",
            "1e22", '"1e99999999999"', '""', '"."', '"e5"', '"1e"', '"1_000"', '"1,5"', '"0x10"',
            '"NaN"', '"Infinity"', '"1d"', "true", "false", "[]", "[1]", "{}", '{"revenue": 3}', '"x"')),
])  # fmt: skip
def test_an_amount_is_a_number_or_a_text_of_one_in_millionths_half_up(
    amount: str | None, values: tuple[str, ...]
) -> None:
    expected = UNREADABLE if amount is None else Money(Decimal(amount), "EUR", True)
    assert {text: RULE.money_of(f'{{"revenue": {text}, "currency": "EUR"}}') for text in values} == dict.fromkeys(
        values, expected
    )


@pytest.mark.parametrize(("bag", "amount"), [
    ('{"price": 2, "quantity": 3}', "6"), ('{"price": 2, "quantity": null}', "2"),
    ('{"$price": "0.333333", "quantity": "3"}', "0.999999"),
    ('{"price": 0.001, "quantity": 0.0005}', "0.000001"), ('{"price": -0.001, "quantity": 0.0005}', "-0.000001"),
    ('{"price": 999999999999, "quantity": 9999999999}', "9999999998990000000001"),
    ('{"price": 2, "quantity": ""}', None), ('{"price": 2, "quantity": []}', None), ('{"price": [], "quantity": 2}', None),
    ('{"price": 999999999999, "quantity": 999999999999}', None), ('{"price": 1e12, "quantity": 1}', None),
    ('{"revenue": null, "$revenue": 4}', "4"), ('{"$revenue": null, "revenue": 4}', "4"),
    ('{"$revenue": 1, "revenue": 2}', "1"),
    ('{"revenue": 1, "revenue": 2}', "2"), ('{"a": {"revenue": 5}, "revenue": 6}', "6"), ('{"revenue": "x", "price": 4}', None),
    ('{"revenue": 1, "price": 4}', "1"), ('{"revenue":\t1\r\n}', "1"), (' {"revenue": 1}', "1"),
    ('{"x": %s, "revenue": 5}' % ("1" * 5000), "5"),
    ('{"revenue": 1, "n": "x\ty\x01"}', "1"), (r'{"revenue": 1, "n": "\ud800"}', "1"), ('{"revenue": 1} x', None),
    ('{"revenue": 1, "a": NaN}', None),
    ("{'revenue': 1}", None), ('{"revenue": 1,}', None),
])  # fmt: skip
def test_revenue_counts_before_a_price_times_a_quantity(bag: str, amount: str | None) -> None:
    assert RULE.money_of(bag) == (UNREADABLE if amount is None else Money(Decimal(amount), "unknown", True))


@pytest.mark.parametrize(("told", "currency"), [
    ('"EUR"', "EUR"), ('""', "unknown"), ('" "', "unknown"), (r'"\u200b"', "unknown"), ("null", "unknown"),
    ("5.0", "5.0"), ("true", "true"),
    ('[1, "x"]', '["1", "x"]'), (r'"\ud83d\ude00"', "\U0001f600"), (r'"\ud83d"', "unknown"),
    (r'"\ud83d", "$currency": "A"', "A"),
    ('null, "$currency": "A"', "A"),
])  # fmt: skip
def test_a_currency_is_a_text_that_can_be_seen(told: str, currency: str) -> None:
    assert RULE.money_of(f'{{"revenue": 1, "currency": {told}}}') == Money(Decimal(1), currency, True)


def test_an_id_is_a_whole_number_of_64_bits() -> None:
    good = ("1", "-1", "+1", " 7 ", "007", str(2**63 - 1), str(-(2**63)))
    assert [long_of(text) for text in good] == [1, -1, 1, 7, 7, 2**63 - 1, -(2**63)]
    bad = ("7.0", "7.", "1e3", "", "-", "--1", "0x1", "1_0", "1L", "true", str(2**63), str(-(2**63) - 1), "9" * 5000)
    assert [long_of(text) for text in bad] == [None] * len(bad)


NAMES = ("it's", "a.b", "a[0]", "a?b", "$", 'quo"te', "é", "a\\b", "x y", "'", "a/b", "trail ", "a\nb")


def test_every_name_that_settings_take_is_read() -> None:
    """Scenario: property names with quotes, dots, brackets, blanks. Outcome: each is read, and no other."""
    for name in NAMES:
        bag = json.dumps({"other": 1, "quo": 1, "a": {"b": 1}, name: 7.5}, ensure_ascii=False)
        rule = RevenueRule.of(Settings(revenue_properties=(name,), price_properties=()))
        assert [row["revenue"] for row in _facts(bag, rule=rule)] == [Decimal("7.5")], name


def test_an_amount_of_a_million_digits_is_unreadable_at_once() -> None:
    """Scenario: amounts, exponents and depths without end. Outcome: claimed within seconds."""
    digits = "1" * 1_000_000
    bags = [
        f'{{"{name}": "{text}", "price": 1}}' for name in ("revenue", "quantity") for text in (digits, f"0.{digits}")
    ]
    bags += ['{"revenue": "1e1999999999"}', f'{{"a": {"[" * 100_000}, "revenue": 5}}']
    began = time.monotonic()
    assert [RULE.money_of(bag) for bag in bags] == [UNREADABLE] * len(bags)
    assert RULE.money_of('{"revenue": "1e-1999999999"}') == Money(0, "unknown", True)
    assert time.monotonic() - began < 5
