"""A publish through a REST catalog that commits several tables at once: all of them or none, and the ledger after them."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from pipeline_assets.domain.errors import (
    LakehouseError,
    LakehouseUnavailableError,
    LedgerUnavailableError,
    SliceConflictError,
)
from pipeline_assets.domain.records import Head
from pipeline_assets.domain.slices import Digest
from resources.failpoints import Failpoint
from resources.iceberg import slice_changes
from resources.iceberg.lakehouse import Lakehouse
from resources.publishing import Promise, TablesTogether
from resources.spark.session import configure_catalog
from tests.spark.test_one_transaction import BOTH, Lake, Stop, a_lake, at, commit_ends, lost_before
from tests.support import rest_catalog
from tests.support.builders import PROJECT
from tests.support.rest_catalog import TRANSACTIONS, Answered, NoAnswerError, a_rest_catalog, endpoints

pytestmark = pytest.mark.slow
COMMIT = f"POST {TRANSACTIONS}"


@dataclass
class Server:
    asked: list[str]
    behaviour: Callable[[str, Callable[[], Answered]], Answered] | None = None

    def answer(self, request: str, respond: Callable[[], Answered]) -> Answered:
        return respond() if self.behaviour is None else self.behaviour(request, respond)


@pytest.fixture(scope="module")
def _served(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, Server]]:
    folder = tmp_path_factory.mktemp("tables_together")
    server = Server([])
    with a_rest_catalog(folder / "rest", server.answer) as (url, server.asked):
        places = {"catalog_url": url, "catalog_transactions": True, "ledger_url": f"sqlite:///{folder}/ledger.db"}
        with a_lake(spark, folder, Promise.TABLES_TOGETHER, **places) as made:
            yield made, server


@pytest.fixture
def lake(_served: tuple[Lake, Server]) -> Lake:
    return _served[0]


@pytest.fixture
def server(_served: tuple[Lake, Server]) -> Iterator[Server]:
    _served[1].asked.clear()
    yield _served[1]
    _served[1].behaviour = None


def ledger_rows(lake: Lake) -> dict[str, list[str]]:
    with closing(sqlite3.connect(str(lake.settings.ledger_url).removeprefix("sqlite:///"))) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(map(repr, database.execute(f"SELECT * FROM {name}"))) for name in names}


def heads(lake: Lake) -> list[int]:
    return [lake.lakehouse.head(table) for table in BOTH]


def test_both_tables_change_in_one_commit_and_the_ledger_after_it(lake: Lake, server: Server) -> None:
    """Scenario: readers look before the commit of two tables, and between it and the ledger's end.
    Outcome: the old state, both tables at once with the old ledger, then agreement without branches, by one request."""
    key = lake.a_slice()
    request = lake.request(key, 3)
    server.asked.clear()
    seen: list[Any] = []
    with at(Failpoint.IN_TRANSACTION, "", lambda: seen.append(lake.rows(key))):
        published = lake.publish(request)
    assert seen == [[0, 0]]
    assert [asked for asked in server.asked if asked.startswith("POST") and "metrics" not in asked] == [COMMIT]
    assert lake.rows(key) == [3, 3]
    for table in BOTH:
        assert lake.lakehouse.head(table) == published[table.key].snapshot_id
        assert lake.ledger.head(table.key) == Head(published[table.key].snapshot_id)
        assert lake.refs(table) == {"main"}
    (recorded,) = lake.ledger.publications(BOTH[1].key, [PROJECT], [key.event_date])
    assert recorded.pins == {BOTH[0].key: published[BOTH[0].key].snapshot_id}

    other = lake.a_slice()
    request, before = lake.request(other, 2), ledger_rows(lake)
    with at(Failpoint.AFTER_COMMIT, "", lambda: seen.append((lake.rows(other), ledger_rows(lake)))):
        lake.publish(request)
    assert seen[1:] == [([2, 2], before)]
    assert lake.rows(other) == [2, 2]


def test_what_the_ledger_or_the_server_refuses_is_shown_nowhere(
    lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a publish ends early, an input moved, a slice is held, the server refuses or serves no transactions.
    Outcome: each time tables and ledger are unchanged; in the end it succeeds."""
    key = lake.a_slice()
    request = lake.request(key, 2)
    at_rest, tables = ledger_rows(lake), heads(lake)

    def is_as_it_was() -> bool:
        return (ledger_rows(lake), heads(lake), lake.rows(key)) == (at_rest, tables, [0, 0])

    with at(Failpoint.IN_TRANSACTION, "", lambda: (_ for _ in ()).throw(Stop)), pytest.raises(Stop):
        lake.publish(request)
    assert is_as_it_was()
    with pytest.raises(SliceConflictError, match="another run published it"):
        lake.publish(replace(request, rests_on={("refined/events", key): Digest(9, 9, 9)}))
    assert is_as_it_was()

    last = BOTH[-1].key
    lake.ledger.interventions.hold({last: [key]}, "why", "person")
    with pytest.raises(SliceConflictError, match="an operator held it"):
        lake.publish(request)
    lake.ledger.interventions.release({last: [key]}, "done", "person")
    at_rest |= {"tidemark_holds": ledger_rows(lake)["tidemark_holds"]}
    assert is_as_it_was()

    forbidden = (403, {"error": {"message": "not yours", "type": "ForbiddenException", "code": 403}})
    server.behaviour = lambda asked, respond: forbidden if asked == COMMIT else respond()
    with pytest.raises(LakehouseError, match="not yours"):
        lake.publish(request)
    assert is_as_it_was()

    server.behaviour = None
    lake.publish(request)
    assert lake.rows(key) == [2, 2]


def test_a_server_without_transactions_is_named(lake: Lake, server: Server, spark: Any) -> None:
    """Outcome: a sentence names the setting; nothing is shown."""
    key = lake.a_slice()
    request = lake.request(key, 1)
    at_rest = (ledger_rows(lake), heads(lake))
    without = (200, {"defaults": {}, "overrides": {}, "endpoints": endpoints(without=[TRANSACTIONS])})
    server.behaviour = lambda asked, respond: without if asked.startswith("GET /v1/config") else respond()
    # Under another name of the catalog, because a server's endpoints are asked once for each.
    again = lake.settings.model_copy(update={"catalog_name": f"lake_{uuid.uuid4().hex[:8]}"})
    configure_catalog(spark, again)
    elsewhere = replace(lake, settings=again, lakehouse=Lakehouse(spark, again.catalog_name))
    with pytest.raises(LakehouseError, match="does not commit several tables at once") as refused:
        elsewhere.publish(request)
    assert "TIDEMARK_CATALOG_TRANSACTIONS" in refused.value.hint
    assert (ledger_rows(lake), heads(lake)) == at_rest


def test_what_others_did_meanwhile_is_kept_and_slices_they_took_are_conflicts(
    lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: after both tables are prepared, another writer commits another slice; then the same one.
    Outcome: both are there, after a second commit; then a conflict that names it, and nothing of ours is shown."""
    key, theirs = lake.a_slice(), lake.a_slice()
    request = lake.request(key, 3)
    with at(Failpoint.IN_TRANSACTION, "", lambda: lake.foreign(BOTH[1], theirs, 4)):
        lake.publish(request)
    assert (lake.rows(key), lake.rows(theirs)) == ([3, 3], [0, 4])
    assert server.asked.count(COMMIT) == 2

    taken = lake.a_slice()
    request = lake.request(taken, 3)
    before = ledger_rows(lake)
    tried, publish = [], TablesTogether._published
    monkeypatch.setattr(TablesTogether, "_published", lambda self, asked: tried.append(asked) or publish(self, asked))
    with (
        at(Failpoint.IN_TRANSACTION, "", lambda: lake.foreign(BOTH[1], taken, 5, "theirs")),
        pytest.raises(SliceConflictError, match="run theirs changed it") as conflict,
    ):
        lake.publish(request)
    assert conflict.value.slices == {(BOTH[1].key, taken)}
    assert (lake.rows(taken), ledger_rows(lake)) == ([0, 5], before)
    assert len(tried) == 2, (
        "the second one finds what was lost, which has to be built again: a third one is for nothing"
    )


def test_a_lost_answer_is_looked_for_in_the_tables(lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the server's answer is lost; then the request itself.
    Outcome: the first is found in the tables and recorded; the second shows nothing, and a transient error says so."""
    key = lake.a_slice()
    request = lake.request(key, 2)

    def answers_nothing(asked: str, respond: Callable[[], Answered]) -> Answered:
        found = respond()
        if asked == COMMIT:
            raise NoAnswerError
        return found

    server.behaviour = answers_nothing
    published = lake.publish(request)
    server.behaviour = None
    assert lake.rows(key) == [2, 2]
    assert lake.ledger.head(BOTH[0].key) == Head(published[BOTH[0].key].snapshot_id)

    monkeypatch.setattr(slice_changes, "_FIRST_PAUSE_SECONDS", 0.01)
    other = lake.a_slice()
    request = lake.request(other, 2)
    before = (ledger_rows(lake), heads(lake))

    def hears_nothing(asked: str, respond: Callable[[], Answered]) -> Answered:
        if asked == COMMIT:
            raise NoAnswerError
        return respond()

    server.behaviour = hears_nothing
    with pytest.raises(LakehouseUnavailableError, match="the answer to a commit was lost"):
        lake.publish(request)
    server.behaviour = None
    assert (ledger_rows(lake), heads(lake), lake.rows(other)) == (*before, [0, 0])
    lake.publish(request)
    assert lake.rows(other) == [2, 2]


def test_a_server_that_commits_half_of_it_is_named(lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: the error says that the server keeps no transactions, with both tables and the setting; no ledger record."""
    key = lake.a_slice()
    request = lake.request(key, 2)
    before = ledger_rows(lake)
    whole = rest_catalog.ROUTES[TRANSACTIONS]["POST"]

    def half(catalog: SqlCatalog, query: dict[str, list[str]], body: bytes) -> Answered:
        changes = json.loads(body)["table-changes"]
        whole(catalog, query, json.dumps({"table-changes": changes[:1]}).encode())
        raise ValueError("the second table")

    monkeypatch.setitem(rest_catalog.ROUTES[TRANSACTIONS], "POST", half)
    with pytest.raises(LakehouseError, match="it does not keep transactions") as partly:
        lake.publish(request)
    assert all(table.key in partly.value.reason for table in BOTH)
    assert (lake.rows(key), ledger_rows(lake)) == ([2, 0], before)


def test_a_ledger_that_fails_at_its_end_leaves_tables_that_agree(lake: Lake, server: Server) -> None:
    """Outcome: both tables are new; the next run's look corrects the old ledger (scenarios/test_rest_catalog.py)."""
    key = lake.a_slice()
    request = lake.request(key, 2)
    before = ledger_rows(lake)
    with commit_ends(lake, lost_before), pytest.raises(LedgerUnavailableError):
        lake.publish(request)
    assert (lake.rows(key), ledger_rows(lake)) == ([2, 2], before)
