"""Builders of tables whose rows are named by columns of their own, and never move to another day.

Contains: what such builders answer alike: keys, contents, and a proposal that exchanges nothing.
Add here: another answer that follows from the naming columns alone.
Does not contain: building (one module per kind), the questions (builder.py).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from pipeline_assets.load.build.builder import Builder, Proposal, TableT, kept
from pipeline_assets.transforms.key_changes import row_contents, with_keys


class NamedRowsBuilder(Builder[TableT], ABC):
    """A builder that answers from `naming_columns` what a row is called and what it says."""

    def contents(self, rows: DataFrame) -> DataFrame:
        """By the naming columns, the content of all."""
        return row_contents(rows, self.naming_columns, self.table.content_columns)

    def with_keys(self, rows: DataFrame) -> DataFrame:
        """By the naming columns."""
        return with_keys(rows, self.naming_columns)

    @contextmanager
    def alone(self, rows: DataFrame) -> Iterator[Proposal]:
        """A slice as it would be built, beside no other: none gives it a row."""
        with kept(rows) as built:
            nowhere = self.contents(built).limit(0).select("event_date", "project_id", "_key_a", "_key_b")
            yield Proposal(built, nowhere, nowhere)
