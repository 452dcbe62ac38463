"""One attempt at accepting a source's deliveries: what all its steps work with, and none of them changes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Digest, Slice, Source
from pipeline_assets.load.draft import LoadRuntime
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.tables.table import Table


@dataclass(frozen=True)
class Losses:
    """Slices of a raw table that cannot be read, or whose day in quarantine cannot; lost ones are empty in the attempt's base."""

    found: Mapping[Slice, Evaluation] = field(default_factory=dict)
    """Slice -> its refusal, which names a data file that is gone."""
    before: frozenset[Slice] = frozenset()
    """Those of them that an earlier run found, too."""
    of_lines: frozenset[Slice] = frozenset()
    """Those of which quarantine lost the refused lines."""
    holding: Mapping[Slice, Set[BatchKey]] = field(default_factory=dict)
    """Slice -> the batches that brought rows or refused lines of it."""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a load; another follows where objects moved."""

    runtime: LoadRuntime
    request: LoadRequest
    source: Source
    table: Table
    base_id: int
    """Snapshot of the table that everything is staged on."""
    name: str
    """Of branches and files; each attempt has another."""
    started_at: float
    """By the monotonic clock, seconds: of the first attempt."""
    may_list_again: bool = False
    """Whether batches that moved are tried once more in this run."""
    losses: Losses = field(default_factory=Losses)
    published_before: Mapping[Slice, Digest] = field(default_factory=dict)
    """What former attempts of this load accepted."""
