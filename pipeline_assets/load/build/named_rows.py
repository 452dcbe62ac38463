"""A base class for builders of tables whose own columns identify their rows, which never move to another day."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from pipeline_assets.load.build.builder import Builder, Proposal, TableT, kept
from pipeline_assets.transforms.compared_keys import Contents, NamedContents
from pipeline_assets.transforms.key_changes import row_contents, with_keys


class NamedRowsBuilder(Builder[TableT], ABC):
    """A builder that derives keys and contents of rows from `naming_columns`."""

    def contents(self, rows: DataFrame) -> DataFrame:
        """Keys from the naming columns; hashes over all content columns."""
        return row_contents(rows, self.naming_columns, self.table.content_columns)

    @property
    def key_contents(self) -> Contents:
        """The same, by tasks."""
        types = {column.name: column.type for column in self.table.columns}
        names = (("project_id", *self.naming_columns), self.table.content_columns)
        return NamedContents(*({name: types[name] for name in of_kind} for of_kind in names))

    def with_keys(self, rows: DataFrame) -> DataFrame:
        """The rows plus keys from the naming columns."""
        return with_keys(rows, self.naming_columns)

    @contextmanager
    def alone(self, rows: DataFrame) -> Iterator[Proposal]:
        """A proposal without neighbours, because no other slice exchanges rows with it."""
        with kept(rows) as built:
            nowhere = self.contents(built).limit(0).select("event_date", "project_id", "_key_a", "_key_b")
            yield Proposal(built, nowhere, nowhere)
