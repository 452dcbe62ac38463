"""Preflight names a machine's missing tools and how to get them, before any installation."""

import subprocess
from pathlib import Path

import pytest

PREFLIGHT = Path(__file__).resolve().parents[2] / "deploy" / "preflight.sh"


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        for tool in ("sed", "head"):
            found = subprocess.run(["sh", "-c", f"command -v {tool}"], capture_output=True, text=True, check=True)
            self.put(tool, f'exec {found.stdout.strip()} "$@"')

    def put(self, name: str, body: str, folder: Path | None = None) -> None:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
        path.chmod(0o755)

    def has_python(self, name: str, version: str, *, venv: bool = True) -> None:
        self.put(name, f'case "$2" in *venv*) exit {0 if venv else 1} ;; *) echo {version} ;; esac')

    def has_java(self, banner: str, folder: Path | None = None) -> None:
        self.put("java", f"printf '%s\\n' '{banner}' >&2", folder)

    def preflight(self, **environment: str) -> subprocess.CompletedProcess[str]:
        words, variables = ["/bin/sh", str(PREFLIGHT)], {"PATH": str(self.bin), **environment}
        return subprocess.run(words, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with Python 3.11 and Java 17."""
    made = Machine(tmp_path)
    made.has_python("python3", "3.11")
    made.has_java(a_java("17"))
    return made


def a_java(version: str) -> str:
    return f'openjdk version "{version}" 2025-04-15'


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.2"])
def test_a_fit_machine_is_answered_with_its_interpreter(machine: Machine, version: str) -> None:
    machine.has_java(a_java(version))
    done = machine.preflight()
    assert (done.returncode, done.stdout, done.stderr) == (0, "python3\n", "")


def test_what_the_tool_options_banner_says_is_no_version(machine: Machine) -> None:
    machine.put("java", f"echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2; echo '{a_java('17.0.1')}' >&2")
    assert machine.preflight().returncode == 0


@pytest.mark.parametrize("name", ["python3.13", "python3.12", "python3.11"])
def test_an_old_python3_does_not_hide_a_newer_one(machine: Machine, name: str) -> None:
    machine.has_python("python3", "3.9")
    machine.has_python(name, name.removeprefix("python"))
    assert machine.preflight().stdout == f"{name}\n"


def test_a_shim_that_cannot_run_is_passed_over(machine: Machine) -> None:
    machine.put("python3", "echo 'no version is set' >&2; exit 127")
    machine.has_python("python3.12", "3.12")
    done = machine.preflight()
    assert (done.stdout, done.stderr) == ("python3.12\n", "")


def test_a_named_python_goes_first(machine: Machine) -> None:
    machine.has_python("mine", "3.13")
    assert machine.preflight(PYTHON="mine").stdout == "mine\n"


@pytest.mark.parametrize(
    ("version", "has_venv", "said"),
    [("3.9", True, ("python3 is 3.9", "fix: Install one")), ("3.11", False, ("python3-venv",))],
    ids=["old", "without venv"],
)
def test_an_unfit_python_is_named_with_the_cure(
    machine: Machine, version: str, has_venv: bool, said: tuple[str, ...]
) -> None:
    machine.has_python("python3", version, venv=has_venv)
    done = machine.preflight()
    assert (done.returncode, done.stdout) == (1, "")
    assert all(text in done.stderr for text in said), done.stderr


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "25", "25.0.1"])
def test_a_java_that_spark_cannot_use_is_named(machine: Machine, version: str) -> None:
    machine.has_java(a_java(version))
    done = machine.preflight()
    assert done.returncode == 1
    assert f"java is {version.partition('.')[0]}, but Spark needs 17 or 21" in done.stderr
    assert "fix: Install Java 17 or 21" in done.stderr


def test_java_home_goes_before_the_path(machine: Machine) -> None:
    machine.has_java(a_java("25"))
    home = machine.root / "java 17"
    machine.has_java(a_java("17.0.15"), home / "bin")
    assert machine.preflight(JAVA_HOME=str(home)).returncode == 0


def test_a_java_home_without_java_is_named(machine: Machine) -> None:
    done = machine.preflight(JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert "JAVA_HOME is /nowhere" in done.stderr


def test_everything_missing_is_named_at_once(tmp_path: Path) -> None:
    done = Machine(tmp_path).preflight()
    assert (done.returncode, done.stdout) == (1, "")
    assert "No Python 3.11, 3.12 or 3.13 was found." in done.stderr
    assert "No Java was found." in done.stderr
    assert done.stderr.count("fix:") == 2
