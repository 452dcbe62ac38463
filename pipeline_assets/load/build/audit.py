"""The values of a build: rows to stage, and the audit that measures them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.slices import Digest, Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline_assets.transforms.slice_difference import KeyDifference
    from resources.iceberg.table_files import FileChange


@dataclass(frozen=True)
class Audit:
    """The measurements of one staged slice."""

    digest: Digest
    measures: Mapping[str, float]
    """Figures that `change_is_explained` bounds."""
    figures: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]
    competing_digests: str | None = None
    """Digest of the rows on other days that share a key with the slice; None for tables without event keys."""
    is_on_two_days: bool = False
    """Whether it has duplicate keys, and all of them are shared with neighbouring days only."""


@dataclass(frozen=True)
class Build:
    """Rows to stage, and how to write and audit them."""

    rows: DataFrame | None
    """None where only `write` gives them."""
    audit: Callable[[int], dict[Slice, Audit]]
    """Staged snapshot id -> one audit per slice to build, empty ones included."""
    release: Callable[[], None] = lambda: None
    """Frees what was cached between build and audit."""
    is_shuffled: bool = True
    """Whether any task may hold rows of any slice; False if tasks read upstream files and so hold rows of few slices."""
    write: Callable[[], FileChange] | None = None
    """Writes the same rows to files of the table without Spark's writer; None if that is not possible."""
    keys: dict[Slice, KeyDifference] = field(default_factory=dict)
    """Filled by `write`: how keys change in slices that it wrote as a difference."""
