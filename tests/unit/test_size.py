"""The size of the code by folder, and the failure of `make check` over a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import size


def test_lines_modules_and_dataclasses_are_counted_by_the_nearest_folder(tmp_path: Path) -> None:
    """Scenario: a folder with a budget inside another one. Outcome: each file counts once, blank lines never."""
    (tmp_path / "code/inner/deep").mkdir(parents=True)
    (tmp_path / "code/a.py").write_text("import b\n\n\nX = 1\n")
    (tmp_path / "code/inner/deep/b.py").write_text("@dataclass(frozen=True)\nclass A:\n    x: int\n")

    assert size.sizes({"code": 1, "code/inner": 1}, tmp_path) == {
        "code": size.Size(2, 1, 0),
        "code/inner": size.Size(3, 1, 1),
    }


@pytest.mark.parametrize(("room", "code"), [(0, 0), (-1, 1)])
def test_a_folder_over_its_budget_fails(
    room: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenario: a budget of exactly the lines, and of one less. Outcome: the second fails, and names the folder."""
    lines = size.sizes({"resources": 0})["resources"].lines
    monkeypatch.setattr(size.tomllib, "loads", lambda _: {"tool": {"tidemark": {"lines": {"resources": lines + room}}}})
    monkeypatch.setattr("sys.argv", ["size"])

    assert size.main() == code
    assert ("resources is over its budget" in capsys.readouterr().out) == bool(code)
