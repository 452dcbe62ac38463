"""The table of `make faults` notices each deviation from a fault's promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults import Row
from tests.support.fault_lake import Loaded
from tests.support.outside_faults import FAULTS, OutsideFault, Promise

_SAYS = OutsideFault("no answer", "publishing", Promise.SENTENCE, says="out of reach")
_SUCCEEDS = OutsideFault("slow", "publishing", Promise.SUCCESS)
_SAID = "the ledger is out of reach: gone. Load again"
_FAILED = Row(_SAYS, Loaded(1, (_SAID,), 2), 1, is_intact=True, is_converged=True)
_LOADED = Row(_SUCCEEDS, Loaded(0, (), 1), 3, is_intact=True, is_converged=True)


def test_what_ends_as_promised_is_told_in_one_line() -> None:
    assert _FAILED.broken == _LOADED.broken == ()
    assert _FAILED.cells[2:] == (f"exit 1: {_SAID}", "yes", "digests equal")
    succeeded = "success; 3 failed on the way; the load begun again once"
    assert _LOADED.cells[2:] == (succeeded, "new state", "digests equal")


@pytest.mark.parametrize(("row", "wrong"), [
    (replace(_FAILED, loaded=Loaded(0, (), 0)), "exit code 0 instead of 1"),
    (replace(_LOADED, loaded=Loaded(1, ("a sentence",), 0)), "exit code 1 instead of 0"),
    (replace(_LOADED, loaded=Loaded(2, (), 0)), "exit code 2 instead of 0"),
    (replace(_FAILED, loaded=Loaded(1, ("Traceback", "out of reach"), 0)), "2 lines instead of one sentence"),
    (replace(_FAILED, loaded=Loaded(1, ("something went wrong",), 0)), "does not say 'out of reach'"),
    (replace(_LOADED, struck=0), "the fault never struck"),
    (replace(_LOADED, unmet=["GET .parquet"]), "never struck: GET .parquet"),
    (replace(_FAILED, is_intact=False, differing=["a"]), "what readers see changed: a"),
    (replace(_LOADED, is_converged=False, differing=["b"]), "differs from a load without faults: b"),
])  # fmt: skip
def test_what_ends_otherwise_is_named(row: Row, wrong: str) -> None:
    assert any(text.startswith(wrong) for text in row.broken), row.broken


def test_a_fault_that_cannot_be_run_says_what_it_lacks() -> None:
    lacking = replace(_SAYS, lacks=lambda: "needs a library: install it")
    assert Row(lacking, None, 0, is_intact=True, is_converged=True).cells[2] == "not run: needs a library: install it"


def test_every_fault_of_the_table_is_another_one() -> None:
    assert len({(fault.name, fault.where) for fault in FAULTS.values()}) == len(FAULTS)
    assert all(fault.says for fault in FAULTS.values() if fault.promise is Promise.SENTENCE)
