"""Empty ledgers, on SQLite or on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from resources.ledger.store import Ledger
    from tests.support.postgres import Server


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    from resources.ledger.store import Ledger

    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    from tests.support.postgres import a_postgres

    with a_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def any_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    from resources.ledger.store import Ledger

    url = f"sqlite:///{tmp_path}/ledger.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("server").database(f"ledger_{uuid.uuid4().hex[:8]}")
    with closing(Ledger(url)) as opened:
        yield opened
