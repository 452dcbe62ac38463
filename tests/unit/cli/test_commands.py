"""A command's options, help and run config are the fields of one request; a documented one exists and is tested."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline_assets.cli.app import COMMANDS, app
from pipeline_assets.config import TEMPLATES
from pipeline_assets.domain import requests
from pipeline_assets.domain.requests import Request
from pipeline_assets.domain.settings import PROJECT_ROOT

SHELL: Any = typer.main.get_command(app)
DECLARED = [(request, module) for _, module, of_module in COMMANDS for request in of_module]
REQUESTS = [one for one in vars(requests).values() if inspect.isclass(one) and issubclass(one, Request)]


@pytest.mark.parametrize(("request_type", "module"), DECLARED, ids=lambda one: getattr(one, "__name__", ""))
def test_each_option_is_a_field_of_the_request_that_the_function_takes(
    request_type: type[Request], module: str
) -> None:
    name = request_type.command()
    function = getattr(import_module(f"pipeline_assets.cli.{module}"), name.replace("-", "_"))
    (parameter,) = inspect.signature(function, eval_str=True).parameters.values()
    assert parameter.annotation is request_type
    for option in SHELL.commands[name].params:
        if option.name != "verbose":
            assert option.help == request_type.model_fields[str(option.name)].description


def test_each_command_is_declared_and_each_field_described() -> None:
    assert {request.command() for request, _ in DECLARED} == set(SHELL.commands)
    lacking = [(one.__name__, name) for one in REQUESTS for name, of in one.model_fields.items() if not of.description]
    assert not lacking


@pytest.mark.parametrize(
    ("modules", "heavy"), [("app", {"dagster", "pyspark"}), ("inspect, report, install", {"dagster"})]
)
def test_help_waits_for_no_engine_and_a_command_that_reads_the_ledger_for_no_dagster(
    modules: str, heavy: set[str]
) -> None:
    program = f"import sys\nfrom pipeline_assets.cli import {modules}\nsys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


PAGES = [PROJECT_ROOT / "README.md", *sorted((PROJECT_ROOT / "docs").glob("*.md")), *sorted(TEMPLATES.glob("*.md"))]
TESTS = "".join(path.read_text("utf-8") for path in (PROJECT_ROOT / "tests").rglob("*.py") if path != Path(__file__))
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
