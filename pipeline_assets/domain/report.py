"""Reports of operations: tables and sentences, which the shell and Dagster's page draw each in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Styled(NamedTuple):
    """A value with a style of rich's for terminals, such as `bold red`."""

    value: object
    style: str

    def __str__(self) -> str:
        """Render without the style."""
        return str(self.value)


class Table(NamedTuple):
    """Rows of values; a report shows no table without rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
