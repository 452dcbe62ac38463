"""Opening the ledger's database: what time may bring back is told from what is for a person."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pipeline_assets.domain.errors import LedgerUnavailableError
from resources.ledger import engine
from resources.ledger.engine import open_engine


@pytest.fixture
def hangs_up() -> Iterator[int]:
    """Port of a server that takes every connection and cuts it, as a proxy does before a database that restarts."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()[1]
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_database_that_hangs_up_may_come_back(hangs_up: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a connection is taken and cut. Outcome: a failure that a run tries again, without the password."""
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.0)
    with pytest.raises(LedgerUnavailableError, match="the ledger is out of reach") as failed:
        open_engine(f"postgresql://tidemark:geheim@127.0.0.1:{hangs_up}/lake")
    assert "geheim" not in str(failed.value)
