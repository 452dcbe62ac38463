"""Settings come from file and environment; unknown and bad ones are refused by name."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.config import load_settings
from pipeline_assets.domain import machine
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.records import differing, on_record, with_recorded
from pipeline_assets.domain.settings import PROJECT_ROOT, MissingSnapshot, Settings, is_clone, require_cluster_settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.tables.aggregates import DAILY_REVENUE
from pipeline_assets.tables.events import REGULAR_EVENTS
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidemark.toml").write_text('projects = ["1", "2"]\nlanding_url = "in"\n')
    return tmp_path


def test_environment_wins_over_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().projects == ("1", "2")
    monkeypatch.setenv("TIDEMARK_PROJECTS", "7, 8")
    assert load_settings().projects == ("7", "8")


@pytest.mark.parametrize("name", ["CATALOG_URL", "LEDGER_URL"])
def test_sqlite_on_a_disk_of_several_machines_is_refused_unless_it_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Scenario: catalog or ledger file on NFS. Outcome: a sentence with file, type and ways out; its own type allows it."""
    mounts = folder / "mountinfo"
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {folder}/share rw - nfs4 server:/data rw\n")
    monkeypatch.setattr(machine, "_MOUNTS", mounts)
    monkeypatch.setenv(f"TIDEMARK_{name}", f"sqlite:///{folder}/share/lake.db")
    for others in ("", "virtiofs,9p"):
        monkeypatch.setenv("TIDEMARK_SQLITE_ON_SHARED_DISK", others)
        with pytest.raises(SettingsError, match=r"lies on a file system that machines may share \(nfs4\)") as refused:
            load_settings()
        assert refused.value.subject == f"{folder}/share/lake.db"
        assert "Use PostgreSQL, or a local disk" in refused.value.hint
        assert "TIDEMARK_SQLITE_ON_SHARED_DISK=nfs4" in refused.value.hint
    monkeypatch.setenv("TIDEMARK_SQLITE_ON_SHARED_DISK", "nfs4")
    assert load_settings().sqlite_on_shared_disk == ("nfs4",)
    monkeypatch.delenv("TIDEMARK_SQLITE_ON_SHARED_DISK")
    monkeypatch.setenv(f"TIDEMARK_{name}", "postgresql://tidemark@db/lake")
    load_settings()


def test_the_greatest_project_id_is_one_and_a_property_that_would_be_read_as_another_is_none() -> None:
    assert Settings(projects=(str((1 << 63) - 1),)).projects == ("9223372036854775807",)
    for name in ("", " revenue", "\trevenue"):
        with pytest.raises(ValueError, match="begins with a blank"):
            Settings(revenue_properties=(name,))


@pytest.mark.parametrize(
    "place", ["/data/team@eu", "/srv/a:b/c@d", "file:///data/team@eu", "s3://bucket/team@eu/x", "s3://bucket/a:b/c@d"]
)
def test_a_place_whose_names_hold_an_at_sign_is_one(place: str) -> None:
    assert Settings(landing_url=place, warehouse_url=place).landing_url == place


def test_relative_paths_become_absolute(folder: Path) -> None:
    settings = load_settings()
    assert (settings.landing_url, settings.catalog_url) == (str(folder / "in"), f"sqlite:///{folder}/data/catalog.db")
    assert settings.ledger_database_url == settings.catalog_url


def test_hosts_of_different_memory_agree_on_the_parser_and_on_what_it_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default that follows from the machine is in no record; an operator's value is."""
    versions, limits = [], []
    for memory in (8 * 1024**3, 512 * 1024**2):
        monkeypatch.setattr(machine, "memory_bytes", lambda memory=memory: memory)
        monkeypatch.setattr(machine, "cores", lambda: 1)
        settings = load_settings()
        limits.append(settings.max_object_bytes)
        other = settings.model_copy(update={"change_min_rows": 7})
        versions += [REGULAR_EVENTS.code_version(one) for one in (settings, other)]
    assert (limits, len(set(versions))) == ([2 * 1024**3, 256 * 1024**2], 1)
    copied = settings.model_copy(update={"max_object_bytes": limits[0]})
    monkeypatch.setenv("TIDEMARK_MAX_OBJECT_BYTES", str(limits[0]))
    told = {REGULAR_EVENTS.code_version(one) for one in (copied, load_settings())}
    monkeypatch.delenv("TIDEMARK_MAX_OBJECT_BYTES")
    (folder / "tidemark.toml").write_text(f"max_object_bytes = {limits[0]}\n")
    told.add(REGULAR_EVENTS.code_version(load_settings()))
    assert len(told) == 1
    assert not told & set(versions)


@pytest.mark.parametrize(("name", "value", "said"), [
    ("TIDEMARK_PROJETS", "1", "TIDEMARK_PROJETS"),
    ("TIDEMARK_PROJECTS", "acme", "TIDEMARK_PROJECTS"),
    ("TIDEMARK_PROJECTS", "1,1", "named twice"),
    ("TIDEMARK_NOTIFY_URLS", "https://a.example/x,https://a.example/x", "an address is named twice"),
    ("TIDEMARK_PROJECTS", str(1 << 63), "not a vendor project id"),
    ("TIDEMARK_PROJECTS", "9" * 5000, "not a vendor project id"),
    ("TIDEMARK_PROJECTS", "010001", "without leading zeros"),
    ("TIDEMARK_PROJECTS", "0", "without leading zeros"),
    ("TIDEMARK_REVENUE_PROPERTIES", "*", "stands for all properties"),
    ("TIDEMARK_CURRENCY_PROPERTIES", "it's.odd", "which no path can say"),
    ("TIDEMARK_LANDING_URL", "gs://bucket", "TIDEMARK_LANDING_URL"),
    ("TIDEMARK_CATALOG_URL", "mysql://x", "TIDEMARK_CATALOG_URL"),
    ("TIDEMARK_CALENDAR_START", "soon", "TIDEMARK_CALENDAR_START"),
    ("TIDEMARK_SOURCE_PRECEDENCE", "regular", "name each of"),
    ("TIDEMARK_OWNERS", "team:data,somebody", "'somebody' is neither"),
    ("TIDEMARK_NOTIFY_URLS", "ftp://host/hook", "TIDEMARK_NOTIFY_URLS: address 1 of 1 is not http"),
    ("TIDEMARK_NOTIFY_URLS", "https://host/hook, https:///hook", "address 2 of 2 is not"),
    ("TIDEMARK_NOTIFY_URLS", "http://bi.internal/hook", "address 1 of 1 is http:// and not of this machine"),
    ("TIDEMARK_NOTIFY_URLS", "http://127.0.0.1.evil.example/hook", "travel in the clear; write https://"),
    ("TIDEMARK_NOTIFY_URLS", "http://localhost@evil.example/hook", "before its host"),
    ("TIDEMARK_EXPORT_API_URL", "http://amplitude.com", "travel in the clear; write https://"),
    ("TIDEMARK_EXPORT_API_URL", "http://10.0.0.7:8080/api/2/export", "travel in the clear"),
    ("TIDEMARK_NOTIFY_URLS", "https://host:port/hook", "address 1 of 1 is not"),
    ("TIDEMARK_JARS_URL", "file:///mirror", "TIDEMARK_JARS_URL: is not http"),
    ("TIDEMARK_NOTIFY_URLS", "https://host/a hook", "address 1 of 1 is not"),
    *(("TIDEMARK_EXPORT_API_URL", url, "TIDEMARK_EXPORT_API_URL: it is not https")
      for url in ("https://key:secret@amplitude.com/api/2/export", "ftp://amplitude.com", "amplitude.com")),
    ("TIDEMARK_SPARK_CONFIG", "{", "TIDEMARK_SPARK_CONFIG"),
    ("TIDEMARK_CONFIG", "missing.toml", "TIDEMARK_CONFIG"),
])  # fmt: skip
def test_bad_variables_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said) as refused:
        load_settings()
    assert "EXPORT" not in name or value not in str(refused.value)


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:1", "127.8.9.1", "[::1]:8080"])
def test_this_machine_may_be_asked_and_told_in_the_clear(host: str) -> None:
    url = f"http://{host}/hook"
    assert Settings(notify_urls=(url,), **({} if "[" in host else {"export_api_url": url})).notify_urls == (url,)


def test_an_unknown_key_in_the_file_is_refused(folder: Path) -> None:
    (folder / "tidemark.toml").write_text("projcts = []\n")
    with pytest.raises(SettingsError, match="projcts"):
        load_settings()


def test_no_project_is_a_clear_error() -> None:
    with pytest.raises(SettingsError, match="TIDEMARK_PROJECTS"):
        Settings().require_projects()
    with pytest.raises(SettingsError, match="not among"):
        Settings(projects=("1",)).require_projects(("2",))


@pytest.mark.parametrize(
    ("url", "path"), [("/a/b", "/a/b"), ("file:///a/b%20c", "/a/b c"), ("file:///x#y", "/x#y"), ("s3://bucket/a", None)]
)
def test_local_path(url: str, path: str | None) -> None:
    assert local_path(url) == (Path(path) if path else None)


def test_the_settings_file_names_every_value_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    # One default follows from the machine; the documented one is of a large machine.
    monkeypatch.setattr(machine, "memory_bytes", lambda: 2**36)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    text = (PROJECT_ROOT / "tidemark.toml").read_text()
    lines = re.findall(r"^# ([a-z_]+ = .*|\[[a-z_]+\])$", text, re.MULTILINE)
    shown = tomllib.loads("\n".join(line for line in lines if " = " in line))
    set_there = set(tomllib.loads(text))
    sections = {line[1:-1] for line in lines if line.startswith("[")}
    assert sections == {"spark_config", "change_bounds"}
    assert set(shown) | set_there | sections == set(Settings.model_fields)
    # A setting without a default is shown by an example.
    shown["first_arrival"] = str(shown["first_arrival"])
    own = ("ledger_url", "first_arrival", "golden_url", "golden_query", "jars_dir", "metrics_file")
    defaults = Settings(**{name: shown[name] for name in own}).model_dump(mode="json")
    assert shown == {name: defaults[name] for name in shown}


def test_keys_of_projects_are_no_settings_and_are_known_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_EXPORT_KEY_10001", "a-key-of-length")
    monkeypatch.setenv("TIDEMARK_EXPORT_SECRET_10001", "a-secret-of-length")
    settings = load_settings()
    assert "of-length" not in repr(settings)
    monkeypatch.setenv("TIDEMARK_EXPORT_KEY_MAIN", "a-key-of-length")
    with pytest.raises(SettingsError, match="TIDEMARK_EXPORT_KEY_MAIN: is not a setting"):
        load_settings()


def test_what_kubernetes_says_of_a_service_is_no_setting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a cluster has a service `tidemark`. Outcome: pods start; a mistaken setting is refused."""
    assert not [name for name in Settings.model_fields if name.endswith(("service_host", "_port", "_tcp"))]
    for service in ("TIDEMARK", "TIDEMARK_WEB"):
        for name, value in {
            "SERVICE_HOST": "10.0.0.7", "SERVICE_PORT": "4000", "SERVICE_PORT_GRPC": "4000", "PORT": "tcp://10.0.0.7:4000",
            "PORT_4000_TCP": "tcp://10.0.0.7:4000", "PORT_4000_TCP_PROTO": "tcp", "PORT_4000_TCP_PORT": "4000",
            "PORT_4000_TCP_ADDR": "10.0.0.7",
        }.items():  # fmt: skip
            monkeypatch.setenv(f"{service}_{name}", value)
    load_settings()
    monkeypatch.setenv("TIDEMARK_PORT", "4000")
    with pytest.raises(SettingsError, match="TIDEMARK_PORT: is not a setting"):
        load_settings()


def test_a_project_of_another_beside_the_code_makes_no_clone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "analytics"\n')
    assert (is_clone(tmp_path), is_clone(PROJECT_ROOT), is_clone(tmp_path / "nowhere")) == (False, True, False)


BUCKETS = {"landing_url": "s3://bucket/landing", "warehouse_url": "s3://bucket/warehouse"}
KEY = "spark.executorEnv.AWS_SECRET_ACCESS_KEY"
ROLE = (
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "TOKEN_DIR", "CREDENTIALS_PATH",
)  # fmt: skip
"""Sources of a worker's role credentials, which open nothing by themselves."""


@pytest.mark.parametrize(("changes", "said"), [
    ({"landing_url": "/data/in"}, "landing_url: is a folder of this machine, while spark_master names a cluster."),
    ({"warehouse_url": "file:///data/lake"}, "warehouse_url: is a folder of this machine"),
    ({"warehouse_url": "/mnt/lake", "spark_shared_disk": True}, None),
    ({"spark_config": {KEY: "word"}}, f"spark_config: {KEY}: is a secret that the cluster's own pages show."),
    ({"spark_config": {"spark.executorEnv.TZ": "UTC", "spark.hadoop.fs.s3a.secret.key": "word"}}, None),
    *(({"spark_config": {f"spark.executorEnv.{name}": "/var/run/role"}}, None) for name in ROLE),
    *(
        ({"spark_config": {name: "word"}}, f"spark_config: {name}: is a secret")
        for name in map("spark.executorEnv.{}".format, ("AWS_SESSION_TOKEN", "TOKEN_FILE_CONTENT", "PASSFILE"))
    ),
    ({"catalog_url": "sqlite:////data/catalog.db"}, None),
])  # fmt: skip
@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host:6443", "yarn"])
def test_what_only_works_on_one_machine_is_refused_for_a_cluster(
    master: str, changes: dict[str, Any], said: str | None
) -> None:
    """Outcome: one sentence for places that workers cannot see and for exposed secrets; one machine takes all."""
    require_cluster_settings(Settings(**{**BUCKETS, **changes}, spark_master="local[2]"))
    with nullcontext() if said is None else pytest.raises(SettingsError, match=f"^{re.escape(said)}") as refused:
        require_cluster_settings(Settings(**{**BUCKETS, **changes}, spark_master=master))
    assert said is None or "word" not in str(refused.value)


THEN = Settings(dedupe_window_days=2, source_precedence=tuple(Source), revenue_properties=("a", "b"))


def test_settings_come_back_as_they_were() -> None:
    for table in (*DERIVED, *AS_OF_TABLES):
        recorded = json.loads(json.dumps(table.recorded_settings(THEN)))
        again = with_recorded(Settings(), recorded)
        assert table.code_version(again) == table.code_version(THEN)
        assert differing(recorded, table.recorded_settings(again)) == {}


def test_what_chooses_the_inputs_is_recorded_and_is_no_other_code() -> None:
    """Outcome: another policy for days without a snapshot is on record, and published days stay."""
    other = THEN.model_copy(update={"missing_snapshot": MissingSnapshot.PREVIOUS, "previous_snapshot_days": 3})
    for table in AS_OF_TABLES:
        sides = table.recorded_settings(THEN), table.recorded_settings(other)
        assert differing(*sides) == {"missing_snapshot": ("wait", "previous"), "previous_snapshot_days": (7, 3)}
        assert table.code_version(THEN) == table.code_version(other)
    for table in DERIVED:
        assert table.recorded_settings(THEN) == table.recorded_settings(other)


def test_which_events_repeat_revenue_is_recorded_and_is_other_code() -> None:
    """Outcome: a changed list makes published revenue stale, and a replay uses the list of then."""
    sides = Settings(), Settings(event_types_without_revenue=())
    recorded = [DAILY_REVENUE.recorded_settings(one) for one in sides]
    default = ["[Amplitude] Revenue (Verified)", "[Amplitude] Revenue (Unverified)"]
    assert differing(*recorded) == {"event_types_without_revenue": (default, [])}
    assert DAILY_REVENUE.code_version(sides[0]) != DAILY_REVENUE.code_version(sides[1])
    assert with_recorded(sides[1], recorded[0]) == sides[0]


def test_what_differs_is_told_with_both_values_and_no_secret_is_recorded() -> None:
    """Scenario: a user's table also reads settings that may hold a password. Outcome: no record holds them."""
    assert on_record(THEN, ("catalog_url", "notify_urls", "spark_config", "dedupe_window_days")) == {
        "dedupe_window_days": 2
    }
    names = ("dedupe_window_days", "source_precedence")
    assert differing(on_record(THEN, names), on_record(Settings(), names)) == {
        "dedupe_window_days": (2, 1),
        "source_precedence": (["regular", "backfill"], ["backfill", "regular"]),
    }
    assert differing({"gone": 1}, {"new": 2}) == {"gone": (1, None), "new": (None, 2)}


def test_a_recorded_value_that_means_nothing_now_is_refused_and_an_unknown_name_left_out() -> None:
    assert with_recorded(THEN, {"a_setting_of_then": 5}) == THEN
    with pytest.raises(SettingsError, match="source_precedence: has the recorded value"):
        with_recorded(THEN, {"source_precedence": ["somewhere else"]})
