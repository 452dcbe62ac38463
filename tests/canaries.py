"""`make canaries`: a deployment of canary secrets loads, fails with settings in its messages, and is searched."""

from __future__ import annotations

import base64
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3

from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.browser.deployment import Deployment
from tests.support.canaries import Find, canaries, found_below, watched_command_lines
from tests.support.canary_deployment import (
    BAD,
    GOOD,
    PROJECT,
    SECRETS,
    databases,
    deliver,
    engine_pages,
    environment,
    kept_databases,
    kept_objects,
    spark_config,
)
from tests.support.export_api import Answer, a_vendor
from tests.support.listening import heard_from_elsewhere, listening
from tests.support.postgres import a_postgres
from tests.support.s3 import BUCKET, a_server_that_answers, a_working_server
from tests.support.webhook import a_webhook

_LAUNCH = """
mutation { launchRun(executionParams: {
    selector: { repositoryLocationName: "tidemark", repositoryName: "__repository__", jobName: "daily_load" }
    runConfigData: %s
    executionMetadata: { tags: [
        { key: "dagster/asset_partition_range_start", value: "%s" }, { key: "dagster/asset_partition_range_end", value: "%s" }
    ] }
}) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
_PAGES = (
    "{ instance { info executablePath runLauncher { name } } }",
    "{ repositoriesOrError { ... on RepositoryConnection { nodes { allTopLevelResourceDetails "
    "{ name description configuredValues { key value } configFields { name defaultValueAsJson } } } } } }",
    "{ runsOrError { ... on Runs { results { runId runConfigYaml tags { key value } "
    "eventConnection { events { ... on MessageEvent { message } ... on MaterializationEvent { metadataEntries { label "
    "... on TextMetadataEntry { text } ... on MarkdownMetadataEntry { mdStr } ... on PathMetadataEntry { path } "
    "... on UrlMetadataEntry { url } } } } } } } } }",
    "{ assetNodes { id metadataEntries { label ... on TextMetadataEntry { text } ... on PathMetadataEntry { path } } } }",
)


class Story:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = canaries(SECRETS)
        self.written = folder / "written"
        self.temporary = folder / "tmp"
        for made in (self.written, self.temporary):
            made.mkdir()
        self.environment: dict[str, str] = {}
        self.unexpected: list[str] = []
        self.heard: set[str] = set()
        self.listening: set[str] = set()

    def shell(self, name: str, *words: str, expected: int, **changes: str) -> str:
        """Run a command, keep and return its output."""
        command, variables = str(Path(sys.executable).parent / "tidemark"), {**self.environment, **changes}
        done = subprocess.run([command, *words], env=variables, capture_output=True, check=False, timeout=240)
        said = done.stdout + done.stderr
        (self.written / f"{name}.txt").write_bytes(said)
        if done.returncode != expected:
            exited = f"exited {done.returncode}, not {expected}"
            self.unexpected.append(f"{name}: tidemark {words[0]} {exited}: {said[-600:].decode()}")
        print(f"tidemark {words[0]:10} {name:45} exit {done.returncode}", flush=True)
        return said.decode()

    @contextmanager
    def together(self) -> Iterator[Callable[..., Any]]:
        """Commands, as `shell` takes them, that run beside one another."""
        with ThreadPoolExecutor(3) as pool:
            asked: list[Future[str]] = []
            yield lambda *words, **how: asked.append(pool.submit(self.shell, *words, **how))
        for one in asked:
            one.result()

    def dagster_home(self) -> Path:
        """With the lines at the end of `dagster.yaml` that the documentation recommends."""
        home = self.folder / "dagster_home"
        home.mkdir()
        plain, storage = (PROJECT_ROOT / "dagster.yaml").read_text().split("# storage:\n")
        (home / "dagster.yaml").write_text(f"{plain}storage:\n{re.sub('(?m)^# ', '', storage)}")
        return home

    def load(self, deployment: Deployment) -> None:
        """A good day and a refused one, one object excluded, through webserver, queue, daemon and run process."""
        known = deployment.runs()
        reason = {f"{PROJECT}/{PROJECT}_{GOOD}_10#2.json.gz": "twice"}
        config = json.dumps(json.dumps({"ops": {"load": {"config": {"exclude": reason}}}}))
        answer = deployment.ask(_LAUNCH % (config, GOOD, BAD))["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise AssertionError(answer)

        def is_heard() -> bool:
            """Whether the engine's own page is there, which starts last."""
            self.heard |= heard_from_elsewhere(deployment.session)
            self.listening |= {name for name, _, _ in listening(deployment.session)}
            return any((self.written).glob("spark_environment_"))

        deployment.wait("Spark's page is there", is_heard, 300)
        (run,) = deployment.wait_for_new_runs(known)
        self.heard |= heard_from_elsewhere(deployment.session)
        print(f"run of both days ended: {run['status']}", flush=True)
        for number, page in enumerate(_PAGES):
            (self.written / f"graphql-{number}.json").write_text(json.dumps(deployment.ask(page)))

    def ask_for_variables(self, deployment: Deployment) -> None:
        """A stranger's run with `{"env": NAME}` for each secret: it ends before its first step, without a retry."""
        known = deployment.runs()
        keys = {name: f"{PROJECT}/{PROJECT}_{GOOD}_10#{number}.json.gz" for number, name in enumerate(SECRETS)}
        asked = {"exclude": {key: {"env": name} for name, key in keys.items()}, "projects": [{"env": SECRETS[0]}]}
        config = json.dumps(json.dumps({"ops": {"load": {"config": asked}}}))
        answer = deployment.ask(_LAUNCH % (config, GOOD, GOOD))["launchRun"]
        runs = deployment.wait_for_new_runs(known)
        print(f"a run that asks for variables: {answer['__typename']}, {runs[-1]['status']}", flush=True)
        if [run["status"] for run in runs] != ["FAILURE"]:
            self.unexpected.append(f"a run that asks for variables ended as {runs}")

    def look_only(self, deployment: Deployment) -> None:
        """The same deployment read-only: it shows runs, and refuses to start one."""
        with deployment:
            self.heard |= heard_from_elsewhere(deployment.session)
            answer = deployment.ask(_LAUNCH % (json.dumps("{}"), GOOD, GOOD))["launchRun"]
            kind, shown = answer["__typename"], len(deployment.runs())
            print(f"read-only: a launch is answered by {kind}, {shown} runs shown", flush=True)
            if kind != "UnauthorizedError" or shown != 2:
                self.unexpected.append(f"a read-only webserver answered {answer}, and shows {shown} runs")

    def failures(self) -> None:
        wrong = "127.0.0.1:1"
        catalog, word = self.environment["TIDEMARK_CATALOG_URL"], self.secrets["TIDEMARK_CATALOG_URL"].value
        mistyped = {
            name: value.replace(quote(word, safe=""), quote(f"{word}-no", safe=""))
            for name, value in self.environment.items()
        }
        server = catalog.rpartition("@")[2].partition("/")[0]
        loaded = ("load", "--source", "regular", "--from", str(GOOD), "--to", str(GOOD), "--verbose")
        recovered = ("recover", "--from", f"{BAD}T11", "--to", f"{BAD}T11", "--verbose")
        looked = ("status", "--verbose")
        golden = mistyped["TIDEMARK_GOLDEN_URL"].replace("%40x", "%40y")
        signed = self.secrets["TIDEMARK_NOTIFY_SECRET"].value
        failures: tuple[tuple[str, tuple[str, ...], int, dict[str, str]], ...] = (
            ("a wrong password", looked, 1, mistyped),
            ("a wrong password of the catalog", loaded, 1, {"TIDEMARK_CATALOG_URL": mistyped["TIDEMARK_CATALOG_URL"]}),
            ("a database that is away", looked, 1, {"TIDEMARK_LEDGER_URL": catalog.replace(server, wrong)}),
            ("a URL with a slash too many", looked, 2, {"TIDEMARK_CATALOG_URL": catalog.replace("//", "///")}),
            ("an option that no server knows", looked, 1, {"TIDEMARK_LEDGER_URL": f"{catalog}?sslmode=so"}),
            ("keys in the URL of a bucket", looked, 2, {"TIDEMARK_LANDING_URL": f"s3://AKIA:{word}@{BUCKET}"}),
            ("a store that is away", recovered, 1, {"AWS_ENDPOINT_URL_S3": f"http://{wrong}"}),
            ("golden totals out of reach", ("reconcile", "--verbose"), 1, {"TIDEMARK_GOLDEN_URL": golden}),
            ("a setting that is none", looked, 2, {"TIDEMARK_NOTIFY_SECRETS": signed}),
            ("a webhook with a password", looked, 2, {"TIDEMARK_NOTIFY_URLS": f"https://u:{word}@127.0.0.1/x"}),
        )
        with self.together() as ask:
            for name, words, expected, changes in failures:
                ask(name, *words, expected=expected, **changes)
        token = self.secrets["AWS_SESSION_TOKEN"].word
        said = f"<Message>The token {token} is malformed</Message><Token-0>{token}</Token-0>"
        body = f"<Error><Code>InvalidToken</Code>{said}</Error>"
        with a_server_that_answers(lambda _: (400, body)) as url, self.together() as ask:
            ask("keys that the vendor refuses, repeating them", *recovered, expected=1)
            ask("a store that repeats the token", *loaded, expected=1, AWS_ENDPOINT_URL_S3=url)
            ask("a store that repeats the token to doctor", "doctor", expected=1, AWS_ENDPOINT_URL_S3=url)

    def looks(self) -> None:
        with self.together() as ask:
            ask("status", "status", "--from", str(GOOD), "--to", str(BAD), "--verbose", expected=0)
            ask("doctor", "doctor", "--json", expected=1)
            ask("report", "report", "--out", str(self.written / "health.html"), expected=0)
            ask("history", "history", "refined/events", str(GOOD), "--json", expected=0)
            ask("notices that a webhook refuses", "notify", "--verbose", expected=1)


def carry_out(folder: Path) -> tuple[list[Find], list[str]]:
    story = Story(folder)
    secrets = story.secrets
    with ExitStack() as stack:
        s3 = stack.enter_context(a_working_server())
        server = stack.enter_context(a_postgres("superuser"))
        vendor = stack.enter_context(a_vendor(PROJECT))
        hook = stack.enter_context(a_webhook())
        hook.answer_next(403, times=100)
        hook.secret = None
        key, secret = (secrets[f"TIDEMARK_EXPORT_{kind}_{PROJECT}"].value for kind in ("KEY", "SECRET"))
        sent = base64.b64encode(f"{key}:{secret}".encode()).decode()
        vendor.always(Answer(403, f"no such keys: {key} and {secret}, {quote(secret)}, sent as Basic {sent}".encode()))
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        bucket = boto3.resource("s3", endpoint_url=s3, **keys).create_bucket(Bucket=BUCKET)
        deliver(bucket)
        deployment = Deployment(folder / "deployment", date(2026, 1, 1))
        story.environment = {
            **environment(databases(server, secrets), s3, vendor.url, hook.url, secrets),
            "DAGSTER_HOME": str(story.dagster_home()),
            "TMPDIR": str(story.temporary),
            "TIDEMARK_HEALTH_REPORT": str(story.written / "health_report.html"),
            "TIDEMARK_SPARK_MASTER": "local[2]",
            "TIDEMARK_SPARK_DRIVER_MEMORY": "1g",
            "TIDEMARK_SPARK_CONFIG": spark_config(folder, deployment.port + 1, secrets["TIDEMARK_SPARK_CONFIG"]),
        }
        deployment.settings_changed = {**story.environment, "PORT": str(deployment.port)}
        with watched_command_lines(secrets) as watched, engine_pages(deployment.port + 1, story.written) as pages:
            with deployment:
                story.load(deployment)
                story.ask_for_variables(deployment)
            deployment.settings_changed["READ_ONLY"] = "1"
            story.look_only(deployment)
            story.looks()
            story.failures()
        kept_databases(server, story.written)
        objects = kept_objects(bucket, story.written)
    finds, files = found_below(folder, secrets)
    programs = ", ".join(sorted(name for name in watched.commands if " " not in name))
    print(f"{watched.looks} looks at the command lines of {programs}")
    missed = [name for name, is_there in {
        "java among the processes": "java" in watched.commands,
        "Spark's page": any("environment" in page for page in pages),
        "Spark's log of events": any((folder / "events").iterdir()),
        "a decision in the warehouse": any("decisions" in item for item in _keys(story.written)),
        "a JVM that listens": "java" in story.listening,
        "a webhook that was called": hook.requests > 0,
        "a vendor that was asked": len(vendor.asked) > 0,
    }.items() if not is_there]  # fmt: skip
    print(f"{files} files searched, {objects} of them objects of the bucket, for {len(secrets)} secrets")
    heard = (f"{one} listens to other machines" for one in sorted(story.heard))
    return [*watched.finds, *finds], [*(f"{name} was not there" for name in missed), *heard, *story.unexpected]


def _keys(folder: Path) -> list[str]:
    return [path.read_bytes().split(b"\n")[0].decode("utf-8", "replace") for path in folder.glob("object-*-*")]


def main() -> int:
    """Exits 1 where a secret was found, or a place to be searched was missing."""
    # The store's server in this process logs each request.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    folder = Path(tempfile.mkdtemp(prefix="canaries-"))
    try:
        finds, missed = carry_out(folder)
        for find in sorted(set(finds), key=str):
            print(f"FOUND: {find}")
        for name in missed:
            print(f"NOT AS MEANT: {name}")
        print(f"{len(set(finds))} places hold a secret")
        return 1 if finds or missed else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
