"""What a build is: staged rows of a derived table, and the audit that measures them.

Contains: the values that builds and their judges exchange.
Add here: something every audit tells.
Does not contain: building (refined.py, aggregate.py) and judging (verdicts.py).
"""

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
    """What one pass over a staged slice found."""

    digest: Digest
    measures: Mapping[str, float]
    """What `change_is_explained` bounds."""
    figures: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]
    competing_digests: str | None = None
    """Digest of the rows on other days that share a key with the slice's own; None for tables without keys."""
    is_on_two_days: bool = False
    """Whether its only duplicate keys are those that a neighbouring day holds as well."""


@dataclass(frozen=True)
class Build:
    """Rows to stage, and how to audit them once they are."""

    rows: DataFrame
    audit: Callable[[int], dict[Slice, Audit]]
    """Staged snapshot id -> one audit per slice to build, empty ones included."""
    release: Callable[[], None] = lambda: None
    """Frees what was cached between build and audit."""
    is_shuffled: bool = True
    """Whether rows of a slice may lie anywhere; False where tasks hold what upstream files of few slices hold."""
    write: Callable[[], FileChange] | None = None
    """Writes the same rows into files of the table without Spark's writer; None where it is not able to."""
    keys: dict[Slice, KeyDifference] = field(default_factory=dict)
    """Filled by `write`: what becomes of the keys of slices that it wrote as their difference."""
