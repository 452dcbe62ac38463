"""Whether a worker can run our tasks: its Python, the packages that tasks import, our code; compared where its Python starts.

Contains: what is compared, on both sides, and the line that crosses from a worker to the driver.
Add here: another package that tasks import (`PACKAGES`).
Does not contain: how code reaches workers (shipping.py), the error that an operator reads (workers.py).

It runs before it is known what a worker has, so it imports the standard library alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import socket
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path, PurePath, PurePosixPath

VARIABLE = "TIDEMARK_WORKERS_HAVE"
"""Tells a worker what the driver has; where it is not set, nothing is compared."""
PACKAGES = (
    "boto3",
    "botocore",
    "msgspec",
    "numpy",
    "obstore",
    "pandas",
    "pyarrow",
    "pydantic",
    "pydantic-settings",
    "pyspark",
    "sqlalchemy",
)
"""What tasks import, by the names under which it is installed."""
PYTHON = "Python"
_MARK = "tidemark-worker "


@dataclass(frozen=True)
class Difference:
    """Something that the driver has and a worker has not, or has otherwise."""

    host: str
    what: str
    """`Python`, a package as it is installed, or a package of code as it is imported."""
    here: str
    """The driver's version; of code, how its digest begins."""
    there: str | None
    """The worker's; None where it has none."""


def described(code: Iterable[str]) -> dict[str, str]:
    """What this process has: Python, the packages, and these packages of code; one that is missing is left out."""
    found = {PYTHON: ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = _version(name)
        except PackageNotFoundError:
            continue
    for name in code:
        digest = digest_of(files_of(name))
        if digest is not None:
            found[_of_code(name)] = digest
    return found


def encoded(found: Mapping[str, str]) -> str:
    """What `described` found, as the value of VARIABLE: YARN writes it into a script of a shell, unescaped."""
    return base64.urlsafe_b64encode(json.dumps(found).encode()).decode()


def decoded(value: str) -> dict[str, str]:
    """What `encoded` wrote."""
    found: dict[str, str] = json.loads(base64.urlsafe_b64decode(value))
    return found


def _version(name: str) -> str:
    if name == "pyspark":
        # A cluster brings its own with Spark, as a folder that nothing installed.
        import pyspark  # noqa: PLC0415 - the driver's Spark may not be started yet

        return str(pyspark.__version__)
    return version(name)


def _of_code(name: str) -> str:
    return f"code of {name}"


def files_of(name: str) -> Iterator[tuple[str, bytes]]:
    """A top-level package's or module's files, by their names in an archive; nothing where there is none.

    Not of it: bytecode, and whatever is hidden, such as settings, a history, a virtual environment of whoever writes it.
    """
    spec = find_spec(name)
    if spec is None:
        return
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    archive = getattr(spec.loader, "archive", None)
    if archive is None and folders and folders[0].parent.is_file():
        # A package without `__init__.py`, whose loader tells nothing. What was sent is whole; what is installed comes after.
        archive = folders[0].parent
    if archive is not None:
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                of_it = entry.filename == f"{name}.py" or entry.filename.startswith(f"{name}/")
                if of_it and not entry.is_dir() and _travels(PurePosixPath(entry.filename)):
                    yield entry.filename, packed.read(entry)
        return
    found = set()
    for folder in folders:
        for path in folder.rglob("*"):
            place = path.relative_to(folder)
            # Of a package that lies in several folders, Python takes the first module of a name.
            if place not in found and _travels(place) and path.is_file():
                found.add(place)
                yield f"{name}/{place.as_posix()}", path.read_bytes()
    if not folders and spec.origin is not None:
        yield f"{name}.py", Path(spec.origin).read_bytes()


def _travels(place: PurePath) -> bool:
    return place.suffix != ".pyc" and not any(part.startswith(".") or part == "__pycache__" for part in place.parts)


def digest_of(files: Iterable[tuple[str, bytes]]) -> str | None:
    """Of the modules among them, whatever they were imported from, in whatever order they come; None where there are none."""
    modules = sorted((name, content) for name, content in files if name.endswith(".py"))
    digest = hashlib.sha256()
    for name, content in modules:
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16] if modules else None


def differences(expected: Mapping[str, str]) -> list[Difference]:
    """What of this is another here, by its name."""
    code = [name.removeprefix(_of_code("")) for name in expected if name.startswith(_of_code(""))]
    found = described(code)
    host = socket.gethostname()
    return [Difference(host, name, here, found.get(name)) for name, here in expected.items() if found.get(name) != here]


def require_same() -> None:
    """Leave with a line that `differences_in` finds again, where this worker is not what the driver expects."""
    expected = os.environ.get(VARIABLE)
    if expected is None:
        return
    found = differences(decoded(expected))
    if found:
        sys.exit("\n".join(_MARK + json.dumps(asdict(difference)) for difference in found))


def differences_in(text: str) -> list[Difference]:
    """What workers said, in a text that repeats it more than once, each once and in its order."""
    lines = re.findall(rf"{_MARK}(\{{[^{{}}\n]*\}})", text)
    return list(dict.fromkeys(Difference(**json.loads(line)) for line in lines))
