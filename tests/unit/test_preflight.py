"""Preflight names a machine's missing tools and how to get them, before any installation."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

PREFLIGHT = Path(__file__).resolve().parents[2] / "deploy" / "preflight.sh"
TOOLS = {tool: f'exec {shutil.which(tool)} "$@"' for tool in ("sed", "head")}


def a_python(version: str, *, venv: bool = True) -> str:
    return f'case "$2" in *venv*) exit {0 if venv else 1} ;; *) echo {version} ;; esac'


def a_java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


FIT = {**TOOLS, "python3": a_python("3.11"), "java": a_java("17")}


def preflight(root: Path, tools: Mapping[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    """On a machine with these programs: name -> what its shell does."""
    for name, body in tools.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"#!/bin/sh\n{body}\n", "utf-8")
        (root / name).chmod(0o755)
    variables = {"PATH": str(root), **{name: value.replace("ROOT", str(root)) for name, value in environment.items()}}
    return subprocess.run(["/bin/sh", str(PREFLIGHT)], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("tools", "environment", "told"), [
    *(({"java": a_java(version)}, {}, "python3") for version in ("17.0.15", "21", "21.0.2")),
    ({"java": f"echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2; {a_java('17.0.1')}"}, {}, "python3"),
    # An old one does not hide a newer one, nor does a shim that cannot run; a named one goes first.
    *(
        ({"python3": a_python("3.9"), f"python{version}": a_python(version)}, {}, f"python{version}")
        for version in ("3.13", "3.12", "3.11")
    ),
    ({"python3": "echo 'none is set' >&2; exit 127", "python3.12": a_python("3.12")}, {}, "python3.12"),
    ({"mine": a_python("3.13")}, {"PYTHON": "mine"}, "mine"),
    # JAVA_HOME goes before the path.
    ({"java": a_java("25"), "java 17/bin/java": a_java("17.0.15")}, {"JAVA_HOME": "ROOT/java 17"}, "python3"),
])  # fmt: skip
def test_a_fit_machine_is_answered_with_its_interpreter(
    tmp_path: Path, tools: dict[str, str], environment: dict[str, str], told: str
) -> None:
    done = preflight(tmp_path, FIT | tools, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{told}\n", "")


@pytest.mark.parametrize(("tools", "environment", "said"), [
    (FIT | {"python3": a_python("3.9")}, {}, ("python3 is 3.9", "fix: Install one")),
    (FIT | {"python3": a_python("3.11", venv=False)}, {}, ("python3-venv", "fix:")),
    *(
        (
            FIT | {"java": a_java(version)},
            {},
            (f"java is {name}, but Spark needs 17 or 21", "fix: Install Java 17 or"),
        )
        for version, name in (("1.8.0_392", "1"), ("11.0.22", "11"), ("25", "25"), ("25.0.1", "25"))
    ),
    (FIT, {"JAVA_HOME": "/nowhere"}, ("JAVA_HOME is /nowhere",)),
    (TOOLS, {}, ("No Python 3.11, 3.12 or 3.13 was found.", "fix:", "No Java was found.", "fix:")),
])  # fmt: skip
def test_what_a_machine_lacks_is_named_at_once_with_the_cure(
    tmp_path: Path, tools: dict[str, str], environment: dict[str, str], said: tuple[str, ...]
) -> None:
    done = preflight(tmp_path, tools, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert all(text in done.stderr for text in said), done.stderr
    assert done.stderr.count("fix:") == max(1, said.count("fix:"))
