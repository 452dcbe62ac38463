"""A published slice beside the one that its inputs say now: figures, keys by cause, and samples; as text.

Contains: the values and their wording.
Add here: another thing told of a difference.
Does not contain: finding it (compare.py) and the page (page.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.slices import Digest, Slice


@dataclass(frozen=True)
class Sample:
    """One key that would come, go or change."""

    change: str
    """`added`, `removed` or `changed`."""
    cause: str
    name: str
    """What names the row, for people."""
    values: Mapping[str, tuple[str | None, str | None]]
    """Column -> published and proposed value, of the columns that differ."""


@dataclass(frozen=True)
class Difference:
    """One slice as it is published and as a load of it would build it now."""

    table: str
    key: Slice
    standing: str
    """The verdict on record, with its reason."""
    todo: str
    """What a load would do about it."""
    published: Digest
    proposed: Digest
    measures: Mapping[str, tuple[float, float]]
    """Measure -> published and proposed."""
    keys: KeyChange
    evaluation: Evaluation
    """`change_is_explained` of the proposed slice."""
    is_bounded: bool
    """Whether bounds apply at all: not to provisional days and small slices."""
    samples: tuple[Sample, ...]

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same rows."""
        return self.published == self.proposed

    @property
    def verdict(self) -> str:
        """What the check on changes says of it."""
        if not self.is_bounded:
            return "not bounded: the day was provisional, or the slice is small"
        return "keeps within bounds" if self.evaluation.is_passed else f"refused: {self.evaluation.reason}"


def lines_of(difference: Difference, *, with_values: bool = True) -> Iterator[str]:
    """The difference as text, a line each; without values, samples tell only the columns that differ, of no named row."""
    found = difference
    yield f"{found.table} {found.key}"
    yield f"  on record: {found.standing}"
    yield f"  a load of the day: {found.todo}"
    yield ""
    yield f"  {'':<24}{'published':>16}{'proposed':>16}{'change':>12}"
    for name, (before, after) in found.measures.items():
        yield f"  {name:<24}{before:>16,.12g}{after:>16,.12g}{_share(before, after):>12}"
    yield ""
    keys = found.keys
    yield f"  keys only published: {keys.totals['keys_removed']:,}{_by(keys.removed)}"
    yield f"  keys only proposed:  {keys.totals['keys_added']:,}{_by(keys.added)}"
    yield f"  keys that differ:    {keys.totals['keys_changed']:,}{_by(keys.changed)}"
    yield f"  keys that are equal: {keys.kept:,}"
    yield ""
    yield f"  {found.verdict}"
    for sample in found.samples:
        yield ""
        if not with_values:
            # What names the row was delivered as well: its ids, its time, a currency.
            yield f"  {sample.change} ({sample.cause}): {', '.join(sample.values)}"
            continue
        yield f"  {sample.change} ({sample.cause}): {sample.name}"
        for column, (before_value, after_value) in sample.values.items():
            yield f"    {column}: {before_value} -> {after_value}"


def _share(before: float, after: float) -> str:
    if before == after:
        return ""
    return "new" if not before else f"{(after - before) / abs(before):+.1%}"


def _by(causes: Mapping[str, int]) -> str:
    said = ", ".join(f"{cause} {count:,}" for cause, count in sorted(causes.items(), key=lambda part: -part[1]))
    return f" ({said})" if said else ""
