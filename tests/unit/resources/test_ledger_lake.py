"""A ledger belongs to one lake, so that a mistyped URL mixes no two of them."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pytest

from pipeline_assets.domain.errors import LedgerError
from resources.iceberg.lake_identity import Mark
from resources.ledger.store import Ledger

OURS, THEIRS = str(uuid.uuid4()), str(uuid.uuid4())
REFUSAL = r"is the ledger of another lake .*Check TIDEMARK_LEDGER_URL .*each lake needs a ledger of its own"


def test_a_look_takes_no_ledger(ledger: Ledger) -> None:
    assert not ledger.lake.require(OURS)
    assert not ledger.lake.require(None)
    ledger.lake.bind(THEIRS)
    with pytest.raises(LedgerError, match=REFUSAL):
        ledger.lake.require(OURS)


def test_a_ledger_stays_with_its_lake(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.lake.bind(OURS)
    with pytest.raises(LedgerError, match=REFUSAL):
        ledger.lake.bind(THEIRS)
    for lake in (THEIRS, None):
        with pytest.raises(LedgerError, match=REFUSAL):
            ledger.lake.require(lake)
    assert ledger.lake.require(OURS)


def test_a_ledger_has_one_identity_and_is_refused_where_the_mark_names_another(ledger: Ledger, tmp_path: Path) -> None:
    own = ledger.lake.identity()
    with closing(Ledger(ledger.url)) as again, closing(Ledger(f"sqlite:///{tmp_path}/other.db")) as other:
        assert again.lake.identity() == own
        mark = Mark(OURS, OURS).of_ledger(own, ledger.url)
        # The process that wrote the mark died before it bound the ledger.
        assert not ledger.lake.require(OURS, mark)
        ledger.lake.bind(OURS)
        assert ledger.lake.require(OURS, mark)
        for _ in range(2):
            with pytest.raises(
                LedgerError, match=f"is not the ledger of this lake, which has the identity {own} and is {ledger.url}"
            ):
                other.lake.require(OURS, mark)
            other.lake.bind(OURS)
            other.lake.identity()
