"""A deployment whose every secret is a canary: its environment, data and output."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.support.builders import a_body, events_on
from tests.support.canaries import Canary
from tests.support.postgres import Server
from tests.support.s3 import BUCKET
from tests.support.small_spark import FIRST_COMPILER, small_config

PROJECT = "10001"
GOOD, BAD = date(2026, 2, 2), date(2026, 2, 3)
SECRETS = (
    "TIDEMARK_CATALOG_URL",
    "TIDEMARK_LEDGER_URL",
    "TIDEMARK_GOLDEN_URL",
    "TIDEMARK_JARS_URL",
    "TIDEMARK_NOTIFY_URLS",
    "TIDEMARK_NOTIFY_SECRET",
    "TIDEMARK_SPARK_CONFIG",
    f"TIDEMARK_EXPORT_KEY_{PROJECT}",
    f"TIDEMARK_EXPORT_SECRET_{PROJECT}",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "DAGSTER_POSTGRES_URL",
    "HTTPS_PROXY",
)
"""Variables that hold a secret, or a URL with one in it."""
DATABASES = {"tidemark": "TIDEMARK_CATALOG_URL", "dagster": "DAGSTER_POSTGRES_URL", "finance": "TIDEMARK_GOLDEN_URL"}
"""Database -> the secret that opens it for the role of the same name."""


def databases(server: Server, secrets: Mapping[str, Canary]) -> dict[str, str]:
    """Databases with the roles of `deploy/policies/`, each opened by its canary; name -> URL."""
    urls = {}
    for name, secret in DATABASES.items():
        engine = sa.create_engine(server.database(name).replace("postgresql:", "postgresql+psycopg2:"))
        with engine.begin() as connection:
            raw: Any = connection.connection.cursor()
            file = {"tidemark": "postgresql.sql", "dagster": "postgresql-dagster.sql"}.get(name)
            raw.execute(
                (PROJECT_ROOT / "deploy" / "policies" / file).read_text() if file else f"CREATE ROLE {name} LOGIN"
            )
            raw.execute(f"ALTER ROLE {name} PASSWORD %s", (secrets[secret].value,))
            if not file:
                raw.execute("CREATE TABLE totals (day DATE, project VARCHAR, measure VARCHAR, value NUMERIC)")
                raw.execute(f"GRANT SELECT ON totals TO {name}")
        engine.dispose()
        urls[name] = f"postgresql://{name}:{quote(secrets[secret].value, safe='')}@127.0.0.1:{server.port}/{name}"
    return urls


def environment(
    urls: Mapping[str, str], s3: str, vendor: str, hook: str, secrets: Mapping[str, Canary]
) -> dict[str, str]:
    """The deployment's variables; each secret is a canary."""
    told = {
        "TIDEMARK_PROJECTS": PROJECT,
        "TIDEMARK_LANDING_URL": f"s3://{BUCKET}/exports",
        "TIDEMARK_WAREHOUSE_URL": f"s3://{BUCKET}/warehouse",
        "TIDEMARK_CATALOG_URL": urls["tidemark"],
        # The same database: the URLs differ in the secret part of the query.
        "TIDEMARK_LEDGER_URL": f"{urls['tidemark']}?sslpassword={quote(secrets['TIDEMARK_LEDGER_URL'].value, safe='')}",
        "TIDEMARK_GOLDEN_URL": urls["finance"],
        "TIDEMARK_GOLDEN_QUERY": "SELECT day, project, measure, value FROM totals WHERE day BETWEEN :first_day AND :last_day",
        # A mirror with a password; the clone has the jars, so nobody asks the mirror.
        "TIDEMARK_JARS_URL": f"https://mirror:{quote(secrets['TIDEMARK_JARS_URL'].value, safe='')}@127.0.0.1:1/maven2",
        "TIDEMARK_NOTIFY_URLS": f"{hook}/{quote(secrets['TIDEMARK_NOTIFY_URLS'].value, safe='')}",
        "TIDEMARK_NOTIFY_SECRET": secrets["TIDEMARK_NOTIFY_SECRET"].value,
        f"TIDEMARK_EXPORT_KEY_{PROJECT}": secrets[f"TIDEMARK_EXPORT_KEY_{PROJECT}"].value,
        f"TIDEMARK_EXPORT_SECRET_{PROJECT}": secrets[f"TIDEMARK_EXPORT_SECRET_{PROJECT}"].value,
        "TIDEMARK_EXPORT_API_URL": vendor,
        "TIDEMARK_EXPORT_ATTEMPTS": "1",
        "AWS_ENDPOINT_URL_S3": s3,
        "AWS_ACCESS_KEY_ID": "AKIAOFTHETEST",
        "AWS_SECRET_ACCESS_KEY": secrets["AWS_SECRET_ACCESS_KEY"].value,
        "AWS_SESSION_TOKEN": secrets["AWS_SESSION_TOKEN"].word,
        "AWS_REGION": "us-east-1",
        "DAGSTER_POSTGRES_URL": urls["dagster"].replace("postgresql:", "postgresql+psycopg2:"),
        "HTTPS_PROXY": f"http://proxy:{quote(secrets['HTTPS_PROXY'].value, safe='')}@127.0.0.1:1",
        "NO_PROXY": "127.0.0.1,localhost",
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
    return {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMARK_", "AWS_"))} | told


def spark_config(folder: Path, port: int, secret: Canary) -> str:
    """A small engine with its web page and event log on, beside a store's key."""
    (folder / "events").mkdir()
    return json.dumps(
        {
            **small_config(FIRST_COMPILER),
            "spark.ui.enabled": "true",
            "spark.ui.port": str(port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file:{folder}/events",
            # A search through compressed bytes finds nothing.
            "spark.eventLog.compress": "false",
            "spark.local.dir": f"{folder}/tmp",
            "spark.hadoop.fs.s3a.secret.key": secret.value,
        }
    )


@contextmanager
def engine_pages(port: int, folder: Path) -> Iterator[list[str]]:
    """Keeps the pages of Spark's web UI while it runs: environment, statements, and their details."""
    ended = threading.Event()
    kept: list[str] = []
    open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def watch() -> None:
        while not ended.wait(1):
            with suppress(OSError, ValueError):
                base = f"http://127.0.0.1:{port}"
                for (application,) in (
                    [one["id"]] for one in json.load(open_url(f"{base}/api/v1/applications", timeout=5))
                ):
                    pages = (f"/api/v1/applications/{application}/environment", "/environment/", "/SQL/", "/jobs/")
                    for page in pages:
                        (folder / f"spark{page.replace('/', '_')}").write_bytes(open_url(base + page, timeout=5).read())
                        kept.append(page)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield kept
    finally:
        ended.set()
        thread.join()


def kept_databases(server: Server, folder: Path) -> None:
    for name in DATABASES:
        place = ("-h", str(server.folder), "-p", str(server.port), "-U", server.superuser, name)
        words = [*server.as_user, str(server.tools / "pg_dump"), *place]
        dump = subprocess.run(words, capture_output=True, check=True, cwd="/")
        (folder / f"database-{name}.sql").write_bytes(dump.stdout)


def kept_objects(bucket: Any, folder: Path) -> int:
    """Write the bucket's objects to files; return their number."""
    count = 0
    for number, item in enumerate(bucket.objects.all()):
        body = item.get()["Body"].read()
        (folder / f"object-{number}-{item.key.rpartition('/')[2]}").write_bytes(item.key.encode() + b"\n" + body)
        (folder / f"object-{number}-metadata").write_text(json.dumps(item.Object().metadata))
        count += 1
    return count


def deliver(bucket: Any) -> None:
    """A whole day, and one with a cut object."""
    for day in (GOOD, BAD):
        for hour in range(24):
            bucket.put_object(Key=f"exports/{PROJECT}/{PROJECT}_{day}_{hour}_complete", Body=b"")
    for shard in (1, 2):
        bucket.put_object(
            Key=f"exports/{PROJECT}/{PROJECT}_{GOOD}_10#{shard}.json.gz", Body=a_body(events_on(GOOD, 10))
        )
    bucket.put_object(
        Key=f"exports/{PROJECT}/{PROJECT}_{BAD}_10#1.json.gz", Body=a_body(events_on(BAD, 10), truncated=True)
    )
