"""Keeps the SQLite files of Dagster's instance open during a run; Dagster opens one anew for each of hundreds of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import dagster as dg
from dagster._core.storage.event_log import SqliteEventLogStorage  # no public name in Dagster 1.13
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from sqlalchemy import Connection, Engine, create_engine, event, inspect

_LONGEST = {"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}


@contextmanager
def kept_connections(instance: dg.DagsterInstance) -> Iterator[None]:
    """Use one engine per SQLite file in the block, and so its connection and its compiled statements, and close all at its end.

    Does nothing for other databases, and nothing in a block within such a block.
    """
    events, runs = instance.event_log_storage, instance.run_storage
    with ExitStack() as stack:
        engines = _Engines()
        stack.callback(engines.close)
        if type(events) is SqliteEventLogStorage and "_connect" not in vars(events):
            index = events.conn_string_for_shard(INDEX_SHARD_NAME)
            _replace(stack, events, "_connect", _of_events(events, engines))
            _replace(stack, events, "has_table", lambda name: inspect(engines.of(index)).has_table(name))
        if type(runs) is SqliteRunStorage and "connect" not in vars(runs):
            _replace(stack, runs, "connect", lambda: engines.of(runs._conn_string).begin())
        yield


class _Engines:
    def __init__(self) -> None:
        self._kept: dict[str, Engine] = {}

    def of(self, url: str) -> Engine:
        """The engine of a file."""
        if url not in self._kept:
            engine = self._kept[url] = create_engine(url, connect_args=_LONGEST)
            event.listen(engine, "connect", _wait_for_no_disk)
        return self._kept[url]

    def close(self) -> None:
        """Close all files."""
        for engine in self._kept.values():
            engine.dispose()


def _wait_for_no_disk(connection: Any, _: object) -> None:
    """A machine that loses power may lose the last events, which leaves a run for `dead_runs`; a killed process loses none."""
    connection.execute("PRAGMA synchronous = NORMAL")


def _of_events(
    storage: SqliteEventLogStorage, engines: _Engines
) -> Callable[[str], AbstractContextManager[Connection]]:
    @contextmanager
    def connect(shard: str) -> Iterator[Connection]:
        with storage._db_lock:
            engine = engines.of(storage.conn_string_for_shard(shard))
            if shard not in storage._initialized_dbs:
                storage._initdb(engine)
                storage._initialized_dbs.add(shard)
            with engine.begin() as connection:
                yield connection

    return connect


def _replace(stack: ExitStack, storage: object, name: str, method: Callable[..., Any]) -> None:
    setattr(storage, name, method)
    stack.callback(delattr, storage, name)
