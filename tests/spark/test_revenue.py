"""The pure rules for revenue and users against Spark's own functions for JSON and numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import pyspark.sql.functions as F
import pytest
from pyspark.sql import Column

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.domain.json_members import member, members_of, property_path
from pipeline_assets.domain.revenue import NO_MONEY, RevenueRule, long_of
from pipeline_assets.domain.settings import Settings

pytestmark = pytest.mark.slow
SETTINGS = Settings(revenue_properties=("$revenue", "revenue", "it's"), quantity_properties=("$quantity", "quan.tity"))
_EXACT = Context(prec=80)


def _property(names: Sequence[str]) -> Column:
    return F.coalesce(*[F.get_json_object("bag", property_path(name)) for name in names])


def _number(text: Column, kind: str) -> Column:
    return F.when(F.octet_length(text) <= 1000, text.try_cast(kind))


def _spark_money(settings: Settings) -> dict[str, Column]:
    """The rule of revenue in Spark's own functions, for the column `bag`."""
    revenue, price = _property(settings.revenue_properties), _property(settings.price_properties)
    quantity, currency = _property(settings.quantity_properties), _property(settings.currency_properties)
    factor = F.when(quantity.isNull(), F.lit(1).cast("decimal(18,6)")).otherwise(_number(quantity, "decimal(18,6)"))
    product = (_number(price, "decimal(18,6)") * factor).try_cast("decimal(28,6)")
    amount = F.when(revenue.isNotNull(), _number(revenue, "decimal(28,6)")).otherwise(product)
    names = (*settings.revenue_properties, *settings.price_properties, "\\")
    may_claim = reduce(Column.__or__, [F.contains("bag", F.lit(name)) for name in names])
    is_unreadable = ~F.col("bag").startswith("{") | F.get_json_object("bag", "$").isNull()
    named = F.coalesce(F.when(currency.rlike(SOMETHING_TO_SEE), currency), F.lit("unknown"))
    return {
        "amount": F.when(may_claim, amount),
        "currency": F.when(may_claim & amount.isNotNull(), named),
        "is_claimed": may_claim & (revenue.isNotNull() | price.isNotNull() | is_unreadable),
    }


EDGES = (
    *(f'{{"revenue": {value}, "currency": "EUR"}}' for value in (
        "2.5", '"2.5"', "1e2", "1E+2", '"1e-7"', "5e-7", '"5e-7"', "-5e-7", '"0.0000005"', '"-0.0000005"', "0", "-0", "-0.0",
        '"-0"', '"0e400"', '"0e30"', "1e400", "-1e400", '"1e400"', '"1e-400"', "1e-400", '"1e99999999999"', '"1e2147483648"',
        '"1e-2147483649"', '"1e0000000000000000000002"', '"1e00000000003"', '" 2.5 "', '"\\t2.5\\n"', '"\\u00a02.5"',
        '"\\u00012.5"', '"+2.5"', "+2.5", '".5"', ".5", '"5."', "5.", '"."', '""', '"-"', '"e5"', '"1e"', '"1e+"', '"1_000"',
        '"1,5"', '"0x10"', '"NaN"', "NaN", '"Infinity"', "Infinity", "-Infinity", '"inf"', '"1d"', '"1f"', '"1L"', '"٣.٥"',
        '"１２"', '"𝟙𝟚"', '"9999999999999999999999"', '"9999999999999999999999.9999994"', '"9999999999999999999999.9999995"',
        "99999999999999999999999", '"99999999999999999999999999999999999999"', '"999999999999999999999999999999999999999"',
        "12345678901234567890", "123456789012345678901234567890", "0.1234565", "0.1234575", '"0.1234565"', "1234567.1234565",
        "12345678.12345678", "true", "false", "null", "[]", "[1]", "{}", '{"revenue": 3}', '[{"revenue": 1}]', "007", "1.0E5",
        "1e5", "123456789.5", "0.001", "0.0009", "1e-3", "1e-4", "9999999", "9999999.0", "1e7", "10000000.0", "1e22", "1e21",
        '"1e22"', '"1e21"',
    )),
    *(f'{{"price": {price}, "quantity": {quantity}, "quan.tity": {quantity}, "currency": "x"}}' for price, quantity in (
        ("2", "3"), ("2", "null"), ("2", '""'), ("2", '"x"'), ("0.333333", "3"), ("0.0000005", "1"), ("0.001", "0.0005"),
        ("-0.001", "0.0005"), ("999999999999", "999999999999"), ("999999999999.999999", "9999999999.999999"), ("1e11", "1e11"),
        ("1e12", "1"), ("null", "2"), ("[]", "2"), ("2", "[]"), ("2", "true"), ('"2"', '"2"'), ("1700000000000", "1"),
    )),
    *(f'{{"revenue": 1, "currency": {currency}}}' for currency in (
        '"EUR"', '""', '" "', '"\\u00a0"', '"\\u200b"', '"\\u0000"', "null", "5", "-0", "5.0", "1e30", "1e400", "-1e400",
        "0.00001", "123456789.125", "true", "[]", "{}", "[1, 2.50, null, true]", '{"b": 1, "a": [1e5, "x\\ny", {"c": null}]}',
        '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"',
        '["\\ud83d\\ude00", "\\ud83d", "é", "\\u0001", "\\u007f", "a/b", "\\/", "\\u2028", "\\"", "\\\\"]', '"Ä\\"x"',
        '["😀", "\\b\\f\\r\\t"]', '{"k\\n": 1}', "12345678901234567890123", '[{"revenue": 2}]', "-0.0", "[0.0, 100, 1E-3]",
    )),
    '{"revenue": null, "$revenue": 4}', '{"$revenue": null, "revenue": 4}', '{"revenue": 1, "revenue": 2}',
    '{"revenue": null, "revenue": 2}', '{"$revenue": 1, "revenue": 2}', '{"revenue": 2, "$revenue": 1}',
    '{"a": {"revenue": 5}}', '{"a": {"revenue": 5}, "revenue": 6}', '{"it\'s": 7}', '{"price": 1, "quan": {"tity": 5}}',
    '{"$price": 3, "price": 4, "$quantity": 5}', '{"revenue": "x", "price": 4}', r'{"\u0072evenue": 2.5}',
    r'{"pr\u0069ce": 2.5}', r'{"note": "no \\ money"}', r'{"note": "no \q money"}', r'{"revenue": 1, "n": "\u12"}',
    r'{"revenue": 1, "n": "\ud800"}', r'{"n": "\ud800 x"}', r'{"n\ud800": "x"}', r'{"n\udc00\udc00": "\udc00"}', "", "revenue",
    "null\\", '"revenue"', '[{"revenue": 20}]', '["revenue"]', r'"{\"$revenue\": 20}"', '{"revenue": 1', '{"revenue": 1,',
    '{"revenue": 1,}', '{"revenue"}', '{"revenue": }', '{"revenue": 1 "a": 2}', '{"revenue": 1}}', '{"revenue": 1} x',
    '{"revenue": 1}{"revenue": 2}', ' {"revenue": 1}', '\n{"revenue": 1}', ' {"note": "revenue"}', '\ufeff{"revenue": 1}',
    '\x0b{"revenue": 1}', '\x00{"revenue": 1}', '{"revenue":\t1\r\n}', '{"revenue":\x0b1}', '{"revenue":\xa01}',
    "{'revenue': 1}", "{'revenue': '2.5', \"a\": 'x\"y'}", r"{'revenue': 1, 'a': 'x\'y'}", r'{"revenue": 1, "a": "x\'y"}',
    "{'revenue': \"it's\"}", "{'revenue\": 1}", "{'it\\'s': 3}", "{'revenue': 'a\"b'}", "{'revenue': 1, 'b': 'c}",
    "{revenue: 1}", '{"revenue": 1, "a": "x\ty\nz\x01"}', '{"revenue": 1, /* c */ "a": 2}', '{"revenue": 1, # c\n "a": 2}',
    '{"revenue": 1; "a": 2}', '{"revenue": 1, "a": tru}', '{"revenue": 1, "a": truex}', '{"revenue": 1, "a": nul}',
    '{"revenue": 1, "a": NaN}', '{"revenue": 1, "a": 01}', '{"revenue": 1, "a": -}', '{"revenue": 1, "a": 1.}',
    '{"revenue": 1, "a": 1e}', '{"revenue": 1, "a": [1, 2}', '{"revenue": 1, "a": [1,]}', '{"revenue": 1, "a": [,1]}',
    '{"revenue": 1, "": 2}', '{"": 2, "note": "revenue"}', '{"revenue": [[[]]]}', '{"revenue ": 1}', '{"Revenue": 1}',
    '{"REVENUE": 1, "price": 2}', '{"revenue": 1, "currency": null, "$currency": "A"}',
    '{"revenue": 1, "$currency": "", "currency": "B"}', '{"x": %s, "revenue": 5}' % ("1" * 1000),
    '{"x": %s, "revenue": 5}' % ("1" * 1001), '{"x": -%s, "revenue": 5}' % ("1" * 1000),
    '{"x": %s.5e7, "revenue": 5}' % ("1" * 998), '{"x": %s.5e7, "revenue": 5}' % ("1" * 999),
    '{"x": 0.%s, "revenue": 5}' % ("1" * 999), '{"x": 0.%s, "revenue": 5}' % ("1" * 1000),
    '{"x": 1e%s7, "revenue": 5}' % ("0" * 998), '{"x": 0.%s, "revenue": 5}' % ("1" * 1001),
    '{"x": -0.%s, "revenue": 5}' % ("1" * 1000), '{"x": -0.%s, "revenue": 5}' % ("1" * 1001),
    '{"x": 0.%se1, "revenue": 5}' % ("1" * 999), '{"x": 0.%se1, "revenue": 5}' % ("1" * 1000),
    '{"x": 0e%s, "revenue": 5}' % ("0" * 1000), '{"x": 0e%s, "revenue": 5}' % ("0" * 1001), '{"revenue": "0e2147483649"}',
    '{"revenue": "0e-2147483648"}', '{"revenue": "00e39"}', '{"revenue": "%s"}' % ("0" * 1000),
    '{"revenue": "%s1"}' % ("0" * 1000), '{"revenue": "0.%s"}' % ("1" * 998), '{"revenue": "%s"}' % ("é" * 600),
    '{"%s": 1, "revenue": 5}' % ("n" * 50_000), '{"%s": 1, "revenue": 5}' % ("n" * 50_001),
    '{"a": {"%s": 1}, "revenue": 5}' % ("n" * 50_001), '{"a": ' + "[" * 490 + "]" * 490 + ', "revenue": 5}',
    '{"revenue": 5, "currency": ' + "[" * 40 + "]" * 40 + "}",
)  # fmt: skip


def _generated(count: int) -> list[str]:
    """Bags of random members: read and other names, numbers as JSON and text, escapes, some damaged."""
    chosen = random.Random(20260201)
    names = [
        "revenue",
        "$revenue",
        "price",
        "$price",
        "quantity",
        "$quantity",
        "quan.tity",
        "currency",
        "$currency",
        "it's",
        "a",
        "note",
    ]

    def number() -> str:
        whole = chosen.choice(
            ["0", "-0", str(chosen.randrange(10 ** chosen.randrange(1, 25))), f"-{chosen.randrange(1000)}"]
        )
        part = chosen.choice(["", "", f".{chosen.randrange(10 ** chosen.randrange(1, 9)):0{chosen.randrange(1, 9)}d}"])
        return (
            whole
            + part
            + chosen.choice(["", "", "", f"{chosen.choice('eE')}{chosen.choice(['', '+', '-'])}{chosen.randrange(30)}"])
        )

    def value(depth: int = 0) -> str:
        kind = chosen.randrange(10 if depth < 3 else 7)
        if kind < 3:
            return number()
        if kind < 5:
            blank = chosen.choice(["", "", " ", "\\t", "\\u00a0"])
            return f'"{blank}{number()}{blank}"'
        if kind == 5:
            return chosen.choice(
                ["null", "true", "false", '"EUR"', '"usd"', '""', '"é"', '"\\ud83d\\ude00"', '"a\\"b"', '"\\\\"']
            )
        if kind == 6:
            return json.dumps(
                "".join(chosen.choice('aé\x00\x1f"\\/ \u2028😀') for _ in range(4)), ensure_ascii=chosen.random() < 0.5
            )
        if kind == 7:
            return "[" + ", ".join(value(depth + 1) for _ in range(chosen.randrange(3))) + "]"
        return bag(depth + 1)

    def name() -> str:
        own = chosen.choice(names)
        return own if chosen.random() < 0.9 else f"\\u{ord(own[0]):04x}{own[1:]}"

    def bag(depth: int = 0) -> str:
        blank = chosen.choice(["", "", " ", "\n"])
        members = (f'"{name()}":{blank}{value(depth)}' for _ in range(chosen.randrange(6)))
        return "{" + f",{blank}".join(members) + "}"

    def damaged(text: str) -> str:
        at = chosen.randrange(len(text))
        return text[:at] + chosen.choice(["", "", "x", '"', "'", "{", "]", ",", "\\"]) + text[at + 1 :]

    bags = [bag() for _ in range(count)]
    return [damaged(text) if chosen.random() < 0.2 else text for text in bags]


def _is_same_double(ours: Any, theirs: Any) -> bool:
    """Whether they differ only as texts of one double beyond 2^53, which before Java 19 were not always the shortest."""
    one, other = ours[0], theirs[0]
    are_large = None not in (one, other) and min(abs(one), abs(other)) > 2**53
    return are_large and float(one) == float(other) and ours[1:] == theirs[1:]


def test_revenue_is_read_as_spark_reads_it(spark: Any) -> None:
    """Outcome: every bag's amount, currency and claim."""
    bags = [*EDGES, *_generated(4_000)]
    rule = RevenueRule.of(SETTINGS)
    frame = spark.createDataFrame([(bag,) for bag in bags], "bag string").withColumns(_spark_money(SETTINGS))
    wrong = []
    for bag, row in zip(bags, frame.collect(), strict=True):
        told = rule.money_of(bag) if any(trace in bag for trace in rule.traces) else NO_MONEY
        amount = None if told.units is None else _EXACT.scaleb(Decimal(told.units), -6)
        ours, theirs = (amount, told.currency, told.is_claimed), (row["amount"], row["currency"], row["is_claimed"])
        if ours != theirs and not _is_same_double(ours, theirs):
            wrong.append((bag[:200], ours, theirs))
    assert not wrong, "\n".join(map(repr, wrong[:12]))


LONGS = (
    "1", "-1", "+1", " 7 ", "\t7\n", "\x007", "7\x7f", "\xa07", "7.0", "7.", "1e3", "", "-", "+", "--1", "0x1", "1_0", "٣",
    "1L", "007", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9" * 50,
    "0" * 50 + "5", "true",
)  # fmt: skip


def test_an_id_in_a_bag_is_read_as_spark_reads_it(spark: Any) -> None:
    values = [*LONGS, 5, 5.0, 2**63 - 1, 2**63, True, None, [1], {"a": 1}]
    bags = [json.dumps({"merged_amplitude_id": value}) for value in values] + ['{"merged_amplitude_id": 1', "[]", ""]
    found = F.get_json_object("bag", "$.merged_amplitude_id").try_cast("bigint").alias("id")
    rows = spark.createDataFrame([(bag,) for bag in bags], "bag string").select(found).collect()

    def ours(bag: str) -> int | None:
        text = member(members_of(bag) or members_of("{}") or [], ("merged_amplitude_id",))  # type: ignore[arg-type]
        return None if text is None else long_of(text)

    assert {bag: ours(bag) for bag in bags} == {bag: row["id"] for bag, row in zip(bags, rows, strict=True)}
