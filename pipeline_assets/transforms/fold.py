"""Folds: aggregates of one slice and their control totals, counted from facts of its events in two independent ways."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.json_members import member, members_of
from pipeline_assets.domain.revenue import PLACES, UNKNOWN, RevenueRule, long_of
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.transforms.event_hashes import Longs, Mask, named, whole

USER_COLUMNS = ("data", EXTRA_COLUMN, "amplitude_id", "user_id", "device_id")
MONEY_COLUMNS = ("event_type", "event_properties")
MERGED = "users that the vendor merged count twice where events bring no `merged_amplitude_id`"
EVENT_TYPE, PLATFORM, USER, MONEY = "event_type", "platform", "user", "money"
_REVENUE = pa.decimal128(38, PLACES)
_EXACT = Context(prec=40)
_MERGED_ID = "merged_amplitude_id"


class Fact(NamedTuple):
    """A property of an event that aggregates count."""

    reads: tuple[str, ...]
    types: Mapping[str, str]
    of: Callable[[Mapping[str, pa.Array], RevenueRule], dict[str, pa.Array]]


def columns_of(wanted: Iterable[str]) -> tuple[str, ...]:
    """The columns of refined.events that these facts are computed from."""
    return tuple(dict.fromkeys(column for fact in wanted for column in FACTS[fact].reads))


def _platform(rows: Mapping[str, pa.Array], _: RevenueRule) -> dict[str, pa.Array]:
    coded = rows["platform"].dictionary_encode()
    names = pc.fill_null(named(coded.dictionary), UNKNOWN)
    return {"platform": pc.fill_null(names.take(coded.indices), UNKNOWN)}


def _user(rows: Mapping[str, pa.Array], _: RevenueRule) -> dict[str, pa.Array]:
    """The merged id (in `data` by the vendor's S3 schema, a key in warehouses' exports), else `amplitude_id`, user, device id."""
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
    repeating = pc.is_in(rows["event_type"], pa.array(sorted(rule.repeating_types), pa.string()))
    repeats = repeating.to_numpy(zero_copy_only=False)
    places = np.flatnonzero(rows_with(rows["event_properties"], rule.traces) & ~repeats)
    texts = rows["event_properties"].take(pa.array(places)).to_pylist()
    revenue: list[Decimal | None] = [None] * count
    currency: list[str | None] = [None] * count
    claims = np.zeros(count, np.bool_)
    for at, text in zip(places.tolist(), texts, strict=True):
        revenue[at], currency[at], claims[at] = rule.money_of(text)
    return {
        "revenue": pa.array(revenue, _REVENUE),
        "currency": pa.array(currency, pa.string()),
        "claims_revenue": pa.array(claims),
        "repeats_revenue": pa.array(repeats),
    }


def rows_with(texts: pa.Array, parts: Sequence[str]) -> Mask:
    """Which texts contain one of these parts (at least one); a null contains none."""
    found = pc.match_substring_regex(texts, "|".join(map(re.escape, parts)))
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


_MONEY_TYPES = {
    "revenue": "decimal(38,6)",
    "currency": "string",
    "claims_revenue": "boolean",
    "repeats_revenue": "boolean",
}
FACTS: Mapping[str, Fact] = {
    EVENT_TYPE: Fact(("event_type",), {"event_type": "string"}, lambda rows, _: {"event_type": rows["event_type"]}),
    PLATFORM: Fact(("platform",), {"platform": "string"}, _platform),
    USER: Fact(USER_COLUMNS, {"user_number": "bigint", "user_text": "string"}, _user),
    MONEY: Fact(MONEY_COLUMNS, _MONEY_TYPES, _money),
}

Rows = dict[tuple[str | None, ...], tuple[int, ...]]
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class Folded:
    """Rows and controls of a slice, or of a share of its events; shares add up, since no user is in two."""

    rows: Rows = field(default_factory=dict)
    """Values of the key columns -> values of the other columns; a decimal is in units of its last place."""
    controls: dict[str, int] = field(default_factory=dict)

    def add(self, other: Folded) -> None:
        """Add another share of the same slice."""
        for key, values in other.rows.items():
            held = self.rows.get(key, (0,) * len(values))
            self.rows[key] = tuple(one + more for one, more in zip(held, values, strict=True))
        for name, value in other.controls.items():
            self.controls[name] = self.controls.get(name, 0) + value


@dataclass(frozen=True)
class Fold:
    """How a table is computed from facts of whole slices; picklable."""

    facts: tuple[str, ...]
    function: Callable[[pa.Table], Folded]
    """Facts of a slice, or of a share with whole users -> its rows and controls."""


def fold_event_counts(facts: pa.Table) -> Folded:
    """(event_type) -> events, users. Control: the number of events, without grouping."""
    types, names = _codes(facts["event_type"])
    events, users = np.bincount(types, minlength=len(names)), _distinct_users(types, len(names), facts)
    rows: Rows = {(name,): (int(events[at]), int(users[at])) for at, name in enumerate(names) if events[at]}
    return Folded(rows, {"events": facts.num_rows})


def fold_active_users(facts: pa.Table) -> Folded:
    """(platform) -> active_users. Control: distinct pairs of platform and user, by value and not by code."""
    platforms, names = _codes(facts["platform"])
    users = _distinct_users(platforms, len(names), facts)
    rows: Rows = {(name,): (int(users[at]),) for at, name in enumerate(names) if users[at]}
    is_known = pc.or_(pc.is_valid(facts["user_number"]), pc.is_valid(facts["user_text"]))
    pairs = facts.filter(is_known).group_by(["platform", "user_number", "user_text"], use_threads=False).aggregate([])
    return Folded(rows, {"active_users": pairs.num_rows})


def fold_daily_revenue(facts: pa.Table) -> Folded:
    """(currency) -> revenue, purchases, paying_users. Controls: sums over all events; unreadable and repeated revenue."""
    paid = facts.filter(pc.is_valid(facts["revenue"]))
    currencies, names = _codes(paid["currency"])
    users, purchases = _distinct_users(currencies, len(names), paid), np.bincount(currencies, minlength=len(names))
    totals = [0] * len(names)
    for at, amount in zip(currencies.tolist(), paid["revenue"].to_pylist(), strict=True):
        totals[at] += _units(amount)
    rows: Rows = {
        (name,): (totals[at], int(purchases[at]), int(users[at])) for at, name in enumerate(names) if purchases[at]
    }
    claims, repeats = facts["claims_revenue"], facts["repeats_revenue"]
    total = pc.sum(facts["revenue"].cast(pa.decimal256(50, PLACES))).as_py()
    controls = {
        "revenue": 0 if total is None else _units(total),
        "purchases": len(facts) - facts["revenue"].null_count,
        "unreadable_revenue": _count(pc.and_(pc.and_not(claims, repeats), pc.is_null(facts["revenue"]))),
        "events_that_repeat_revenue": _count(repeats),
    }
    return Folded(rows, controls)


@dataclass(frozen=True)
class SliceFold:
    """Reduces rows of refined.events of one slice to the folds of some tables; picklable."""

    folds: Mapping[str, Fold]
    rule: RevenueRule

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts that the folds count."""
        return tuple(dict.fromkeys(fact for fold in self.folds.values() for fact in fold.facts))

    def narrow(self, rows: pa.Table) -> pa.Table:
        """One row per event, in the order of `rows`, with the columns of the facts (FACTS).

        platform is `unknown` if absent or blank. A user is a number, else a text, else unknown. revenue is null if an event has
        none or no number that fits; currency is null without revenue. claims_revenue: see `Money`.
        """
        columns: dict[str, pa.Array] = {}
        for fact in (FACTS[name] for name in self.facts):
            columns |= fact.of({column: whole(rows.column(column)) for column in fact.reads}, self.rule)
        return pa.Table.from_pydict(columns)

    def of(self, facts: Sequence[pa.Table]) -> dict[str, Folded]:
        """Key of a table -> its fold of these facts of one slice; empty without any."""
        if not facts:
            return {}
        together = pa.concat_tables(facts)
        return {name: fold.function(together) for name, fold in self.folds.items()}


def joined(shares: Iterable[Mapping[str, Folded]]) -> dict[str, Folded]:
    """The sum of shares of one slice, by table."""
    whole_slice: dict[str, Folded] = {}
    for share in shares:
        for name, folded in share.items():
            whole_slice.setdefault(name, Folded()).add(folded)
    return whole_slice


def shares_of(facts: pa.Table, shares: int) -> Longs:
    """The share of each event, from 0: by its user, else by its place."""
    places = np.arange(facts.num_rows) % shares
    if "user_number" not in facts.column_names:
        return places
    codes, numbers, texts = _users(facts)
    with np.errstate(over="ignore"):
        of_numbers = np.asarray(numbers, np.int64).view(np.uint64) * _MIX >> np.uint64(32)
    of_texts = np.array([zlib.crc32(text.encode()) for text in texts.to_pylist()], np.uint64)
    of_users = (np.concatenate([of_numbers, of_texts]) % np.uint64(shares)).astype(np.int64)
    is_known = codes >= 0
    places[is_known] = of_users[codes[is_known]]
    return places


def _units(amount: Decimal) -> int:
    return int(_EXACT.scaleb(amount, PLACES))


def _count(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags).as_py() or 0)


def _codes(texts: pa.ChunkedArray) -> tuple[Longs, list[str | None]]:
    coded = whole(texts).dictionary_encode("encode")
    return np.asarray(coded.indices, np.int64), coded.dictionary.to_pylist()


def _users(facts: pa.Table) -> tuple[Longs, pa.Array, pa.Array]:
    """A number for each event's user (-1: unknown), and the users: numbers first, then texts."""
    numbers, texts = (whole(facts[name]).dictionary_encode() for name in ("user_number", "user_text"))
    codes = np.asarray(numbers.indices.fill_null(-1), np.int64)
    if len(texts.dictionary):
        of_texts = np.asarray(texts.indices.fill_null(-1), np.int64)
        codes = np.where((codes < 0) & (of_texts >= 0), of_texts + len(numbers.dictionary), codes)
    return codes, numbers.dictionary, texts.dictionary


def _distinct_users(groups: Longs, count: int, facts: pa.Table) -> Longs:
    codes, numbers, texts = _users(facts)
    users = len(numbers) + len(texts)
    is_known = codes >= 0
    # Sorting takes a tenth of the time of np.unique, which hashes.
    pairs = np.sort(groups[is_known] * users + codes[is_known])
    is_first = np.diff(pairs, prepend=-1) != 0
    return np.bincount(pairs[is_first] // max(users, 1), minlength=count)
