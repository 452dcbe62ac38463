"""Policies of `deploy/policies/` beside the requests that were made: refused rights and unneeded ones."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.support.postgres import Server
from tests.support.s3 import BUCKET

FOLDER = PROJECT_ROOT / "deploy" / "policies"
_PLACES = {
    "company-exports/analytics": f"{BUCKET}/exports", "company-lake/tidemark": f"{BUCKET}/warehouse",
    "company-exports": BUCKET, "company-lake": BUCKET, '"analytics/': '"exports/', '"tidemark/': '"warehouse/',
}  # fmt: skip
"""Places of the policies -> those of the tests."""
ONLY_AT_A_FAILURE = frozenset({"s3:AbortMultipartUpload"})
"""Needed only where a large write breaks off."""


@dataclass(frozen=True)
class Asked:
    action: str
    resource: str
    """ARN of the object, or of the listed bucket."""
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.action} {self.resource} {self.prefix}".rstrip()


@dataclass(frozen=True)
class Grant:
    statement: str
    action: str
    resources: tuple[str, ...]
    prefixes: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"{self.statement} {self.action}"

    def allows(self, asked: Asked) -> bool:
        """As IAM decides: `*` and `?` match anything, a slash included; every condition must hold."""
        is_here = any(fnmatchcase(asked.resource, pattern) for pattern in self.resources)
        is_below = self.prefixes is None or any(fnmatchcase(asked.prefix, pattern) for pattern in self.prefixes)
        return asked.action == self.action and is_here and is_below


def policy(name: str) -> list[Grant]:
    """A policy's grants for the tests' places; fails for syntax that this evaluator does not know."""
    text = (FOLDER / f"{name}.json").read_text("utf-8")
    for theirs, ours in _PLACES.items():
        text = text.replace(theirs, ours)
    grants = []
    for one in json.loads(text)["Statement"]:
        assert one["Effect"] == "Allow"
        assert set(one) <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        condition = one.get("Condition")
        assert condition is None or list(condition) == ["StringLike"]
        prefixes = tuple(condition["StringLike"]["s3:prefix"]) if condition else None
        resources = tuple([one["Resource"]] if isinstance(one["Resource"], str) else one["Resource"])
        grants += [Grant(one["Sid"], action, resources, prefixes) for action in one["Action"]]
    assert not any("*" in grant.action for grant in grants), "an action is named in full"
    return grants


def refused(grants: Iterable[Grant], asked: Iterable[Asked]) -> list[str]:
    known = list(grants)
    return sorted({str(one) for one in asked if not any(grant.allows(one) for grant in known)})


def unneeded(grants: Iterable[Grant], asked: Iterable[Asked]) -> list[str]:
    made = list(asked)
    return [
        str(grant)
        for grant in grants
        if grant.action not in ONLY_AT_A_FAILURE and not any(grant.allows(one) for one in made)
    ]


def database_of(server: Server, name: str, *roles: str) -> dict[str, str]:
    """A database with the roles of its policy, `postgresql[-name].sql`, whose superuser is none of them; role -> URL."""
    file = FOLDER / ("postgresql.sql" if name == "tidemark" else f"postgresql-{name}.sql")
    connection = psycopg2.connect(server.database(name))
    with connection, connection.cursor() as cursor:
        cursor.execute(file.read_text("utf-8"))
        for role in roles:
            cursor.execute(f"ALTER ROLE {role} PASSWORD 'word'")
    connection.close()
    return {role: f"postgresql://{role}:word@127.0.0.1:{server.port}/{name}" for role in roles}


class Requests:
    """All requests to this process's S3 server from now on."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def rights(self) -> set[Asked]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return {one for line in lines for one in _rights(json.loads(line))}


@contextmanager
def recorded_requests(folder: Path) -> Iterator[Requests]:
    """Records the requests to this process's S3 server."""
    from moto.moto_api import recorder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_location", str(folder / "requests"))
        recorder.start_recording()
        try:
            yield Requests(folder / "requests")
        finally:
            recorder.stop_recording()


def _rights(request: Mapping[str, Any]) -> Iterator[Asked]:
    url = urllib.parse.urlsplit(request["url"])
    query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
    bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
    method, arn = request["method"], f"arn:aws:s3:::{bucket}"
    headers = {name.lower(): value for name, value in request["headers"].items()}
    if not key:
        if method == "GET" and ("list-type" in query or not query):
            yield Asked("s3:ListBucket", arn, query.get("prefix", [""])[0])
        elif method == "POST" and "delete" in query:
            body = base64.b64decode(request["body"]) if request["body_encoded"] else request["body"].encode()
            for name in re.findall(rb"<Key>([^<]*)</Key>", body):
                yield Asked("s3:DeleteObject", f"{arn}/{name.decode()}")
        else:
            raise AssertionError(f"which right does {method} {request['url']} need?")
        return
    if "x-amz-copy-source" in headers:
        source = urllib.parse.unquote(headers["x-amz-copy-source"]).lstrip("/").partition("?")[0]
        yield Asked("s3:GetObject", f"arn:aws:s3:::{source}")
    told = set(query) - {"x-id", "partNumber", "uploadId", "uploads", "versionId"}
    assert not told, f"which right does {method} {request['url']} need?"
    if method == "DELETE" and "uploadId" in query:
        yield Asked("s3:AbortMultipartUpload", f"{arn}/{key}")
        return
    action = {"GET": "Get", "HEAD": "Get", "PUT": "Put", "POST": "Put", "DELETE": "Delete"}[method]
    yield Asked(f"s3:{action}Object", f"{arn}/{key}")
