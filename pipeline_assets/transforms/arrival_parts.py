"""Divides the rows of a slice among files by arrival day, so that a change of few late rows copies few rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.longs import Longs, longs

RECEIVED = EXPORT_FORMAT.received_column
"""The column with the time that decides on which day a row arrives. Refined holds it too, unlike `_arrival_date`."""
_DAY = 24 * 60 * 60 * 1_000_000
_LEAST_ROWS = 10_000
"""A file of fewer rows costs more to open, again and again, than its rows cost to copy."""
_MOST_SHARES = 8
"""A whole slice becomes at most so many files and one more, however many days its rows arrived on."""


@dataclass(frozen=True)
class ArrivalParts:
    """Consecutive arrival days, each part in files of its own: usually the day that brought most rows, and all days after it."""

    ends: Longs
    """The last day of each part but the last one, since 1970; a row without a time is of day 0."""

    @staticmethod
    def of(rows: int, narrow: Iterable[pa.Table]) -> ArrivalParts:
        """Parts for so many rows; `narrow`: the rows with RECEIVED, which are not read where they are few.

        A part ends with the day that gives it an eighth of the rows, and at least _LEAST_ROWS.
        """
        if rows <= _LEAST_ROWS:
            return ArrivalParts(np.zeros(0, dtype=np.int64))
        found, counts = np.unique(np.concatenate([_days(of) for of in narrow]), return_counts=True)
        least = max(_LEAST_ROWS, -(-rows // _MOST_SHARES))
        ends, held = [], 0
        for day, count in zip(found.tolist(), counts.tolist(), strict=True):
            held += count
            if held >= least:
                ends.append(day)
                held = 0
        return ArrivalParts(np.asarray(ends, dtype=np.int64))

    def divide(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows (with RECEIVED) of each part that has some, with its number."""
        at = np.searchsorted(self.ends, _days(rows))
        numbers = np.unique(at).tolist()
        for number in numbers:
            yield number, rows if len(numbers) == 1 else rows.filter(pa.array(at == number))


def _days(rows: pa.Table) -> Longs:
    return longs(rows[RECEIVED]) // _DAY
