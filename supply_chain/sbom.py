"""`make sbom`: the components of a wheel as CycloneDX 1.5, from the lock and the pinned jars; the same for the same lock."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from resources.spark.jars import Jar
from supply_chain.licences import EXCEPTIONS, JAR_LICENCES, read_licence
from supply_chain.locked import PROJECT, ROOT, LockError, Package, jar_purl, locked_packages, needed_to_run, pinned_jars

_NAMESPACE = uuid.UUID("2f6d2f0c-6a57-4b0e-9d1f-6f2a3f1f9a11")


def document(
    packages: Sequence[Package], jars: Iterable[Jar], project: Mapping[str, Any], needed: set[str]
) -> dict[str, Any]:
    """Return the document; `needed` are the names of packages needed at run time, all others are development tools."""
    name, version = canonicalize_name(project["name"]), project["version"]
    root = f"pkg:pypi/{name}@{version}"
    jars = list(jars)
    by_name: dict[str, list[Package]] = {}
    for one in packages:
        by_name.setdefault(one.name, []).append(one)
    components = [_package(one, is_needed=one.name in needed) for one in packages] + [_jar(one) for one in jars]
    components.sort(key=lambda one: str(one["bom-ref"]))
    asks: dict[str, set[str]] = {ref: set() for ref in (*(one.purl for one in packages), *map(jar_purl, jars))}
    asks[root] = {jar_purl(one) for one in jars}
    for one in packages:
        for asker in one.wanted_by:
            for found in by_name.get(asker, ()):
                asks[found.purl].add(one.purl)
        if one.is_wanted_by_project:
            asks[root].add(one.purl)
    told = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": name,
                "version": version,
                "purl": root,
                "licenses": [{"license": {"id": project["license"]}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(asked)} for ref, asked in sorted(asks.items())],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(told, sort_keys=True))
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "serialNumber": f"urn:uuid:{serial}", **told}


def _package(package: Package, *, is_needed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "scope": "required" if is_needed else "excluded",
        # Any of these files may be installed.
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{package.name}/{package.version}/#files",
                "hashes": [{"alg": "SHA-256", "content": sha256} for sha256 in package.sha256],
            }
        ],
    }
    if licence := _licence_of(package):
        found["licenses"] = [{"expression": licence}]
    if package.marker:
        found["properties"] = [{"name": "tidemark:marker", "value": package.marker}]
    return found


def _licence_of(package: Package) -> str | None:
    """The licence of the installed package if its version matches; the lock contains no licences."""
    if package.name in EXCEPTIONS:
        return EXCEPTIONS[package.name][0]
    try:
        found = metadata.distribution(package.name)
    except metadata.PackageNotFoundError:
        return None
    return read_licence(found.metadata) if found.version == package.version else None


def _jar(jar: Jar) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": jar_purl(jar),
        "group": jar.organisation,
        "name": jar.name,
        "version": jar.version,
        "purl": jar_purl(jar),
        "scope": "required",
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
        "licenses": [{"license": {"id": JAR_LICENCES[jar.name]}}],
    }


def main(words: Sequence[str] | None = None) -> int:
    """Write `dist/<name>-<version>.cdx.json`; returns 1 where the lock cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m supply_chain.sbom", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    folder = parser.parse_args(words).folder
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    try:
        packages = locked_packages()
    except LockError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    told = document(packages, pinned_jars(), project, needed_to_run(packages))
    folder.mkdir(parents=True, exist_ok=True)
    # Name it like the wheel, so that both sort together.
    path = folder / f"{project['name'].replace('-', '_')}-{project['version']}.cdx.json"
    path.write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    sys.stdout.write(f"{path}: {len(told['components'])} components\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
