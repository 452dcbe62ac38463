"""No output echoes a setting that may hold a secret: canaries in every form of URL."""

from __future__ import annotations

import base64
import json
import re
import traceback
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg
import pytest
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.config import load_settings
from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.checks import Check, Evaluation, a_reason
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LedgerError, TidemarkError
from pipeline_assets.domain.masking import MASK, masked, remember, scrubbed, tellable
from pipeline_assets.domain.records import Exclusion, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source, Verdict
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.runtime import production_ledger
from pipeline_assets.orchestration.specs import landing_assets
from resources.export_api import _told as told_by_vendor
from resources.iceberg.errors import first_line
from resources.landing.bucket import _short as landing_errors_short
from resources.ledger.changes import Changes
from resources.spark.session import catalog_config, engine_config, spark_resource

CANARY = "c4n4ry-Pa55"
LOAD = ("load", "--source", "regular", "--from", "soon", "--to", "soon", "--verbose")
DAYS = dg.DailyPartitionsDefinition("2026-02-01")
AWAY = "127.0.0.1:1/lake"
MISTYPED = [
    f"postgres://tide:{CANARY}@{AWAY}", f"postgresq://tide:{CANARY}@{AWAY}", f"tide:{CANARY}@{AWAY}",
    f"postgresql:tide:{CANARY}@{AWAY}", f"postgresql://tide:{CANARY}{AWAY}", f"postgresql://127.0.0.1:{CANARY}/lake",
    f"postgresql://tide:a@{CANARY}@{AWAY}", f"postgresql://tide/x:{CANARY}@{AWAY}", f"mysql://t:{CANARY}@h/d",
    f"sqlite://tide:{CANARY}@{AWAY}", f"postgresql+asyncpg://t:{CANARY}@h/d", f"jdbc:postgresql://h/d?password={CANARY}",
    f"postgresql ://tide:{CANARY}@{AWAY}", CANARY,
]  # fmt: skip
WELL_FORMED = [
    f"postgresql://tide:{CANARY}@{AWAY}", f"postgresql://[tide:{CANARY}@{AWAY}",
    f"postgresql://tide:%63{CANARY[1:]}@{AWAY}", f"postgresql://{AWAY}?password={CANARY}",
    f"postgresql+psycopg2://{AWAY}?user=tide&password={CANARY}", f"postgresql://tide@{AWAY}?sslpassword={CANARY}",
    f"postgresql://{AWAY}?user=tide&passwrd={CANARY}", f"postgresql://tide@{AWAY}?passfile=/{CANARY}",
    f"postgresql://tide:p%40{CANARY}%2F@{AWAY}?sslmode=nonsense",
]  # fmt: skip
PLACES = [
    f"s3://AKIA:{CANARY}@bucket/x", f"s3:/AKIA:{CANARY}@bucket", f"AKIA:{CANARY}@bucket", f"s3a://AKIA:{CANARY}@bucket",
    f"https://u:{CANARY}@host/x", f"{CANARY}://bucket", f"file://u:{CANARY}@host/x", f"AKIA:{CANARY}/y@bucket",
    f"AKIA:x/{CANARY}@bucket/p", f"s3:///AKIA:x/{CANARY}@bucket", f"file://AKIA:x/{CANARY}@host",
    f"s3://AKIA:{CANARY}/K7MDENG/x@bucket/p", f"s3://AKIA:x/{CANARY}/y@bucket/p", f"s3://AKIA:{CANARY}/bucket",
    f"s3://{CANARY}@bucket",
]  # fmt: skip


def _is_clean(text: str) -> bool:
    return CANARY not in text and CANARY[3:] not in text


def _written(folder: Path) -> dict[Path, bytes]:
    """Each file's bytes, none of which hold the canary."""
    found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert [path for path, content in found.items() if CANARY.encode() in content] == []
    return found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("resources.ledger.engine._FIRST_PAUSE_SECONDS", 0)
    (tmp_path / "home").mkdir()
    base = {"TIDEMARK_PROJECTS": "10001", "DAGSTER_HOME": f"{tmp_path}/home"}

    def invoke(*words: str, catalog: str | None = f"sqlite:///{tmp_path}/c.db", **environment: str) -> Any:
        return CliRunner().invoke(app, words, env={"TIDEMARK_CATALOG_URL": catalog, **base, **environment})

    return invoke


@pytest.mark.parametrize("name", ["TIDEMARK_CATALOG_URL", "TIDEMARK_LEDGER_URL"])
def test_a_database_url_is_never_echoed(name: str, shell: Callable[..., Any], tmp_path: Path) -> None:
    """Scenario: `status` and `load` with mistyped and dead URLs. Outcome: one sentence; no output or file has the
    canary."""
    for url in [*MISTYPED, *WELL_FORMED]:
        more = (("status",), LOAD) if url in (MISTYPED[0], WELL_FORMED[0]) else ()
        for words in (("status", "--verbose"), *more):
            done = shell(*words, **{name: url})
            assert done.exit_code in (1, 2), (url, done.output)
            assert _is_clean(done.output), (words, url, done.output)
            assert isinstance(done.exception, SystemExit), (url, done.exception)
            assert url not in MISTYPED or name in done.output, (url, done.output)
    _written(tmp_path)


@pytest.mark.parametrize("name", ["TIDEMARK_LANDING_URL", "TIDEMARK_WAREHOUSE_URL"])
def test_a_place_with_credentials_in_it_is_refused_and_not_echoed(name: str, shell: Callable[..., Any]) -> None:
    for url in PLACES:
        done = shell("status", "--verbose", **{name: url})
        assert done.exit_code == 2, (url, done.output)
        assert name in done.output
        assert _is_clean(done.output), (url, done.output)


def test_an_asset_page_shows_no_secret_of_a_place() -> None:
    place = f"s3://bucket/exports?token={CANARY}"
    settings = Settings(landing_url=place, warehouse_url=place, projects=("10001",))
    assets = build_defs(settings).resolve_asset_graph().asset_nodes
    shown = [str(asset.metadata["dagster/uri"]) for asset in assets if asset.key.path[0] != "ops"]
    assert len(shown) == 12
    assert all(uri.startswith(f"s3://bucket/exports?token={MASK}") and _is_clean(uri) for uri in shown), shown
    (local, *_) = landing_assets(Settings(landing_url="/data/landing"), DAYS)
    assert local.metadata["dagster/uri"] == "/data/landing"


def test_other_settings_say_what_they_got_and_no_secret(shell: Callable[..., Any], tmp_path: Path) -> None:
    assert "got 'soon'" in shell("status", TIDEMARK_CALENDAR_START="soon").output
    for name, value in (
        ("TIDEMARK_SPARK_CONFIG", json.dumps({"spark.hadoop.fs.s3a.secret.key": CANARY})[:-1]),
        ("TIDEMARK_SPARK_CONFIG", json.dumps({"spark.hadoop.fs.s3a.secret.key": [CANARY]})),
        ("TIDEMARK_PROJECTS", f"postgresql://tide:{CANARY}@h/d"),
        ("TIDEMARK_OWNERS", f"postgresql://tide:{CANARY}@h/d"),
        ("TIDEMARK_MARKER_PATTERN", f"postgresql://tide:{CANARY}@h/d"),
        ("TIDEMARK_NOTIFY_URLS", f"https://u:{CANARY}@host:port/hook"),
        ("TIDEMARK_NOTIFY_URLS", f"hooks.example/services/T0001/{CANARY}"),
    ):
        done = shell("status", "--verbose", **{name: value})
        assert done.exit_code in (1, 2) or name == "TIDEMARK_MARKER_PATTERN", done.output
        assert _is_clean(done.output), (name, done.output)
    (tmp_path / "tidemark.toml").write_text(f'catalog_url = "postgres://t:{CANARY}@h/d"\n')
    done = shell("status", TIDEMARK_CATALOG_URL="")
    assert (done.exit_code, _is_clean(done.output)) == (2, True)


@pytest.mark.parametrize("line", [
    f'catalog_url = "postgresql://tide:{CANARY}@{AWAY}"',
    f'ledger_url = "postgresql://{AWAY}?password={CANARY}"',
    f'golden_url = "postgresql://tide:{CANARY}@{AWAY}"\ngolden_query = "SELECT :first_day, :last_day"',
    f'notify_urls = ["https://bi.internal/tidemark", "https://hooks.example/services/T0001/{CANARY}"]',
    f'[spark_config]\n"spark.hadoop.fs.s3a.secret.key" = "{CANARY}"',
])  # fmt: skip
def test_a_secret_in_the_file_is_refused_and_not_echoed(line: str, shell: Callable[..., Any], tmp_path: Path) -> None:
    """Secrets come from the environment alone: files are committed, copied and read."""
    (tmp_path / "tidemark.toml").write_text(f"{line}\n")
    done = shell("status", "--verbose", catalog=None)
    assert done.exit_code == 2, done.output
    assert "holds a secret" in done.output
    assert f"tidemark.toml: {line.strip('[').split()[0].rstrip(']')}" in done.output.replace("\n", "")
    assert _is_clean(done.output)


def test_places_without_a_secret_may_stand_in_the_file(shell: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tidemark.toml").write_text(
        'landing_url = "s3://bucket/a@b"\nledger_url = "postgresql://tide@db.internal:5432/lake?sslmode=require"\n'
        'notify_urls = ["https://bi.internal/tidemark"]\n[spark_config]\n"spark.x" = "y"\n'
        '"spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE" = "/var/run/token"\n'
    )
    assert "holds a secret" not in shell("status").output
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMARK_CONFIG", str(tmp_path / "tidemark.toml"))
        assert load_settings().notify_urls == ("https://bi.internal/tidemark",)


def test_settings_show_no_secret_of_theirs() -> None:
    hooks = (f"https://hooks.example/services/{CANARY}", f"https://host/x?token={CANARY}")
    spark = {"spark.hadoop.fs.s3a.secret.key": CANARY, "spark.x": "y"}
    settings = Settings(catalog_url=WELL_FORMED[0], ledger_url=WELL_FORMED[2], spark_config=spark, notify_urls=hooks)
    assert _is_clean(f"{settings!r} {settings} {[settings]}")
    assert "'spark.x': 'y'" in repr(settings)
    assert f"https://hooks.example/{MASK}" in repr(settings)
    for values in (
        {"catalog_url": MISTYPED[0], "calendar_start": CANARY},
        {"notify_urls": (f"https://u:{CANARY}@host/x",)},
        {"notify_urls": (f"https://169.254.169.254/{CANARY}",)},
    ):
        with pytest.raises(ValueError) as refused:
            Settings(**values)
        assert _is_clean(f"{refused.value} {refused.value!r}")


def test_the_jvm_and_dagster_are_told_secrets_where_they_hide_them() -> None:
    """Outcome: no JDBC address and no resource config holds them; Spark's redaction covers their names."""
    for url in WELL_FORMED:
        told = catalog_config(Settings(catalog_url=url))
        assert _is_clean(told["spark.sql.catalog.lake.uri"]), url
        if "passfile" not in url:
            assert any(CANARY[3:] in value for value in told.values()), url
    settings = Settings(spark_config={"spark.hadoop.fs.s3a.secret.key": CANARY})
    assert engine_config(settings)["spark.hadoop.fs.s3a.secret.key"] == CANARY
    assert _is_clean(str(spark_resource(settings).spark_config))
    assert "secret" in engine_config(settings)["spark.redaction.regex"]


@pytest.mark.parametrize(
    "name", ["header.Authorization", "header.X-Api-Key", "header.x-tenant", "rest.authorization", "api.key", "apikey"]
)
def test_what_a_rest_catalog_knows_us_by_is_a_secret(name: str) -> None:
    """Outcome: Dagster's page, the JVM's command line and all output lack it; Spark's redaction covers its name."""
    key = f"spark.sql.catalog.lake.{name}"
    settings = Settings(spark_config={key: f"Bearer {CANARY}", "spark.sql.catalog.lake.scope": "all"})
    told = spark_resource(settings).spark_config
    assert (_is_clean(str(told)), told["spark.sql.catalog.lake.scope"]) == (True, "all")
    assert re.search(engine_config(settings)["spark.redaction.regex"], key)
    assert (_is_clean(repr(settings)), _is_clean(scrubbed(f"refused: Bearer {CANARY}"))) == (True, True)


@pytest.mark.slow
def test_a_failing_op_and_a_sensor_tick_write_no_secret(
    spark: Any, tmp_path: Path, shell: Callable[..., Any], capfd: Any
) -> None:
    """Scenario: a sensor and a job run on disk while the ledger's or the catalog's database refuses.
    Outcome: failure and skip reason name the place; no record, log or file holds the canary."""
    bad, good = WELL_FORMED[-1], f"sqlite:///{tmp_path}/catalog.db"
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        away = "postgresql://tide:***@127.0.0.1:1/lake"
        for catalog, ledger, said in ((good, bad, away), (bad, good, "TIDEMARK_CATALOG_URL")):
            settings = Settings(
                catalog_url=catalog, ledger_url=ledger, catalog_name=f"lake_{uuid.uuid4().hex[:8]}", projects=("10001",),
                landing_url=str(tmp_path / "landing"), warehouse_url=str(tmp_path / "warehouse"),
            )  # fmt: skip
            defs = build_defs(settings)
            result = defs.resolve_job_def("maintenance").execute_in_process(instance=instance, raise_on_error=False)
            assert not result.success
            told = str([event.event_specific_data for event in result.all_events if event.is_step_failure])
            assert said in told
            assert len(told) < 60_000
            with dg.build_sensor_context(instance=instance, definitions=defs, resources={"clock": Clock()}) as context:
                ticked = defs.resolve_sensor_def("heal").evaluate_tick(context)
            assert (ledger == good) != (said in str(ticked.skip_message))
            assert _is_clean(f"{told} {ticked} {result.all_events}")
    out = capfd.readouterr()
    assert _is_clean(out.out + out.err)
    assert _written(tmp_path / "home")


def test_what_a_library_says_is_told_without_the_secret() -> None:
    """Scenario: a foreign error's cause holds the password. Outcome: our error and its chain lack it."""
    remember({"catalog_url": WELL_FORMED[0]})
    cause = OSError(f"jdbc:postgresql://h/d?user=t&password={CANARY}")
    with pytest.raises(TidemarkError) as raised:
        raise LedgerError(f"postgresql://t:{CANARY}@h/d", f"cannot be opened ({cause})", "Check it") from cause
    assert _is_clean(str(raised.value))
    assert _is_clean("".join(traceback.format_exception(tellable(raised.value))))
    plain = ValueError("x" * 10)
    assert tellable(plain) is plain
    assert len(str(tellable(ValueError("x" * 1_000_000)))) < 30_000


def test_a_url_is_shown_as_far_as_it_may() -> None:
    shown = {
        "postgresql://tide:pass@db:5/lake?sslmode=require": f"postgresql://tide:{MASK}@db:5/lake?sslmode=require",
        "postgresql://db/lake?password=x": f"postgresql://db/lake?password={MASK}",
        "postgresql://db:word/lake": f"postgresql://{MASK}",
        "word": MASK,
        **{place: place for place in ("sqlite:////a@b/c.db", "s3://bucket/prefix")},
    }
    assert {url: masked(url) for url in shown} == shown


def test_what_opens_a_webhook_is_removed_from_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path, a password or a token in its address, and the signing secret."""
    hook = f"https://tide:{CANARY}@h/hook?token={CANARY}"
    remember({"notify_urls": f"https://hooks.example/services/T0001/{CANARY}, {hook}"})
    monkeypatch.setenv("TIDEMARK_NOTIFY_SECRET", f"signs {CANARY}")
    for text in (f"POST /services/T0001/{CANARY} failed", hook, f"signs {CANARY}"):
        assert _is_clean(scrubbed(text)), text
    assert scrubbed("a hook of hooks.example") == "a hook of hooks.example"


def test_what_libraries_are_told_by_the_environment_is_removed_in_every_spelling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = f'{CANARY}"/+é'
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", f"postgresql+psycopg2://dagster:{quote(secret, safe='')}@h/dagster")
    monkeypatch.setenv("https_proxy", f"http://proxy:x{CANARY}@proxy:3128")
    encoded, as_json = base64.b64encode(secret.encode()).decode(), json.dumps({"password": secret})
    for text in (secret, quote(secret), as_json, repr(secret), f"Basic {encoded}", f"tunnel by x{CANARY}"):
        assert _is_clean(scrubbed(text)), text
        assert MASK in scrubbed(text)
    assert encoded[:8] not in scrubbed(encoded)


def test_a_secret_is_removed_before_what_surrounds_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut half would match no known secret."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY * 3)
    for length in range(280, 300):
        said = f"{'x' * length} {CANARY * 3}"
        assert CANARY[:4] not in landing_errors_short(said)
        assert CANARY[:4] not in first_line(RuntimeError(f"Error {said[6:]}"))
    for length in range(180, 200):
        assert CANARY[:4] not in told_by_vendor(f"<p>{'x' * length}</p> {CANARY * 3}")


def test_a_short_word_is_no_secret_to_look_for() -> None:
    remember({"catalog_url": "postgresql://tidemark:tidemark@h/lake"})
    assert (scrubbed("tidemark load"), scrubbed("postgresql://a:b@h")) == ("tidemark load", f"postgresql://a:{MASK}@h")


def test_what_is_stored_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: reasons and a library's words hold a secret. Outcome: no row, notice or decision object does."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    key = Slice(date(2026, 2, 2), "10001")
    batch = BatchKey(Source.REGULAR, key.project_id, key.event_date)
    said = a_reason("reason", f"because {CANARY}")
    settings = Settings(warehouse_url=str(tmp_path / "lake"), ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    bad = Evaluation(Check.CHANGE_IS_EXPLAINED, is_passed=False, reason=f"said {CANARY}", hint=CANARY)
    told = (f"said {CANARY}", CANARY)
    refused = SliceRecord("refined/events", key, Verdict.REFUSED, *told, is_final=True, refused_evaluations=(bad,))
    with closing(production_ledger(settings)) as ledger:
        ledger.interventions.hold({"refined/events": [key]}, said, "run-1")
        ledger.interventions.exclude([Exclusion(batch, "10001/a", "e", None, said)], "run-1")
        ledger.record(Changes(slices=[refused]), "run-1")
    assert any(MASK.encode() in content for path, content in _written(tmp_path).items() if path.suffix == ".json")
