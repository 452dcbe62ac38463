"""Some of the keys that differ between two states of a slice, with the columns that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.inspection.diff.difference import Sample
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.key_changes import MOVED
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.key_changes import ADDED, CHANGED, REMOVED

_LONGEST_VALUE = 200


def samples_of(
    table: Table, live: DataFrame, proposed: DataFrame, changes: DataFrame, keys: KeyChange, most: int
) -> Iterator[Sample]:
    """At most a third of `most` samples (at least one) for each kind of change, chosen by the smallest key hashes.

    `changes`: the result of `key_changes` for the two frames, which hold the table's columns.
    """
    chosen = {change: _first(changes, change, max(1, most // 3)) for change in (CHANGED, REMOVED, ADDED)}
    pairs = [(row["_key_a"], row["_key_b"]) for rows in chosen.values() for row in rows]
    if not pairs:
        return
    old, new = (_rows_of(table, frame, pairs) for frame in (live, proposed))
    for change, rows in chosen.items():
        for row in rows:
            pair = (row["_key_a"], row["_key_b"])
            left, right = old.get(pair), new.get(pair)
            shown = right or left
            if shown is not None:
                cause = MOVED if row["is_moved"] else _other_cause(keys, change)
                yield Sample(change, cause, _name(table, shown), _values(table, left, right))


def _first(changes: DataFrame, change: str, most: int) -> list[Row]:
    of_kind = changes.where(F.col("change") == change).orderBy("_key_a", "_key_b").limit(most)
    return of_kind.select("_key_a", "_key_b", "is_moved").collect()


def _name(table: Table, row: Row) -> str:
    columns = builder_of(table).naming_columns
    return ", ".join(f"{name} {row[name]}" for name in columns if row[name] is not None)


def _other_cause(keys: KeyChange, change: str) -> str:
    causes = {ADDED: keys.added, REMOVED: keys.removed, CHANGED: keys.changed}[change]
    return next((cause for cause in causes if cause != MOVED), "")


def _rows_of(table: Table, frame: DataFrame, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Row]:
    firsts = [pair[0] for pair in pairs]
    rows = builder_of(table).with_keys(frame).where(F.col("_key_a").isin(firsts)).collect()
    return {(row["_key_a"], row["_key_b"]): row for row in rows}


def _values(table: Table, left: Row | None, right: Row | None) -> dict[str, tuple[str | None, str | None]]:
    def text(row: Row | None, column: str) -> str | None:
        if row is None or row[column] is None:
            return None
        value = str(row[column])
        return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"

    both = {column: (text(left, column), text(right, column)) for column in table.content_columns}
    return {column: values for column, values in both.items() if values[0] != values[1]}
