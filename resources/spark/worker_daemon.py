"""Forks Spark's Python workers, after a comparison of Python, packages and code with the driver's.

It imports only the standard library first, since a worker may lack any package.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import json
import os
import platform
import re
import socket
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

VARIABLE = "TIDEMARK_WORKERS_HAVE"
PACKAGES = (
    "boto3",
    "botocore",
    "isal",
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
PYTHON, _OF_CODE = "Python", "code of "
_MARK = "tidemark-worker "


class Difference(NamedTuple):
    """Something that a worker lacks or has in another version than the driver."""

    host: str
    what: str
    """`Python`, the name of a distribution, or `code of` and one of our packages."""
    here: str
    there: str | None


def described(code: Iterable[str]) -> dict[str, str]:
    """Return name -> version of Python, the packages and these packages of code in this process, without missing ones."""
    found = {PYTHON: ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = _version(name)
    digests = {_OF_CODE + name: digest_of(files_of(name)) for name in code}
    return found | {name: digest for name, digest in digests.items() if digest is not None}


def encoded(found: Mapping[str, str]) -> str:
    """Encode the result of `described` as a value of VARIABLE; in base64, as YARN writes it unescaped into a shell script."""
    return base64.urlsafe_b64encode(json.dumps(found).encode()).decode()


def decoded(value: str) -> dict[str, str]:
    """Decode a value that `encoded` wrote."""
    return dict(json.loads(base64.urlsafe_b64decode(value)))


def _version(name: str) -> str:
    if name == "pyspark":
        # A cluster's PySpark comes with Spark as a plain folder, without package metadata.
        import pyspark  # noqa: PLC0415 - the driver's Spark may not be started yet

        return str(pyspark.__version__)
    return version(name)


def files_of(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield a package's or module's files as (name in an archive, bytes), without bytecode and hidden files."""
    if (spec := find_spec(name)) is None:
        return
    seen: set[str] = set()
    for folder in map(Path, spec.submodule_search_locations or ()):
        root = folder if folder.is_dir() else zipfile.Path(folder.parent, f"{folder.name}/")
        for place, content in _below(root, f"{name}/"):
            if place not in seen:
                seen.add(place)
                yield place, content
        if not folder.is_dir():
            return  # the archive is complete, and comes first on the path
    if spec.submodule_search_locations is None and spec.origin is not None:
        yield f"{name}.py", spec.loader.get_data(spec.origin)  # type: ignore[union-attr]  # files and archives have it


def _below(folder: Path | zipfile.Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    for place in folder.iterdir():
        if place.is_dir():
            # A link to a folder may lead back here, or to anything.
            is_link = isinstance(place, Path) and place.is_symlink()
            if not is_link and not place.name.startswith((".", "__pycache__")):
                yield from _below(place, f"{prefix}{place.name}/")
        elif place.is_file() and not place.name.startswith(".") and not place.name.endswith(".pyc"):
            yield f"{prefix}{place.name}", place.read_bytes()


def digest_of(files: Iterable[tuple[str, bytes]]) -> str | None:
    """Return a digest of the modules among these files, independent of order and origin; None where there are none."""
    modules = sorted((name, content) for name, content in files if name.endswith(".py"))
    digest = hashlib.sha256()
    for name, content in modules:
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16] if modules else None


def differences(expected: Mapping[str, str]) -> list[Difference]:
    """Return this process's differences from `expected`."""
    found = described(name.removeprefix(_OF_CODE) for name in expected if name.startswith(_OF_CODE))
    host = socket.gethostname()
    return [Difference(host, name, here, found.get(name)) for name, here in expected.items() if found.get(name) != here]


def require_same() -> None:
    """Exit with lines that `differences_in` parses, where this worker differs from the driver's description."""
    expected = os.environ.get(VARIABLE)
    if expected is not None and (found := differences(decoded(expected))):
        sys.exit("\n".join(_MARK + json.dumps(difference._asdict()) for difference in found))


def differences_in(text: str) -> list[Difference]:
    """Return the differences that workers reported in a text, in order and without repetitions."""
    lines = re.findall(rf"{_MARK}(\{{[^{{}}\n]*\}})", text)
    return list(dict.fromkeys(Difference(**json.loads(line)) for line in lines))


SHARED = (
    # Each worker would spend over a second on these again: pyarrow looks for pandas at its first array.
    "pandas",
    "pyarrow.compute",
    "resources.landing.store",
)
_COLLECTED_EVERY = 100_000
"""Allocations between garbage collections; at the default of 700 the parser spends a fifteenth of its time on them."""
_ARCHIVES = ("pyspark.zip", "py4j-*-src.zip", "spark-core_*.jar")


def leave_archives() -> None:
    """Take Spark's archives from Python's path, as each task would read their thousands of names again, for 0.1 s of CPU."""
    archives = tuple(place for place in sys.path if any(fnmatch(Path(place).name, name) for name in _ARCHIVES))
    rest = [place for place in sys.path if place not in archives]
    if not archives or not all(PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j")):
        return
    sys.path[:] = rest
    for opened in [place for place in sys.path_importer_cache if place.startswith(archives)]:
        del sys.path_importer_cache[opened]
    # `copy` imports Jython's `org`, and a folder of that name in a jar counts as a package.
    for name, module in list(sys.modules.items()):
        if any(place.startswith(archives) for place in getattr(module, "__path__", ())):
            del sys.modules[name]


if __name__ == "__main__":
    require_same()
    leave_archives()
    from pyspark.daemon import manager

    for shared in SHARED:
        import_module(shared)
    gc.freeze()
    gc.set_threshold(_COLLECTED_EVERY)
    manager()  # type: ignore[no-untyped-call]  # PySpark has no types
