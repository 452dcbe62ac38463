"""A REST catalog for tests: PyIceberg's models of the protocol over a catalog in a file."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import sqlalchemy as sa
from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest, Table
from sqlalchemy.orm import Session

from tests.support.s3 import served

_ERRORS: tuple[tuple[type[Exception], int], ...] = (
    (exceptions.NoSuchNamespaceError, 404), (exceptions.NoSuchTableError, 404),
    (exceptions.NamespaceAlreadyExistsError, 409), (exceptions.TableAlreadyExistsError, 409),
    (exceptions.CommitFailedException, 409),
)  # fmt: skip
_SPLIT = "\x1f"


Answered = tuple[int, dict[str, Any] | None]
Name = tuple[str, ...]
TRANSACTIONS = "/v1/transactions/commit"


class NoAnswerError(Exception):
    """The connection ends without an answer."""


def _as_asked(_: str, respond: Callable[[], Answered]) -> Answered:
    return respond()


@contextmanager
def a_rest_catalog(
    folder: Path, answer: Callable[[str, Callable[[], Answered]], Answered] = _as_asked
) -> Iterator[tuple[str, list[str]]]:
    """Its address, and every request as `METHOD /path`. `answer` gets each request and its execution, or raises."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("rest", uri=f"sqlite:///{folder}/rest.db", warehouse=f"file://{folder}/warehouse")
    asked: list[str] = []
    # One after the other: only the file's own operations are atomic here.
    lock = threading.Lock()

    class Answer(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            with lock:
                request = f"{self.command} {unquote(url.path)}"
                asked.append(request)
                query = parse_qs(url.query)
                try:
                    status, found = answer(request, lambda: _respond(catalog, self.command, url.path, query, body))
                except NoAnswerError:
                    self.close_connection = True
                    return
                except tuple(kind for kind, _ in _ERRORS) as error:
                    status = next(status for kind, status in _ERRORS if isinstance(error, kind))
                    found = _error(error, status)
                except Exception as error:
                    status, found = 500, _error(error, 500)
            content = b"" if found is None or self.command == "HEAD" else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815 - names that http.server calls

        def log_message(self, *_: object) -> None: ...

    try:
        with served(Answer) as url:
            yield url, asked
    finally:
        catalog.engine.dispose()


def _error(error: Exception, status: int) -> dict[str, Any]:
    # Clients know Java's exception names.
    name = type(error).__name__.removesuffix("Error").removesuffix("Exception") + "Exception"
    return {"error": {"message": str(error), "type": name, "code": status}}


def _respond(
    catalog: SqlCatalog, method: str, path: str, query: dict[str, list[str]], body: bytes
) -> tuple[int, dict[str, Any] | None]:
    for pattern, methods in ROUTES.items():
        found = re.fullmatch(pattern, path)
        if found and method in methods:
            words = [tuple(unquote(word).split(_SPLIT)) for word in found.groups()]
            return methods[method](catalog, query, body, *words)
    return 400, {"error": {"message": f"not served: {method} {path}", "type": "BadRequestException", "code": 400}}


def _config(*_: Any) -> Answered:
    return 200, {"defaults": {}, "overrides": {}}


def _namespaces(catalog: SqlCatalog, query: dict[str, list[str]], _: bytes) -> Answered:
    parent = tuple(query["parent"][0].split(_SPLIT)) if "parent" in query else ()
    return 200, {"namespaces": [list(name) for name in catalog.list_namespaces(parent)]}


def _create_namespace(catalog: SqlCatalog, _: dict[str, list[str]], body: bytes) -> Answered:
    asked = json.loads(body)
    catalog.create_namespace(tuple(asked["namespace"]), asked.get("properties", {}))
    return 200, {"namespace": asked["namespace"], "properties": asked.get("properties", {})}


def _namespace(catalog: SqlCatalog, _: dict[str, list[str]], __: bytes, name: Name) -> Answered:
    return 200, {"namespace": list(name), "properties": dict(catalog.load_namespace_properties(name))}


def _change_namespace(catalog: SqlCatalog, _: dict[str, list[str]], body: bytes, name: Name) -> Answered:
    asked = json.loads(body)
    done = catalog.update_namespace_properties(name, set(asked.get("removals") or ()), asked.get("updates") or {})
    return 200, {"removed": done.removed, "updated": done.updated, "missing": done.missing}


def _tables(catalog: SqlCatalog, _: dict[str, list[str]], __: bytes, name: Name) -> Answered:
    listed = catalog.list_tables(name)
    return 200, {"identifiers": [{"namespace": list(one[:-1]), "name": one[-1]} for one in listed]}


def _create(catalog: SqlCatalog, _: dict[str, list[str]], body: bytes, name: Name) -> Answered:
    asked = CreateTableRequest.model_validate_json(body)
    if asked.stage_create:
        raise ValueError("a table is not created in steps here")
    words = {"partition_spec": asked.partition_spec, "sort_order": asked.write_order}
    given = {key: value for key, value in words.items() if value is not None}
    made = catalog.create_table(
        (*name, asked.name), asked.table_schema, asked.location, properties=asked.properties, **given
    )
    return _loaded(made)


def _load(catalog: SqlCatalog, _: dict[str, list[str]], __: bytes, name: Name, table: Name) -> Answered:
    return _loaded(catalog.load_table((*name, *table)))


def _commit(catalog: SqlCatalog, _: dict[str, list[str]], body: bytes, name: Name, table: Name) -> Answered:
    asked = json.loads(body)
    asked.setdefault("identifier", {"namespace": list(name), "name": table[0]})
    request = CommitTableRequest.model_validate_json(json.dumps(asked))
    done = catalog.commit_table(catalog.load_table((*name, *table)), request.requirements, request.updates)
    metadata = json.loads(done.metadata.model_dump_json())
    return 200, {"metadata-location": done.metadata_location, "metadata": metadata}


def _commit_all(catalog: SqlCatalog, _: dict[str, list[str]], body: bytes) -> Answered:
    """Writes every table's metadata first, then names all of it in one transaction."""
    swaps = []
    for asked in json.loads(body)["table-changes"]:
        request = CommitTableRequest.model_validate_json(json.dumps(asked))
        table = catalog.load_table((*request.identifier.namespace.root, request.identifier.name))
        staged = catalog._update_and_stage_table(table, table.name(), request.requirements, request.updates)
        catalog._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        swaps.append((table, staged.metadata_location))
    with Session(catalog.engine) as session:
        for table, location in swaps:
            *namespace, name = table.name()
            row = {"namespace": ".".join(namespace), "name": name, "before": table.metadata_location, "after": location}
            if session.execute(_SWAP, row).rowcount != 1:
                raise exceptions.CommitFailedException(f"{name} was changed meanwhile")
        session.commit()
    return 204, None


_SWAP = sa.text(
    "UPDATE iceberg_tables SET metadata_location = :after, previous_metadata_location = :before"
    " WHERE table_namespace = :namespace AND table_name = :name AND metadata_location = :before"
)


def _drop(catalog: SqlCatalog, _: dict[str, list[str]], __: bytes, name: Name, table: Name) -> Answered:
    catalog.drop_table((*name, *table))
    return 204, None


def _loaded(table: Table) -> Answered:
    metadata = json.loads(table.metadata.model_dump_json())
    return 200, {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _there(answer: Callable[..., Answered]) -> Callable[..., Answered]:
    return lambda *words: (204 if answer(*words)[0] == 200 else 404, None)


def endpoints(without: Sequence[str] = ()) -> list[str]:
    names = {
        "/v1/namespaces/([^/]+)/tables/([^/]+)": "/v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "/v1/namespaces/([^/]+)/tables": "/v1/{prefix}/namespaces/{namespace}/tables",
        "/v1/namespaces/([^/]+)/properties": "/v1/{prefix}/namespaces/{namespace}/properties",
        "/v1/namespaces/([^/]+)": "/v1/{prefix}/namespaces/{namespace}", "/v1/namespaces": "/v1/{prefix}/namespaces",
        TRANSACTIONS: "/v1/{prefix}/transactions/commit",
    }  # fmt: skip
    return [f"{method} {names[path]}" for path in names if path not in without for method in ROUTES[path]]


ROUTES: dict[str, dict[str, Callable[..., Answered]]] = {
    "/v1/config": {"GET": _config}, TRANSACTIONS: {"POST": _commit_all},
    "/v1/namespaces": {"GET": _namespaces, "POST": _create_namespace},
    "/v1/namespaces/([^/]+)": {"GET": _namespace, "HEAD": _there(_namespace)},
    "/v1/namespaces/([^/]+)/properties": {"POST": _change_namespace},
    "/v1/namespaces/([^/]+)/tables": {"GET": _tables, "POST": _create},
    "/v1/namespaces/([^/]+)/tables/([^/]+)": {"GET": _load, "HEAD": _there(_load), "POST": _commit, "DELETE": _drop},
}  # fmt: skip
