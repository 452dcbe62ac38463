"""The contest of raw rows that share a key: the rule of domain/identity.py in numpy; tests prove that both agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.identity import LOST_UNREAD, RowFate
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.event_hashes import KEY, LOWEST, ROW_ID, SEND_ID, Longs, Mask, longs, named, whole

RECEIVED, PROCESSED = EXPORT_FORMAT.rank_columns
_TYPES = EXPORT_FORMAT.spark_types
_KEPT = {
    **dict.fromkeys(KEY, "bigint"),
    RECEIVED: _TYPES[RECEIVED],
    PROCESSED: _TYPES[PROCESSED],
    "_hash_a": "bigint",
    "_hash_b": "bigint",
    "_object_key": "string",
    "_line_number": "int",
}
READ_TYPES = {**_KEPT, SEND_ID: "string", ROW_ID: "string", EXTRA_COLUMN: "string"}
SCHEMA = pa.schema(
    [
        ("_day", pa.int32()),
        ("project_id", pa.string()),
        ("_source", pa.string()),
        *((name, ARROW_TYPES[kind]) for name, kind in _KEPT.items()),
        (ROW_ID, pa.string()),
        ("_is_nameless", pa.bool_()),
        ("_is_unread", pa.bool_()),
    ]
)
"""`_day`: days since 1970. ROW_ID is null if blank. `_is_nameless`: without an id. `_is_unread`: as `is_unread`."""
_DAY = pa.date32()


def contested_rows(rows: pa.Table, key: Slice, source: str) -> pa.Table:
    """The rows of one slice of a raw table (READ_TYPES) with SCHEMA, without rows that have no key."""
    rows = rows.filter(pc.and_(*(rows[name].is_valid() for name in KEY))).combine_chunks()
    send_id, row_id = (named(whole(rows[name])) for name in (SEND_ID, ROW_ID))
    made = {
        "_day": pa.repeat(pa.scalar(key.event_date, _DAY).cast(pa.int32()), rows.num_rows),
        "project_id": pa.repeat(pa.scalar(key.project_id), rows.num_rows),
        "_source": pa.repeat(pa.scalar(source), rows.num_rows),
        ROW_ID: row_id,
        "_is_nameless": pc.and_(send_id.is_null(), row_id.is_null()),
        "_is_unread": is_unread(rows),
    }
    return pa.table({name: made[name] if name in made else rows[name] for name in SCHEMA.names}).cast(SCHEMA)


def is_unread(rows: pa.Table) -> pa.Array:
    """Whether a row's PROCESSED is null because its delivered text, kept in EXTRA_COLUMN, could not be read."""
    extra = whole(rows[EXTRA_COLUMN])
    may_tell = pc.and_(rows[PROCESSED].is_null(), pc.fill_null(pc.match_substring(extra, PROCESSED), False))
    found = may_tell.to_numpy().copy()
    for at in np.flatnonzero(found).tolist():
        found[at] = _tells(extra[at].as_py())
    return pa.array(found)


def _tells(extra: str) -> bool:
    try:
        # Numbers stay text, because Python refuses to read very long ones.
        told = json.loads(extra, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get(PROCESSED) is not None


def numbers_of(column: pa.Array | pa.ChunkedArray) -> Longs:
    """Integers, days or times as int64; a null is lower than any value."""
    return longs(column, null=LOWEST)


FATES = tuple(RowFate)
_WINNER, _DELIVERY, _SEND, _OTHER_DAY = range(len(FATES))
_CONTENT = ("_hash_b", "_hash_a")
LOSERS = pa.schema([("_object_key", pa.dictionary(pa.int32(), pa.string())), ("_line_number", pa.int32())])
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Decided:
    """Rows of a contest (SCHEMA) with their fates."""

    rows: pa.Table
    fates: Longs
    is_by_unread: Mask

    def take(self, is_chosen: Mask) -> Decided:
        """Only the chosen rows."""
        chosen = pa.array(is_chosen)
        return Decided(self.rows.filter(chosen), self.fates[is_chosen], self.is_by_unread[is_chosen])

    def reasons(self) -> dict[Slice, Counter[str]]:
        """Slice -> fate, or LOST_UNREAD -> number of rows."""
        found: dict[Slice, Counter[str]] = {}
        for key, at in self._by_slice():
            counted = np.bincount(self.fates[at], minlength=len(FATES)).tolist()
            told = Counter({fate.value: count for fate, count in zip(FATES, counted, strict=True) if count})
            if unread := int(self.is_by_unread[at].sum()):
                told[LOST_UNREAD] = unread
            found[key] = told
        return found

    def losers(self) -> dict[tuple[Slice, str], pa.Table]:
        """Slice and source -> the losing rows, with the schema LOSERS."""
        lost = self.take(self.fates != _WINNER)
        found = {}
        for key, at in lost._by_slice():
            rows = lost.rows.take(pa.array(at))
            for source in rows["_source"].unique().to_pylist():
                of_source = rows.filter(pc.equal(rows["_source"], source)).select(LOSERS.names).combine_chunks()
                objects = whole(of_source["_object_key"]).dictionary_encode()
                lines = whole(of_source["_line_number"])
                found[key, source] = pa.Table.from_arrays([objects, lines], schema=LOSERS)
        return found

    def _by_slice(self) -> Iterator[tuple[Slice, Longs]]:
        if not self.rows.num_rows:
            return
        projects = whole(self.rows["project_id"]).dictionary_encode()
        codes, days = projects.indices.to_numpy().astype(np.int64), numbers_of(self.rows["_day"])
        order = np.lexsort((days, codes))
        ends = np.flatnonzero((np.diff(days[order]) != 0) | (np.diff(codes[order]) != 0)) + 1
        for at in np.split(order, ends):
            yield Slice(_EPOCH + timedelta(days=int(days[at[0]])), projects.dictionary[int(codes[at[0]])].as_py()), at


def decide(rows: pa.Table, precedence: Sequence[Source], window_days: int) -> Decided:
    """The fate of each row (SCHEMA), in linear time; the least of equal rows wins unless another is held (`slice_difference`)."""
    keys, days = key_numbers(rows), numbers_of(rows["_day"])
    equal = equal_numbers(rows, keys)
    own_ranks = _ranks(rows, precedence)
    ranks = greatest_of(own_ranks, equal)
    lines, objects = numbers_of(rows["_line_number"]), _in_order(rows["_object_key"])
    places = len(lines) - group_numbers(lines, objects, source_places(rows, list(Source)))
    is_shown = greatest_of(places, equal) == places
    best, _ = best_near(cells_of(keys, days, window_days), ranks, window_days)
    has_copies, copies = _copies(rows, keys)
    best_copy = ranks.copy()
    cells = cells_of(copies, days[has_copies], window_days)
    best_copy[has_copies], _ = best_near(cells, ranks[has_copies], window_days)

    row_of = np.zeros(len(own_ranks), dtype=np.int64)
    row_of[own_ranks] = np.arange(len(own_ranks))
    is_copy = (best_copy > ranks) | (has_copies & ~is_shown)
    is_best_here = days[row_of[best]] == days
    fates: Longs = np.full(len(ranks), _OTHER_DAY)
    fates[is_best_here] = _SEND
    fates[is_copy] = _DELIVERY
    fates[(ranks == best) & is_shown] = _WINNER

    better = row_of[np.where(is_copy, best_copy, best)]
    received = numbers_of(rows[RECEIVED])
    is_equal = np.logical_and(*(half[better] == half for half in (numbers_of(rows[name]) for name in _CONTENT)))
    unread = whole(rows["_is_unread"]).to_numpy(zero_copy_only=False)
    is_close = (received[better] == received) & ~is_equal
    return Decided(rows, fates, is_close & (unread | unread[better]))


def best_of_days(rows: pa.Table, precedence: Sequence[Source]) -> pa.Table:
    """The best row of each key and day, and all that rank equal with it."""
    ranks = _ranks(rows, precedence)
    best, _ = best_near(cells_of(key_numbers(rows), numbers_of(rows["_day"]), 0), ranks, 0)
    return rows.filter(pa.array(best == ranks))


def key_numbers(rows: pa.Table) -> Longs:
    """A number from 0 for each row; rows with equal keys share it."""
    return group_numbers(*(numbers_of(rows[name]) for name in KEY))


def equal_numbers(rows: pa.Table, keys: Longs) -> Longs:
    """A number from 0 for each row; rows that are equal in every delivered column share it. `keys`: from `key_numbers`."""
    # The event time is delivered, so equal rows have one day.
    return group_numbers(*(numbers_of(rows[name]) for name in (*_CONTENT, "_day")), keys)


def greatest_of(numbers: Longs, groups: Longs) -> Longs:
    """For each row the greatest number (from 0) of its group."""
    greatest = np.zeros(len(groups), dtype=np.int64)
    np.maximum.at(greatest, groups, numbers)
    return np.asarray(greatest[groups])


def group_numbers(*columns: Longs) -> Longs:
    """A number from 0 for each row; rows with equal values in all columns share it."""
    order = np.lexsort(columns)
    is_first = np.zeros(len(order), dtype=np.bool_)
    for column in columns:
        is_first[1:] |= column[order[1:]] != column[order[:-1]]
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.cumsum(is_first)
    return found


def cells_of(groups: Longs, days: Longs, window_days: int) -> Longs:
    """A number for each row: within a group distances are those of days, between groups they exceed the window."""
    if not len(days):
        return days
    stride = int(days.max() - days.min()) + window_days + 1
    return np.asarray(groups * stride + (days - days.min()))


def neighbours(numbers: Longs, window_days: int) -> Iterator[tuple[slice, slice, Mask]]:
    """Pairs of distinct sorted cells within the window: two slices of `numbers`, and a mask of their pairs."""
    for shift in range(1, min(window_days, len(numbers) - 1) + 1):
        is_near = numbers[shift:] - numbers[:-shift] <= window_days
        if not is_near.any():
            return
        yield slice(None, -shift), slice(shift, None), is_near


def best_near(cells: Longs, ranks: Longs, window_days: int) -> tuple[Longs, Mask]:
    """For each row the highest rank in the cells within the window, and whether there is another such cell."""
    numbers, at = np.unique(cells, return_inverse=True)
    own = np.full(len(numbers), -1, dtype=np.int64)
    np.maximum.at(own, at, ranks)
    best, is_beside = own.copy(), np.zeros(len(numbers), dtype=np.bool_)
    for left, right, is_near in neighbours(numbers, window_days):
        np.maximum(best[left], own[right], out=best[left], where=is_near)
        np.maximum(best[right], own[left], out=best[right], where=is_near)
        is_beside[left] |= is_near
        is_beside[right] |= is_near
    return best[at], is_beside[at]


def _ranks(rows: pa.Table, precedence: Sequence[Source]) -> Longs:
    return group_numbers(
        numbers_of(rows["_line_number"]),
        _in_order(rows["_object_key"]),
        *(numbers_of(rows[name]) for name in _CONTENT),
        -source_places(rows, precedence),
        numbers_of(rows[PROCESSED]),
        numbers_of(rows[RECEIVED]),
    )


def source_places(rows: pa.Table, order: Sequence[Source]) -> Longs:
    """The place of each row's source in an order."""
    sources = whole(rows["_source"]).dictionary_encode()
    places = np.asarray([order.index(Source(name)) for name in sources.dictionary.to_pylist()], dtype=np.int64)
    return np.asarray(places[sources.indices.to_numpy()])


def _in_order(texts: pa.ChunkedArray) -> Longs:
    coded = whole(texts).dictionary_encode()
    places = np.empty(len(coded.dictionary) + 1, dtype=np.int64)
    places[pc.array_sort_indices(coded.dictionary).to_numpy()] = np.arange(len(coded.dictionary))
    places[-1] = -1
    return np.asarray(places[pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)])


def _copies(rows: pa.Table, keys: Longs) -> tuple[Mask, Longs]:
    """Rows that may be deliveries of one row, and a number that such rows share."""
    ids = whole(rows[ROW_ID]).dictionary_encode()
    are_named = ids.is_valid().to_numpy(zero_copy_only=False)
    has_copies: Mask = are_named | whole(rows["_is_nameless"]).to_numpy(zero_copy_only=False)
    # The key of a nameless row is its content, so its rows are deliveries of one row.
    codes = pc.fill_null(ids.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return has_copies, group_numbers(codes[has_copies], keys[has_copies])
