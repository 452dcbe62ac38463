"""The digest of rows of an event table, from the hashes stored with them, or from their content where these are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import UNMEASURABLE, Digest
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes
from pipeline_assets.transforms.longs import Longs, Mask, exact_sum, longs


@dataclass(frozen=True)
class HashedRows:
    """Both halves of the hash of each row, and which rows are not what their stored hashes say."""

    first: Longs
    second: Longs
    are_false: Mask

    def digest(self, chosen: Mask | slice = slice(None)) -> Digest:
        """Of all rows or some; with a row whose stored hash is false it equals none of sound rows."""
        first, second, are_false = self.first[chosen], self.second[chosen], self.are_false[chosen]
        version = UNMEASURABLE if are_false.any() else ROW_HASH_VERSION
        return Digest(len(first), exact_sum(first), exact_sum(second), version)


@dataclass(frozen=True)
class HashSource:
    """Where the hashes of rows come from: what is stored, or what `checked` makes of all columns, compared with it."""

    checked: EventHashes | None = None

    @property
    def types(self) -> Mapping[str, str]:
        """Column to read -> Spark type."""
        if self.checked is None:
            return dict.fromkeys(HASH_COLUMNS[:2], "bigint")
        return {**self.checked.types, **dict.fromkeys(HASH_COLUMNS, "bigint")}

    def of(self, rows: pa.Table, project_id: str | None = None) -> HashedRows:
        """The hashes of rows with the columns of `types`, all of one project, or with a column of it."""
        if self.checked is None:
            first, second = (longs(rows.column(name)) for name in HASH_COLUMNS[:2])
            return HashedRows(first, second, np.zeros(rows.num_rows, np.bool_))
        if project_id is not None:
            of_project = pa.repeat(pa.scalar(project_id, pa.string()), rows.num_rows)
            rows = rows.select(list(self.types)).append_column("project_id", of_project)
        made = self.checked.of(rows)
        are_false = np.zeros(rows.num_rows, np.bool_)
        for name, values in made.items():
            is_equal = pc.fill_null(pc.equal(rows.column(name), values), False)
            are_false |= ~is_equal.to_numpy()
        return HashedRows(longs(made[HASH_COLUMNS[0]]), longs(made[HASH_COLUMNS[1]]), are_false)
