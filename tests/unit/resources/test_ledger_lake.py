"""A ledger belongs to one lake, so that a mistyped URL mixes no two of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline_assets.domain.errors import LedgerError
from resources.ledger.store import Ledger

OURS, THEIRS = str(uuid.uuid4()), str(uuid.uuid4())
REFUSAL = r"is the ledger of another lake .*Check TIDEMARK_LEDGER_URL .*each lake needs a ledger of its own"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """New, of no lake."""
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as found:
        yield found


def test_a_look_takes_no_ledger(ledger: Ledger) -> None:
    ledger.lake.require(OURS, may_take=False)
    ledger.lake.require(None, may_take=True)
    ledger.lake.require(THEIRS, may_take=True)
    with pytest.raises(LedgerError, match=REFUSAL):
        ledger.lake.require(OURS, may_take=False)


def test_a_ledger_stays_with_its_lake(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.lake.require(OURS, may_take=True)
    for lake in (THEIRS, None):
        with pytest.raises(LedgerError, match=REFUSAL):
            ledger.lake.require(lake, may_take=True)
    ledger.lake.require(OURS, may_take=False)


def test_of_two_lakes_that_take_it_at_once_one_wins(ledger: Ledger, tmp_path: Path) -> None:
    looked = ledger.lake._found

    def found(connection: object) -> str | None:
        with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as other:
            lake.__dict__.pop("_found")
            seen = looked(connection)  # type: ignore[arg-type]
            other.lake.require(THEIRS, may_take=True)
        return seen

    lake = ledger.lake
    lake._found = found  # type: ignore[method-assign]
    with pytest.raises(LedgerError, match=REFUSAL):
        lake.require(OURS, may_take=True)
