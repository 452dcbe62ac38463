"""Folds: aggregates of one slice and their control totals, counted from facts of its events in two independent ways."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.revenue import PLACES, RevenueRule
from pipeline_assets.transforms.event_facts import event_facts
from pipeline_assets.transforms.event_hashes import Longs, whole
from pipeline_assets.transforms.file_metrics import unscaled

Rows = dict[tuple[str | None, ...], tuple[int, ...]]
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class Folded:
    """Rows and controls of a slice, or of a share of its events; those of several shares add up, since no user is in two."""

    rows: Rows = field(default_factory=dict)
    """Values of the key columns -> values of the other columns; a decimal is in units of its last place."""
    controls: dict[str, int] = field(default_factory=dict)
    """Total of each measure, counted in another way than in `rows`, and further figures; decimals as in `rows`."""

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
    """The facts that it counts (event_facts.SOURCES)."""
    function: Callable[[pa.Table], Folded]
    """Facts of a slice, or of a share of its events with all that a user of them has -> its rows and controls."""


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
    """(currency) -> revenue, purchases, paying_users. Controls: sum and count over all events with revenue, whatever its
    currency; events whose revenue does not read, and events that repeat the revenue of others.
    """  # noqa: D205 - columns in one sentence
    paid = facts.filter(pc.is_valid(facts["revenue"]))
    currencies, names = _codes(paid["currency"])
    users, purchases = _distinct_users(currencies, len(names), paid), np.bincount(currencies, minlength=len(names))
    totals = [0] * len(names)
    for at, amount in zip(currencies.tolist(), paid["revenue"].to_pylist(), strict=True):
        totals[at] += unscaled(amount)
    rows: Rows = {
        (name,): (totals[at], int(purchases[at]), int(users[at])) for at, name in enumerate(names) if purchases[at]
    }
    claims, repeats = facts["claims_revenue"], facts["repeats_revenue"]
    total = pc.sum(facts["revenue"].cast(pa.decimal256(50, PLACES))).as_py()
    controls = {
        "revenue": 0 if total is None else unscaled(total),
        "purchases": len(facts) - facts["revenue"].null_count,
        "unreadable_revenue": _count(pc.and_(pc.and_not(claims, repeats), pc.is_null(facts["revenue"]))),
        "events_that_repeat_revenue": _count(repeats),
    }
    return Folded(rows, controls)


@dataclass(frozen=True)
class SliceFold:
    """Reduces rows of refined.events of one slice to the folds of some tables; picklable."""

    folds: Mapping[str, Fold]
    """Key of a table -> its fold."""
    rule: RevenueRule

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts that the folds count."""
        return tuple(dict.fromkeys(fact for fold in self.folds.values() for fact in fold.facts))

    def narrow(self, rows: pa.Table) -> pa.Table:
        """The facts of these events."""
        return event_facts(rows, self.rule, self.facts)

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
    """The share of each event, from 0: that of its user, else that of its place, so that no share gets all without a user."""
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


def _count(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags).as_py() or 0)


def _codes(texts: pa.ChunkedArray) -> tuple[Longs, list[str | None]]:
    """A number for each text, null included, and the text of each number."""
    coded = whole(texts).dictionary_encode("encode")
    return np.asarray(coded.indices, np.int64), coded.dictionary.to_pylist()


def _users(facts: pa.Table) -> tuple[Longs, pa.Array, pa.Array]:
    """A number for each event's user, -1 where it is unknown; and the users: numbers first, then texts."""
    numbers, texts = (whole(facts[name]).dictionary_encode() for name in ("user_number", "user_text"))
    codes = np.asarray(numbers.indices.fill_null(-1), np.int64)
    if len(texts.dictionary):
        of_texts = np.asarray(texts.indices.fill_null(-1), np.int64)
        codes = np.where((codes < 0) & (of_texts >= 0), of_texts + len(numbers.dictionary), codes)
    return codes, numbers.dictionary, texts.dictionary


def _distinct_users(groups: Longs, count: int, facts: pa.Table) -> Longs:
    """Number of distinct users of each group; unknown users do not count."""
    codes, numbers, texts = _users(facts)
    users = len(numbers) + len(texts)
    is_known = codes >= 0
    # Sorting takes a tenth of the time of np.unique, which hashes.
    pairs = np.sort(groups[is_known] * users + codes[is_known])
    is_first = np.diff(pairs, prepend=-1) != 0
    return np.bincount(pairs[is_first] // max(users, 1), minlength=count)
