"""Every documented `tidemark …` is a command with these options, and a test runs it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from pipeline_assets.cli.app import app
from pipeline_assets.config import TEMPLATES
from pipeline_assets.domain.settings import PROJECT_ROOT

PAGES = [PROJECT_ROOT / "README.md", *sorted((PROJECT_ROOT / "docs").glob("*.md")), *sorted(TEMPLATES.glob("*.md"))]
TESTS = "".join(path.read_text("utf-8") for path in (PROJECT_ROOT / "tests").rglob("*.py") if path != Path(__file__))
SHELL: click.Group = typer.main.get_command(app)  # type: ignore[assignment]
_CALL = re.compile(r"(?:^|[\s`$/])tidemark ([a-z][^`\n#|]*)")


def _calls() -> list[tuple[str, str]]:
    """Page, and the words after `tidemark`."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        text = text.replace("\\\n", " ")
        spans = [*re.findall(r"```(?:sh|console|text)?\n(.*?)```", text, re.DOTALL), *re.findall(r"`([^`\n]+)`", text)]
        for span in spans:
            found += [(page.name, call.strip()) for call in _CALL.findall(f"\n{span}")]
    return sorted(set(found))


CALLS = _calls()


def test_documents_name_commands() -> None:
    assert len(CALLS) > 20
    assert {page for page, _ in CALLS} >= {"README.md", "operations.md"}


@pytest.mark.parametrize(("page", "call"), CALLS)
def test_a_documented_command_exists_and_is_run_by_a_test(page: str, call: str) -> None:
    name, *words = shlex.split(call.replace("…", "").replace("...", "").replace("\\", ""))
    command = SHELL.commands.get(name)
    assert command is not None, f"{page}: there is no tidemark {name}"
    known = {option for parameter in command.params for option in parameter.opts}
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = [option for option in options if option not in known and option != "--help"]
    assert not unknown, f"{page}: tidemark {name} has no {unknown}"
    # A drill takes a quarter of an hour: its test carries out three trials of it, without the shell.
    assert f'"{name}"' in TESTS or f"{name}.carry_out(" in TESTS, f"no test runs tidemark {name}"
    unproven = [option for option in options if option != "--help" and f'"{option}"' not in TESTS]
    assert not unproven, f"no test runs tidemark {name} {unproven}"
