"""`tidemark attach` takes a lake, or its ledger's place, only by the owner's name."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import typer

from pipeline_assets.cli.run import _require_meant
from pipeline_assets.domain.errors import UsageError
from resources.iceberg.lake_identity import Mark

MARK = Mark("id", "lake-id", catalog="lake", catalog_url="postgresql://db/catalog", ledger_url="postgresql://db/ledger")


@pytest.mark.parametrize("given", [None, "", "mistyped", "Lake"])
def test_a_lake_is_taken_by_the_name_of_its_owner(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(
        UsageError, match=r"the lake is of catalog lake \(postgresql://db/catalog\); nothing was touched.*--take lake"
    ):
        _require_meant(MARK, given)
    _require_meant(MARK, "lake")


@pytest.mark.parametrize(("typed", "is_taken"), [("lake", True), ("y", False)])
def test_a_terminal_asks_for_the_name(typed: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Callable[..., str] = lambda *_, **__: typed  # noqa: E731 - what somebody types
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", answer)
    if is_taken:
        _require_meant(MARK, None)
    else:
        with pytest.raises(UsageError):
            _require_meant(MARK, None)
