"""`python -m supply_chain.vulnerabilities`: known holes in what is locked, packages and jars, as osv.dev knows them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from supply_chain.locked import locked_packages, pinned_jars

URL = "https://api.osv.dev/v1/querybatch"
ACCEPTED: Mapping[str, str] = {}
"""Identifier -> why the vulnerability does not matter here."""
_SECONDS = 20.0
_AT_ONCE = 500
"""Queries per request; the server accepts a thousand."""


class NotRunError(Exception):
    """The server did not answer, so the result is unknown."""


@dataclass(frozen=True, order=True)
class Question:
    """One component, named as in the OSV database."""

    ecosystem: str
    name: str
    version: str

    def __str__(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"

    def as_json(self) -> dict[str, object]:
        """Return the query of this component."""
        return {"package": {"name": self.name, "ecosystem": self.ecosystem}, "version": self.version}


def questions() -> list[Question]:
    """Return a question per pinned package and jar."""
    packages = [Question("PyPI", one.name, one.version) for one in locked_packages()]
    jars = [Question("Maven", f"{one.organisation}:{one.name}", one.version) for one in pinned_jars()]
    return sorted({*packages, *jars})


def known_holes(asked: Sequence[Question], url: str = URL) -> dict[Question, list[str]]:
    """Return component -> identifiers of its vulnerabilities; raises NotRunError where a query got no answer."""
    found: dict[Question, list[str]] = {}
    try:
        with httpx.Client(timeout=_SECONDS, follow_redirects=False) as client:
            for start in range(0, len(asked), _AT_ONCE):
                part = asked[start : start + _AT_ONCE]
                answer = client.post(url, json={"queries": [one.as_json() for one in part]})
                answer.raise_for_status()
                results = answer.json()["results"]
                for one, result in zip(part, results, strict=True):
                    holes = sorted(str(hole["id"]) for hole in result.get("vulns") or ())
                    if holes:
                        found[one] = holes
    except (httpx.HTTPError, OSError) as error:
        raise NotRunError(f"{url} did not answer ({error or type(error).__name__})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotRunError(f"{url} did not answer as osv.dev does ({error!r})") from error
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Print the result; returns 1 for an unaccepted vulnerability, or without an answer if `--required`, else 0."""
    parser = argparse.ArgumentParser(prog="python -m supply_chain.vulnerabilities", description=__doc__)
    parser.add_argument("--url", default=URL, help="another server that answers as osv.dev does")
    parser.add_argument("--offline", action="store_true", help="ask nobody")
    parser.add_argument("--required", action="store_true", help="exit 1 where nobody answers")
    given = parser.parse_args(words)
    asked = questions()
    try:
        if given.offline:
            raise NotRunError("nobody was asked")
        found = known_holes(asked, given.url)
    except NotRunError as error:
        cure = "Run `make audit` where the network is reachable; nothing is known about known holes until then"
        sys.stderr.write(f"Vulnerabilities: NOT CHECKED, {error}. {cure}\n")
        return 1 if given.required else 0
    open_holes = {one: [hole for hole in holes if hole not in ACCEPTED] for one, holes in found.items()}
    for one, holes in sorted(open_holes.items()):
        for hole in holes:
            sys.stderr.write(
                f"{one}: {hole}, https://osv.dev/vulnerability/{hole}. Raise it (`make lock`), or accept it with a reason\n"
            )
    count = sum(map(len, open_holes.values()))
    accepted = sum(map(len, found.values())) - count
    sys.stdout.write(f"Vulnerabilities: {len(asked)} components, {count} known holes, {accepted} accepted\n")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
