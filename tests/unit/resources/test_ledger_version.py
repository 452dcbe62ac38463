"""A ledger of another schema is refused unchanged; one whose creation is killed is created by the next process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.errors import LedgerError
from resources.ledger.schema import METADATA, SCHEMA_VERSION
from resources.ledger.store import Ledger

Rows = dict[str, list[str]]
"""Table -> its rows as text, in any order."""


@pytest.fixture
def url(any_ledger: Ledger) -> str:
    return any_ledger.url.replace("postgresql:", "postgresql+psycopg2:")


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """A transaction beside the ledger's own."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def rows_of(url: str) -> Rows:
    with connected(url) as connection:
        return {
            name: sorted(
                repr(sorted(row.items())) for row in connection.exec_driver_sql(f"SELECT * FROM {name}").mappings()
            )
            for name in sa.inspect(connection).get_table_names()
        }


def open_ledger(url: str) -> None:
    """Open it as the first question does."""
    with closing(Ledger(url)) as ledger:
        assert ledger.engine


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_before_write(number: int) -> Iterator[None]:
    """The process ends before its k-th writing statement."""
    left = number

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal left
        if statement.lstrip().startswith(("CREATE", "INSERT")):
            left -= 1
            if left < 0:
                raise Killed

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)


def test_a_ledger_whose_creation_is_killed_is_created_by_the_next_process(url: str) -> None:
    """Outcome: a death before the k-th statement leaves nothing, and the next process makes all of it."""
    for number in (0, 1, 5, len(METADATA.sorted_tables)):
        with pytest.raises(Killed), killed_before_write(number):
            open_ledger(url)
        assert rows_of(url) == {}
    open_ledger(url)
    assert rows_of(url).keys() == METADATA.tables.keys()
    with connected(url) as connection:
        assert connection.exec_driver_sql("SELECT version FROM tidemark_schema").all() == [(SCHEMA_VERSION,)]


@pytest.mark.parametrize(
    ("step", "age", "remedy"),
    [(1, "a newer", "pip install --upgrade tidemark-pipeline"), (-1, "an earlier", "tidemark attach --ledger")],
)
def test_a_ledger_of_another_schema_is_refused_and_left_alone(url: str, step: int, age: str, remedy: str) -> None:
    open_ledger(url)
    with connected(url) as connection:
        connection.exec_driver_sql(f"UPDATE tidemark_schema SET version = {SCHEMA_VERSION + step}")
        connection.exec_driver_sql("DROP TABLE tidemark_holds")
    before = rows_of(url)
    with pytest.raises(LedgerError) as refusal:
        open_ledger(url)
    assert refusal.value.subject == sa.make_url(url).render_as_string(hide_password=True)
    versions = f"(schema {SCHEMA_VERSION + step}; this one knows {SCHEMA_VERSION})"
    assert refusal.value.reason == f"was written by {age} Tidemark {versions}, and nothing was touched"
    assert remedy in refusal.value.hint
    assert rows_of(url) == before
