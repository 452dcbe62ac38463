"""The difference between a published slice and a build from its current inputs: figures, keys by cause, samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.inspection.pages import render


@dataclass(frozen=True)
class Sample:
    """One key that would be added, removed or changed."""

    change: str
    """`added`, `removed` or `changed`."""
    cause: str
    name: str
    """The row's identifying columns, for display."""
    values: Mapping[str, tuple[str | None, str | None]]
    """Column -> (published, proposed) value, for columns that differ."""


@dataclass(frozen=True)
class Difference:
    """One slice as published, and as a load would build it now."""

    table: str
    key: Slice
    standing: str
    """The recorded verdict with its reason."""
    todo: str
    """What a load would do with the slice."""
    published: Digest
    proposed: Digest
    measures: Mapping[str, tuple[float, float]]
    """Measure -> (published, proposed)."""
    keys: KeyChange
    evaluation: Evaluation
    """`change_is_explained`, evaluated for the proposed slice."""
    is_bounded: bool
    """Whether change bounds apply; they do not for provisional days and small slices."""
    samples: tuple[Sample, ...]

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same rows."""
        return self.published == self.proposed

    @property
    def verdict(self) -> str:
        """The result of `change_is_explained`, in words."""
        if not self.is_bounded:
            return "not bounded: the day was provisional, or the slice is small"
        return "keeps within bounds" if self.evaluation.is_passed else f"refused: {self.evaluation.reason}"


def lines_of(difference: Difference, *, with_values: bool = True) -> Iterator[str]:
    """The difference as lines of text; without values, a sample lists only its differing columns and does not name its row."""
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
            # The name of a row is delivered data as well: its ids, its time, a currency.
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


def page_of(difference: Difference) -> str:
    """The whole page as HTML, including its style."""
    keys = difference.keys
    parts = (
        ("kept", "equal", {"": keys.kept}),
        ("changed", "different", keys.changed),
        ("removed", "only published", keys.removed),
        ("added", "only proposed", keys.added),
    )
    whole = sum(sum(causes.values()) for _, _, causes in parts) or 1
    return render("diff.html", found=difference, parts=parts, whole=whole)


def write_page(difference: Difference, folder: Path) -> Path:
    """Write the page to a file in the folder, which is created if missing; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    key = difference.key
    path = folder / f"{difference.table.replace('/', '.')}_{key.event_date}_{key.project_id}.html"
    path.write_text(page_of(difference), "utf-8")
    return path
