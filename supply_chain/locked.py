"""Pinned dependencies: packages of `requirements.lock` and jars, with hashes and the packages that require them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from resources.spark.jars import JARS, Jar

ROOT = Path(__file__).resolve().parents[1]
LOCK, PROJECT = ROOT / "requirements.lock", ROOT / "pyproject.toml"
_PINNED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? \\?"
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_BY_PROJECT = "pyproject.toml"


class LockError(Exception):
    """The lock file was not written by `make lock`."""


@dataclass(frozen=True)
class Package:
    """One pinned package; some have two versions for different Pythons."""

    name: str
    """Name as on PyPI."""
    version: str
    marker: str | None
    """Environment marker: the Python or system it is for; None for all."""
    sha256: tuple[str, ...]
    """Hashes of its files on the index, any of which may be installed."""
    wanted_by: tuple[str, ...]
    """Names of packages that require it."""
    is_wanted_by_project: bool
    """Whether the project itself requires it, at run time or for development."""

    @property
    def purl(self) -> str:
        """The package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"

    @property
    def is_for_here(self) -> bool:
        """Whether this machine installs it."""
        return self.marker is None or Marker(self.marker).evaluate()


def locked_packages(lock: Path = LOCK) -> list[Package]:
    """Return all packages of the lock; raises LockError for an unknown line or a package without a hash."""
    found: list[Package] = []
    head: re.Match[str] | None = None
    hashes: list[str] = []
    wanted_by: list[str] = []
    is_ours = False

    def end() -> None:
        if head is None:
            return
        if not hashes:
            msg = f"{lock.name}: {head['name']} has no hash; run `make lock`"
            raise LockError(msg)
        name = canonicalize_name(head["name"])
        found.append(Package(name, head["version"], head["marker"], tuple(hashes), tuple(wanted_by), is_ours))

    for number, line in enumerate(lock.read_text("utf-8").splitlines(), 1):
        text = line.strip()
        if pinned := _PINNED.fullmatch(text):
            end()
            head, hashes, wanted_by, is_ours = pinned, [], [], False
        elif hashed := _HASH.match(text):
            hashes.append(hashed[1])
        elif text.startswith("#"):
            words = text.removeprefix("#").removeprefix(" ").removeprefix("via").split()
            is_ours = is_ours or _BY_PROJECT in text
            wanted_by += [canonicalize_name(words[0])] if words and _BY_PROJECT not in text else []
        elif text:
            msg = f"{lock.name} line {number} is none of a lock's; run `make lock`"
            raise LockError(msg)
    end()
    return found


def needed_to_run(packages: Iterable[Package], project: Path = PROJECT) -> set[str]:
    """Return the names of packages that the project's dependencies require, directly or not; the others are for development."""
    known = list(packages)
    asked = tomllib.loads(project.read_text("utf-8"))["project"]["dependencies"]
    needed: set[str] = {canonicalize_name(Requirement(text).name) for text in asked}
    while more := {one.name for one in known if set(one.wanted_by) & needed} - needed:
        needed |= more
    return needed


def pinned_jars() -> tuple[Jar, ...]:
    """Return the jars that `make setup` downloads."""
    return JARS


def jar_purl(jar: Jar) -> str:
    """Return a jar's package URL."""
    return f"pkg:maven/{jar.organisation}/{jar.name}@{jar.version}"
