"""A command is declared once: its options, their help and the run config of its job are the fields of one request."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import click
import pytest
import typer

from pipeline_assets.cli.app import COMMANDS, app
from pipeline_assets.domain import requests
from pipeline_assets.domain.requests import Request

SHELL: click.Group = typer.main.get_command(app)  # type: ignore[assignment]
DECLARED = [(request, module) for of_panel in COMMANDS.values() for request, module in of_panel.items()]
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
            assert option.help == request_type.model_fields[str(option.name)].description  # type: ignore[attr-defined]


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
