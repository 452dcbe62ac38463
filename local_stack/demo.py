"""`make demo PROFILE=cluster`: run the demo on the running local stack, and compare its digests with an embedded run."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console

from local_stack.environment import LANDING, WAREHOUSE, read_environment, without_other_stores
from local_stack.folder import StackFolder
from local_stack.server import StackError
from local_stack.stack import FOLDER
from pipeline_assets.cli.terminal import PlainConsole, page, styled
from pipeline_assets.config import CONFIG_VARIABLE
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.ledger.store import Ledger
from sample_export.demo import load_recovery, load_regular, recover, story, tell
from sample_export.demo_place import SETTINGS, Deployment, embedded
from sample_export.objects import write_export

Digests = Mapping[tuple[str, Slice], Digest]
"""(table, slice) -> digest of its content."""
_MOST_SHOWN = 5


def main() -> int:
    """Run the demo on the local stack, then compare; returns the exit code."""
    try:
        with without_other_stores():
            return _main(page(), FOLDER)
    except TidemarkError as error:
        errors = PlainConsole(stderr=True, soft_wrap=True)
        errors.print(f"{error.subject}: {error.reason}", style="red")
        errors.print(f"  fix: {error.hint}")
        return 2 if isinstance(error, UsageError | SettingsError) else 1


def _main(console: Console, folder: StackFolder) -> int:
    folder.require_ours()
    variables = read_environment(folder)
    store = _store(variables)
    _require_empty(store)
    shutil.rmtree(folder.demo, ignore_errors=True)
    folder.demo.mkdir(mode=0o700)
    started = time.monotonic()
    spec, recovery = story(datetime.now(UTC).date())
    on_the_set = _deployment(folder, variables, store)
    if not tell(console, on_the_set, spec, recovery):
        return 1
    console.rule("6  the same export, embedded: folders, SQLite, Spark in one process")
    twin = embedded(folder.demo / "embedded")
    twin.folder.mkdir()
    write_export(spec, twin.landing)
    if not load_regular(console, twin, spec):
        return 1
    recover(twin, spec, recovery)
    if not load_recovery(console, twin, recovery):
        return 1
    is_equal = _compare(console, on_the_set, twin)
    console.print(f"{time.monotonic() - started:.0f} s.")
    return 0 if is_equal else 1


def _deployment(folder: StackFolder, variables: Mapping[str, str], store: Any) -> Deployment:
    place = folder.demo

    def catalog() -> Catalog:
        return SqlCatalog(
            "lake",
            uri=variables["TIDEMARK_CATALOG_URL"].replace("postgresql://", "postgresql+psycopg2://"),
            warehouse=variables["TIDEMARK_WAREHOUSE_URL"],
            **{
                "s3.endpoint": variables["AWS_ENDPOINT_URL"],
                "s3.access-key-id": variables["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": variables["AWS_SECRET_ACCESS_KEY"],
                "s3.region": variables["AWS_REGION"],
            },
        )

    return Deployment(
        place,
        # The demo uses its own projects, whatever the operator configured.
        {**variables, CONFIG_VARIABLE: str(SETTINGS)},
        catalog,
        variables["TIDEMARK_CATALOG_URL"],
        deliver=lambda: _deliver(store, place / "landing"),
    )


def _deliver(store: Any, landing: Path) -> None:
    """Upload what the bucket does not hold yet, markers last."""
    there = set(_listed(store))
    files = [path for path in landing.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (path.name.endswith("_complete"), path)):
        key = path.relative_to(landing).as_posix()
        if key not in there:
            store.put_object(Bucket=LANDING, Key=key, Body=path.read_bytes(), IfNoneMatch="*")


def _compare(console: Console, on_the_set: Deployment, twin: Deployment) -> bool:
    """Whether both deployments read the same bytes and hold the same content, slice by slice; prints the result."""
    store = _store(on_the_set.variables)
    files = {path for path in twin.landing.rglob("*") if path.is_file()}
    objects = {
        path.relative_to(twin.landing).as_posix(): hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        for path in files
    }
    is_same_export = _listed(store) == objects
    there, here = _digests(on_the_set.ledger_url), _digests(twin.ledger_url)
    differing = sorted(
        f"{table} {key}"
        for table, key in there.keys() | here.keys()
        if there.get((table, key)) != here.get((table, key))
    )
    tables = sorted({table for table, _ in there})
    bytes_are = "the same" if is_same_export else "other"
    console.print(f"{len(objects)} objects, with {bytes_are} bytes in the bucket as in the folder.")
    console.print(
        f"{len(there)} slices of {len(tables)} tables ({', '.join(tables)}): {len(differing)} digests differ."
    )
    if there and is_same_export and not differing:
        console.print(styled("The set and the embedded run hold the same content, slice by slice.", "green"))
        return True
    console.print(styled("The set and the embedded run differ: this is a defect, please report it.", "red"))
    for name in differing[:_MOST_SHOWN]:
        console.print(f"  {name}")
    return False


def _digests(url: str) -> Digests:
    ledger = Ledger(url)
    try:
        return {
            (table.key, key): record.digest
            for table in EVERY_TABLE
            for key, record in ledger.slices(table.key, None).items()
        }
    finally:
        ledger.close()


def _require_empty(store: Any) -> None:
    try:
        for bucket in (LANDING, WAREHOUSE):
            if store.list_objects_v2(Bucket=bucket, MaxKeys=1).get("Contents"):
                hint = "Begin with an empty set: make down ARGS=--wipe && make up"
                raise UsageError(
                    f"s3://{bucket}", "holds objects, and the demo tells of a lake from its beginning", hint
                )
    except (BotoCoreError, ClientError) as error:
        raise StackError("the set", f"does not answer: {error}", "Look at it: make up") from error


def _listed(store: Any) -> dict[str, str]:
    """Key -> etag of all objects in landing; the etag of a single-part upload is the MD5 of its bytes."""
    pages = store.get_paginator("list_objects_v2").paginate(Bucket=LANDING)
    return {one["Key"]: one["ETag"].strip('"') for found in pages for one in found.get("Contents", ())}


def _store(variables: Mapping[str, str]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_REGION"],
        config=Config(retries={"total_max_attempts": 3}, proxies={}),
    )


if __name__ == "__main__":
    sys.exit(main())
