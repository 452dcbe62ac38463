"""Cases of bad inputs beside exports, as docs/bad-inputs.md shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline_assets.transforms.snapshot_rows import ObjectKind, SnapshotWork
from tests.support.read_objects import Objects

DAY = date(2026, 2, 2)
MAX_BYTES, MAX_LINE_BYTES = 400_000, 200_000
NOTHING = "Nothing."
CORRECT = "Put a corrected object on the same name; every load notices it."


class Fate(StrEnum):
    READ = "read"
    REFUSED = "refused whole, the day keeps its old state"
    NOT_LOADED = "not loaded; the run's log names it"
    WAITS = "waits, the day keeps its old state"
    HISTORY_REFUSED = "refused whole, all that is published stays"
    HISTORY_WAITS = "waits, all that is published stays"
    COMPARED = "compared"
    PARTLY = "named; the lines beside it are compared, and it retracts nothing"
    NOT_COMPARED = "named; nothing of it is compared, and it retracts nothing"


@dataclass(frozen=True)
class Case:
    """One row; `look` gives the fate and its text."""

    name: str
    fate: Fate
    said: str
    """Part of the text; empty where there is none."""
    hint: str
    look: Callable[[Path], tuple[Fate, str]]
    keeps: str = ""

    @property
    def row(self) -> str:
        said = f"`{self.said}`" if self.said else "–"
        fate = f"{self.fate}: {self.keeps}" if self.keeps else self.fate
        return f"| {' | '.join((self.name, fate, said, self.hint))} |"


def rows_of(body: bytes, key: str, kind: ObjectKind) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of an object of `DAY`, and its summary."""
    place = {"day": DAY, "key": key, "etag": "v1", "size_bytes": len(body)}
    work = SnapshotWork(Objects({key: body}), kind, MAX_BYTES, MAX_LINE_BYTES)
    *rows, summary = [row for batch in work([pa.RecordBatch.from_pylist([place])]) for row in batch.to_pylist()]
    return rows, summary
