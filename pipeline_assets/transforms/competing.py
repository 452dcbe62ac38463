"""Digests of competing rows: what other days hold of a slice's keys, by which a load knows that they changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.identity import with_tie
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source
from pipeline_assets.transforms.contest import (
    cells_of,
    equal_numbers,
    group_numbers,
    key_numbers,
    neighbours,
    source_places,
)
from pipeline_assets.transforms.contested_columns import PROCESSED, RECEIVED, numbers_of
from pipeline_assets.transforms.event_hashes import whole
from pipeline_assets.transforms.event_keys import KEY, ROW_ID
from pipeline_assets.transforms.longs import Longs, Mask
from pipeline_assets.transforms.row_hash_arrow import Encoded

_RIVAL = {
    "_day": "int",
    **dict.fromkeys(KEY, "bigint"),
    ROW_ID: "string",
    RECEIVED: "timestamp",
    PROCESSED: "timestamp",
    "_source": "string",
}
"""What competing rows compare. Content is left out because it only decides ties; a slice with a tie never counts as unchanged."""
_HALF = 32
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class CompetingSum:
    """The competing rows of a slice: rows of other days within the window whose key the slice holds. Additive."""

    digest: Digest = EMPTY
    is_tied: bool = False
    """Whether content alone decides between one of them and a row of the slice."""

    def __add__(self, other: CompetingSum) -> CompetingSum:
        """Of disjoint sets of competing rows."""
        return CompetingSum(self.digest + other.digest, self.is_tied or other.is_tied)

    def __str__(self) -> str:
        """As a slice's record keeps it."""
        return with_tie(str(self.digest)) if self.is_tied else str(self.digest)


def competing_sums(
    rows: pa.Table, precedence: Sequence[Source], window_days: int, is_guest: Mask | None = None
) -> dict[Slice, CompetingSum]:
    """Slice -> its competing rows among these (`contested_columns.SCHEMA`, one or more); slices without any are left out.

    Equal rows count once, with the source that goes first. Guests stand for rows that are counted elsewhere: they show that their
    day holds the key, and are in no digest.
    """
    counted = np.ones(rows.num_rows, dtype=np.bool_) if is_guest is None else ~is_guest
    # Most rows share their key with rows of their own day only.
    is_beside = _are_beside(key_numbers(rows), numbers_of(rows["_day"]), window_days)
    if not is_beside.any():
        return {}
    rows, counted = rows.filter(pa.array(is_beside)).combine_chunks(), counted[is_beside]
    keys = key_numbers(rows)
    is_one = _one_of_equals(rows, keys, precedence, counted)
    rows, counted, keys = rows.filter(pa.array(is_one)).combine_chunks(), counted[is_one], keys[is_one]
    days = numbers_of(rows["_day"])
    cells, first, at = np.unique(cells_of(keys, days, window_days), return_index=True, return_inverse=True)
    of_cells = _sums(rows, at, counted, len(cells))
    projects = whole(rows["project_id"]).dictionary_encode()
    slices = group_numbers(days, projects.indices.to_numpy().astype(np.int64))
    slice_of_cell = slices[first]
    found = np.zeros((int(slices.max()) + 1, of_cells.shape[1]), dtype=np.int64)
    for left, right, is_near in neighbours(cells, window_days):
        for own, other in ((left, right), (right, left)):
            np.add.at(found, slice_of_cell[own][is_near], of_cells[other][is_near])
    tied = set(slices[_tied(rows, keys, days, window_days)].tolist())
    told = {}
    for number, place in zip(*np.unique(slices, return_index=True), strict=True):
        count, *halves = found[number].tolist()
        digest = Digest(count, *((high << _HALF) + low for high, low in zip(halves[::2], halves[1::2], strict=True)))
        if count or number in tied:
            key = Slice(_EPOCH + timedelta(days=int(days[place])), rows["project_id"][int(place)].as_py())
            told[key] = CompetingSum(digest, int(number) in tied)
    return told


def _sums(rows: pa.Table, cells: Longs, is_counted: Mask, count: int) -> Longs:
    """For each cell the number of its counted rows, and the high and low halves of the sums of both hashes."""
    chosen = rows.filter(pa.array(is_counted)).combine_chunks()
    sums = np.zeros((count, 5), dtype=np.int64)
    if not chosen.num_rows:
        return sums
    hashes = Encoded({name: whole(chosen[name]) for name in _RIVAL}, _RIVAL).hashes()
    parts: list[Longs] = [np.ones(chosen.num_rows, dtype=np.int64)]
    for half in map(numbers_of, hashes):
        # By halves, because the sum of 64-bit hashes overflows.
        parts += [half >> _HALF, half & ((1 << _HALF) - 1)]
    np.add.at(sums, cells[is_counted], np.stack(parts, axis=1))
    return sums


def _one_of_equals(rows: pa.Table, keys: Longs, precedence: Sequence[Source], is_counted: Mask) -> Mask:
    """The rows that stand for themselves: of equal counted rows the one whose source goes first, and every other row."""
    equal = equal_numbers(rows, keys)
    order = np.lexsort((source_places(rows, precedence), equal, ~is_counted))
    is_one = np.ones(len(order), dtype=np.bool_)
    is_one[order[1:]] = (equal[order[1:]] != equal[order[:-1]]) | ~is_counted[order[1:]]
    return is_one


def _tied(rows: pa.Table, keys: Longs, days: Longs, window_days: int) -> Mask:
    """The rows that another day within the window holds with the same key, times and source."""
    sources = whole(rows["_source"]).dictionary_encode().indices.to_numpy().astype(np.int64)
    orders = group_numbers(keys, sources, numbers_of(rows[PROCESSED]), numbers_of(rows[RECEIVED]))
    return _are_beside(orders, days, window_days)


def _are_beside(groups: Longs, days: Longs, window_days: int) -> Mask:
    """The rows of whose group another day within the window holds a row."""
    cells, at = np.unique(cells_of(groups, days, window_days), return_inverse=True)
    is_beside = np.zeros(len(cells), dtype=np.bool_)
    for left, right, is_near in neighbours(cells, window_days):
        is_beside[left] |= is_near
        is_beside[right] |= is_near
    found: Mask = is_beside[at]
    return found
