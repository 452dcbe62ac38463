"""Facts of events that aggregates count: type, platform, user and money, computed from few columns of refined.events."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.json_members import member, members_of
from pipeline_assets.domain.revenue import NO_MONEY, PLACES, UNKNOWN, RevenueRule, long_of
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.transforms.event_hashes import Mask, named, whole

USER_COLUMNS = ("data", EXTRA_COLUMN, "amplitude_id", "user_id", "device_id")
"""Columns from which a user is read."""
MONEY_COLUMNS = ("event_type", "event_properties")
"""Columns from which revenue and currency are read."""
MERGED = "users that the vendor merged count twice where events bring no `merged_amplitude_id`"
EVENT_TYPE, PLATFORM, USER, MONEY = "event_type", "platform", "user", "money"
SOURCES: Mapping[str, tuple[str, ...]] = {
    EVENT_TYPE: ("event_type",),
    PLATFORM: ("platform",),
    USER: USER_COLUMNS,
    MONEY: MONEY_COLUMNS,
}
"""Fact -> the columns of refined.events that it is computed from."""
FACT_TYPES: Mapping[str, Mapping[str, str]] = {
    EVENT_TYPE: {"event_type": "string"},
    PLATFORM: {"platform": "string"},
    USER: {"user_number": "bigint", "user_text": "string"},
    MONEY: {
        "revenue": "decimal(28,6)",
        "currency": "string",
        "claims_revenue": "boolean",
        "repeats_revenue": "boolean",
    },
}
"""Fact -> its columns, with Spark types."""
_REVENUE = pa.decimal128(28, PLACES)
_EXACT = Context(prec=40)
_MERGED_ID = "merged_amplitude_id"


def columns_of(wanted: Iterable[str]) -> tuple[str, ...]:
    """The columns of refined.events that these facts are computed from."""
    return tuple(dict.fromkeys(column for fact in wanted for column in SOURCES[fact]))


def event_facts(rows: pa.Table, rule: RevenueRule, wanted: Collection[str]) -> pa.Table:
    """One row per event, in the order of `rows`, with the columns of the wanted facts (FACT_TYPES).

    platform is `unknown` if absent or blank. A user is a number, else a text, else unknown with neither. revenue is null if an
    event has none, or if it is no number that fits; currency is null without revenue. claims_revenue: see `Money`.
    """
    columns: dict[str, pa.Array] = {}
    for fact in (fact for fact in FACT_TYPES if fact in wanted):
        columns |= _MAKERS[fact]({name: whole(rows.column(name)) for name in SOURCES[fact]}, rule)
    return pa.Table.from_pydict(columns)


def _event_type(rows: Mapping[str, pa.Array], _: RevenueRule) -> dict[str, pa.Array]:
    return {"event_type": rows["event_type"]}


def _platform(rows: Mapping[str, pa.Array], _: RevenueRule) -> dict[str, pa.Array]:
    coded = rows["platform"].dictionary_encode()
    names = pc.fill_null(named(coded.dictionary), UNKNOWN)
    return {"platform": pc.fill_null(names.take(coded.indices), UNKNOWN)}


def _user(rows: Mapping[str, pa.Array], _: RevenueRule) -> dict[str, pa.Array]:
    """The user: `merged_amplitude_id`, else `amplitude_id`, else `user_id`, else `device_id`; a blank id counts as missing.

    The vendor names the user that an id was merged into in `data` (Amazon S3 export, event table schema); exports of
    warehouses have a key of their own for it. Its files of merged ids are not loaded.
    """
    ids = [merged for name in USER_COLUMNS[:2] if (merged := _merged(rows[name])) is not None]
    number = pc.coalesce(*ids, rows["amplitude_id"])
    if not number.null_count:
        return {"user_number": number, "user_text": pa.nulls(len(number), pa.string())}
    texts = [
        pc.binary_join_element_wise(prefix, named(rows[name]), "")
        for prefix, name in (("u:", "user_id"), ("d:", "device_id"))
    ]
    return {"user_number": number, "user_text": pc.if_else(pc.is_null(number), pc.coalesce(*texts), None)}


def _merged(bags: pa.Array) -> pa.Array | None:
    """The id that each user was merged into; None where no bag names one."""
    rows = rows_with(bags, [_MERGED_ID])
    if not rows.any():
        return None
    found: list[int | None] = [None] * len(bags)
    places = np.flatnonzero(rows)
    for at, text in zip(places.tolist(), bags.take(pa.array(places)).to_pylist(), strict=True):
        members = members_of(text)
        told = None if members is None else member(members, [_MERGED_ID])
        found[at] = None if told is None else long_of(told)
    return pa.array(found, pa.int64())


def _money(rows: Mapping[str, pa.Array], rule: RevenueRule) -> dict[str, pa.Array]:
    count = len(rows["event_type"])
    repeats = _is_in(rows["event_type"], rule.repeating_types)
    places = np.flatnonzero(rows_with(rows["event_properties"], rule.traces) & ~repeats)
    texts = rows["event_properties"].take(pa.array(places)).to_pylist()
    revenue: list[Decimal | None] = [None] * count
    currency: list[str | None] = [None] * count
    claims = np.zeros(count, np.bool_)
    for at, text in zip(places.tolist(), texts, strict=True):
        told = rule.money_of(text)
        if told is NO_MONEY:
            continue
        claims[at] = told.is_claimed
        if told.units is not None:
            revenue[at], currency[at] = _EXACT.scaleb(Decimal(told.units), -PLACES), told.currency
    return {
        "revenue": pa.array(revenue, _REVENUE),
        "currency": pa.array(currency, pa.string()),
        "claims_revenue": pa.array(claims),
        "repeats_revenue": pa.array(repeats),
    }


def _is_in(texts: pa.Array, chosen: Collection[str]) -> Mask:
    found = pc.is_in(texts, pa.array(sorted(chosen), pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def rows_with(texts: pa.Array, parts: Sequence[str]) -> Mask:
    """Which texts contain one of these parts, of which there is at least one; a null contains none."""
    found = pc.match_substring_regex(texts, "|".join(map(re.escape, parts)))
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


_MAKERS: Mapping[str, Callable[[Mapping[str, pa.Array], RevenueRule], dict[str, pa.Array]]] = {
    EVENT_TYPE: _event_type,
    PLATFORM: _platform,
    USER: _user,
    MONEY: _money,
}
