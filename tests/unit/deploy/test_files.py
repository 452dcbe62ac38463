"""Dockerfile, compose file, chart values and build scripts are valid for their readers and keep their promises."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline_assets.domain.settings import ENV_PREFIX, PROJECT_ROOT, Settings

DEPLOY = PROJECT_ROOT / "deploy"
DOCKERFILE, COMPOSE = PROJECT_ROOT / "Dockerfile", DEPLOY / "docker-compose.yml"
VALUES = DEPLOY / "kubernetes/values.yaml"
SCRIPTS = sorted([*DEPLOY.glob("*.sh"), *DEPLOY.glob("*/*.sh")])
YAML = sorted([*DEPLOY.rglob("*.y*ml"), PROJECT_ROOT / "dagster.yaml"])
ENTRYPOINT = (DEPLOY / "container/entrypoint.sh").read_text("utf-8")
_EXACT = re.compile(r"[\w./-]+:(?:[\w.-]*\d+\.\d+[\w.-]*|RELEASE\.[\w-]+)(?:@sha256:[0-9a-f]{64})?")
_GIVEN = re.compile(r"\$\{(\w+):\?[^}]+\}")
"""A variable without a default: compose refuses to start without it."""


def ran(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **options)


def lint(tool: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return ran(Path(sys.executable).parent / tool, *words)


def linted(path: Path) -> subprocess.CompletedProcess[str]:
    if path.name.endswith("ockerfile"):
        return lint("hadolint", path)
    if "compose" in path.name:
        return lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)
    return lint("yamllint", "--strict", "--config-file", DEPLOY / "yamllint.yaml", path)


@pytest.mark.parametrize("path", [DOCKERFILE, COMPOSE, *YAML], ids=lambda path: str(path.relative_to(PROJECT_ROOT)))
def test_a_linter_takes_every_file(path: Path) -> None:
    done = linted(path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (DOCKERFILE, "FROM ${PYTHON_IMAGE} AS build", "FROM python:latest AS build"),
        (DOCKERFILE, 'CMD ["code-server"]', "CMD code-server"),
        (COMPOSE, "  read_only: true", "  read_onli: true"),
        (COMPOSE, "cap_drop: [ALL]", "cap_drop: 3"),
        (VALUES, "port: 4000", "port: 4000\n      port: 4001"),
    ],
)
def test_a_linter_finds_a_broken_copy(path: Path, old: str, new: str, tmp_path: Path) -> None:
    text = path.read_text("utf-8")
    broken = tmp_path / path.name
    broken.write_text(text.replace(old, new), "utf-8")
    assert broken.read_text("utf-8") != text
    assert linted(broken).returncode != 0


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], " ".join(line.split()[1:])) for line in text.splitlines() if line.strip()]


def test_an_image_is_pinned_unprivileged_and_built_by_scripts_alone() -> None:
    made = instructions()
    (base,) = [rest.partition("=")[2] for name, rest in made if name == "ARG"]
    assert _EXACT.fullmatch(base), base
    assert [rest.split()[0] for name, rest in made if name == "FROM"] == ["${PYTHON_IMAGE}"] * 2
    last = made[max(at for at, (name, _) in enumerate(made) if name == "FROM") :]
    (user,) = [rest for name, rest in last if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), user
    after = [name for name, _ in last[[name for name, _ in last].index("USER") :]]
    assert not {"RUN", "COPY", "ADD"} & set(after)
    assert not any(name == "ADD" for name, _ in made)
    (volumes,) = [rest for name, rest in last if name == "VOLUME"]
    assert "/tmp" in volumes
    assert any(name == "HEALTHCHECK" for name, _ in last)
    commands = [part.strip() for name, rest in made if name == "RUN" for part in rest.split("&&")]
    named = [Path(command.split()[1]).name for command in commands if command.startswith("sh ")]
    assert {command.split()[0] for command in commands if not command.startswith("sh ")} == {"useradd", "install"}
    assert set(named) == {path.name for path in (DEPLOY / "build").glob("*.sh")}
    environment = " ".join(rest for name, rest in made if name == "ENV")
    assert not re.search(r"(?i)password|secret|key", environment)


def test_what_is_secret_or_made_here_stays_out_of_an_image() -> None:
    ignored = (PROJECT_ROOT / ".dockerignore").read_text("utf-8").split()
    assert {".git", ".venv", ".jars", "data", "**/.env", "**/*.env", "postgresql-password"} <= set(ignored)


@pytest.mark.skipif(not (PROJECT_ROOT / ".git").exists(), reason="a copy without its history ignores nothing")
def test_files_of_secrets_that_documents_name_are_never_committed() -> None:
    told = (PROJECT_ROOT / "docs/deployment.md").read_text("utf-8")
    names = set(re.findall(r"--(?:(?:from-)?env-file[= ]|from-file=(?=postgresql))(\S+)", told))
    assert names >= {"tidemark.env", "tidemark-secrets.env", "deploy/.env", "postgresql-password"}
    done = ran("git", "check-ignore", "--no-index", *names, cwd=PROJECT_ROOT)
    assert set(done.stdout.split()) == names


def pins(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    found: dict[str, tuple[str, set[str]]] = {}
    name = ""
    for line in path.read_text("utf-8").splitlines():
        if match := re.match(r"([a-z0-9][\w.-]*)(?:\[[^\]]*\])?==(\S+)", line):
            marker = line.partition(";")[2].strip(" \\")
            name = f"{match[1]} {marker}"
            found[name] = (match[2], set())
        elif "--hash=" in line:
            found[name][1].add(line.strip(" \\"))
    return {package: (version, frozenset(sums)) for package, (version, sums) in found.items()}


def test_an_image_installs_a_part_of_what_is_tested() -> None:
    of_image, tested = pins(DEPLOY / "build/requirements.lock"), pins(PROJECT_ROOT / "requirements.lock")
    versions: dict[str, dict[str, frozenset[str]]] = {}
    for package, (version, sums) in tested.items():
        versions.setdefault(package.split()[0], {})[version] = sums
    for package, (version, sums) in of_image.items():
        assert sums, package
        assert versions[package.split()[0]].get(version) == sums, package
    names = {package.split()[0] for package in of_image}
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]} <= names
    assert not {"pytest", "ruff", "moto", "playwright", "duckdb", "hypothesis"} & names


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_read_by_any_shell(path: Path) -> None:
    # Sourced files need no interpreter.
    assert path.read_text("utf-8").startswith("#!/bin/sh\n") or path.name == "environment.sh"
    assert ran("sh", "-n", path).returncode == 0


@pytest.mark.parametrize("script", ["install.sh", "warm.sh", "seal.sh"])
def test_a_build_step_leaves_a_folder_alone_that_is_not_its_own(script: str, tmp_path: Path) -> None:
    own = tmp_path / "of-somebody.txt"
    own.write_text("mine")
    done = ran("sh", DEPLOY / "build" / script, tmp_path)
    assert done.returncode == 2
    assert "fix:" in done.stderr
    assert list(tmp_path.iterdir()) == [own]
    assert own.stat().st_mode & 0o200


def test_what_is_asked_of_a_script_wrongly_is_refused() -> None:
    for words in (["build/install.sh", "relative/folder"], ["build/packages.sh"], ["build/packages.sh", "both"]):
        assert ran("sh", DEPLOY / words[0], *words[1:], cwd="/").returncode == 2, words
    for script, word, reason in (("entrypoint.sh", "webserver", "DAGSTER_HOME"), ("health.sh", "nothing", "no check")):
        done = ran("sh", DEPLOY / "container" / script, word, env={"PATH": "/usr/bin:/bin"})
        assert done.returncode != 0
        assert reason in done.stderr


def _begun(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a container with a kept Dagster home."""
    for place, name in ((DEPLOY / "container", "bin"), (PROJECT_ROOT, "app")):
        (folder / name).mkdir(exist_ok=True)
        for path in [*place.glob("*.sh"), *place.glob("*.yaml")]:
            shutil.copyfile(path, folder / name / path.name)
    variables = {"PATH": "/usr/bin:/bin", "DAGSTER_HOME": str(folder / "home"), **environment}
    return ran("sh", folder / "bin/entrypoint.sh", "true", env=variables)


_DATABASE = {"DAGSTER_POSTGRES_URL": "postgresql://dagster@db/dagster"}


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_home_that_was_begun_without_a_database_is_moved_to_one_and_says_so(is_marked: bool, tmp_path: Path) -> None:
    """Scenario: a volume is first used without a database. Outcome: later runs are kept in the database they are given."""
    instance = tmp_path / "home" / "dagster.yaml"
    assert _begun(tmp_path).returncode == 0
    if not is_marked:
        instance.write_text((PROJECT_ROOT / "dagster.yaml").read_text("utf-8"))
    assert "storage" not in yaml.safe_load(instance.read_text())
    moved = _begun(tmp_path, **_DATABASE)
    assert (moved.returncode, "kept in PostgreSQL from now on" in moved.stderr) == (0, True)
    assert "storage" in yaml.safe_load(instance.read_text())
    for environment in ({}, _DATABASE):
        again = _begun(tmp_path, **environment)
        assert (again.returncode, again.stderr) == (0, "")
        assert "storage" in yaml.safe_load(instance.read_text())


def test_a_persons_own_instance_is_left_alone_and_refused_where_it_forgets_the_database(tmp_path: Path) -> None:
    instance = tmp_path / "home" / "dagster.yaml"
    instance.parent.mkdir()
    instance.write_text("nux: {enabled: false}\n")
    assert _begun(tmp_path).returncode == 0
    refused = _begun(tmp_path, **_DATABASE)
    assert (refused.returncode, "does not name DAGSTER_POSTGRES_URL" in refused.stderr) == (2, True)
    assert instance.read_text() == "nux: {enabled: false}\n"
    instance.write_text("storage: {postgres: {postgres_url: {env: DAGSTER_POSTGRES_URL}}}\n")
    assert _begun(tmp_path, **_DATABASE).returncode == 0


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="the image is Debian's, this machine is not")
def test_packages_of_the_distribution_are_there() -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/bin", "APT_OPTIONS": "--simulate"}
    for stage in ("build", "run"):
        done = ran("sh", DEPLOY / "build/packages.sh", stage, env=environment)
        assert done.returncode == 0, done.stderr


SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
CHART = yaml.safe_load(VALUES.read_text("utf-8"))
ONCE = {"databases", "buckets"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_hardened_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert _EXACT.fullmatch(service["image"]), service["image"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "pid"} & set(service)
    for port in service.get("ports", []):
        assert str(port).startswith("127.0.0.1:"), port
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    for other, wanted in service.get("depends_on", {}).items():
        if wanted["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other], other
    assert (name in ONCE) == (service["restart"] == "no") == ("healthcheck" not in service)
    if service["image"].startswith("tidemark:"):
        (role,) = service["command"]
        assert f"    {role})\n" in ENTRYPOINT
        assert service["healthcheck"]["test"][-1] == role


def secrets_in(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Place and value of everything named like a secret, and of passwords in addresses."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from secrets_in(item, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from secrets_in(item, f"{place}[{number}]")
    elif isinstance(value, str):
        if re.search(r"(?i)(password|secret|_key|_user)$", place):
            yield place, value
        yield from ((place, password) for password in re.findall(r"//[^/@\s:]+:([^/@\s]*(?:\{[^}]*\})?)@", value))


def test_no_password_has_a_default() -> None:
    found = list(secrets_in(SERVICES, "services"))
    assert len(found) > 5
    for place, value in found:
        if value != "postgres" or not place.endswith("POSTGRES_USER"):
            assert _GIVEN.fullmatch(value), f"{place}: {value}"
    assert list(secrets_in(CHART, "chart")) == []


def test_settings_of_a_deployment_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SERVICES["code-server"]["environment"]
    given = {"TIDEMARK_PROJECTS": "10001", "TIDEMARK_CALENDAR_START": "2026-01-01", "CATALOG_PASSWORD": "x1"}
    ours = {name: value for name, value in environment.items() if name.startswith(ENV_PREFIX)}
    told = {name: _GIVEN.sub(lambda match: given[match[1]], value) for name, value in ours.items()}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert {name.removeprefix(ENV_PREFIX).lower() for name in told} <= set(Settings.model_fields)
    assert settings.spark_config["spark.driver.host"] == SERVICES["code-server"]["hostname"]
    worker = SERVICES["spark-worker"]["environment"]
    assert settings.spark_master == worker["SPARK_MASTER_URL"]
    assert set(worker) >= {name for name in environment if name.startswith("AWS_")}
    assert not [name for name, value in worker.items() if "postgres" in f"{name}={value}".lower()]
    (deployment,) = CHART["dagster-user-deployments"]["deployments"]
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields} | {"TIDEMARK_CONFIG"}
    assert set(deployment["env"]) <= known


def test_pods_are_pinned_unprivileged_and_read_only() -> None:
    (deployment,) = CHART["dagster-user-deployments"]["deployments"]
    for pod in (deployment, CHART["dagsterWebserver"], CHART["dagsterDaemon"]):
        assert _EXACT.fullmatch(f"{pod['image']['repository']}:{pod['image']['tag']}")
        of_pod, own = pod["podSecurityContext"], pod["securityContext"]
        assert (of_pod["runAsNonRoot"], of_pod["runAsUser"]) == (True, 10001)
        assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False)
        assert own["capabilities"]["drop"] == ["ALL"]
        assert {mount["mountPath"] for mount in pod["volumeMounts"]} >= {"/tmp", "/var/lib/tidemark"}
        assert {mount["name"] for mount in pod["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
    arguments = " ".join(deployment["codeServerArgs"]).replace("/opt/tidemark/app", '"$app"')
    assert f'code-server start -h "$bind" -p "${{CODE_SERVER_PORT:-{deployment["port"]}}}" {arguments}' in ENTRYPOINT
    assert CHART["global"]["dagsterHome"].startswith("/var/lib/tidemark")


def test_no_service_of_the_chart_is_called_as_settings_are() -> None:
    (deployment,) = CHART["dagster-user-deployments"]["deployments"]
    variables = deployment["name"].upper().replace("-", "_")
    assert not variables.startswith(ENV_PREFIX.rstrip("_"))
    assert f"{variables}_PORT" not in ENTRYPOINT


def test_the_pool_is_made_where_runs_are_and_no_command_line_holds_a_secret() -> None:
    """By its chart, only the daemon's pod has the runs' instance; the code server gets it by the secret."""
    told = (PROJECT_ROOT / "docs/deployment.md").read_text("utf-8").partition("### On Kubernetes")[2]
    (release,) = re.findall(r"helm upgrade --install (\S+) dagster/dagster", told)
    assert re.findall(r"kubectl exec (\S+) -- dagster instance", told) == [f"deploy/{release}-dagster-daemon"]
    assert "DAGSTER_POSTGRES_URL=postgresql+psycopg2://dagster:" in told
    assert CHART["postgresql"]["postgresqlUsername"] == CHART["postgresql"]["postgresqlDatabase"] == "dagster"
    assert "--from-literal" not in told


def test_where_a_service_is_is_taken_for_no_port() -> None:
    """Scenario: services are named like the container's processes. Outcome: each port is its default."""
    names = ("CODE_SERVER_PORT", "WEBSERVER_PORT", "SPARK_MASTER_PORT", "SPARK_WORKER_PORT")
    ports = " ".join(f'"[${{{name}:-}}]"' for name in names)
    shown = f"here=/opt/x/bin; . deploy/container/environment.sh; echo {ports}"
    for value, told in (("tcp://10.0.0.7:9", "[4000] [] [] []"), ("4001", "[4001] [4001] [4001] [4001]")):
        variables = {"PATH": "/usr/bin:/bin"} | dict.fromkeys(names, value)
        done = ran("sh", "-euc", shown, env=variables, cwd=PROJECT_ROOT)
        assert (done.returncode, done.stdout.strip()) == (0, told)


def test_every_deployment_has_the_same_instance_of_dagster() -> None:
    plain = yaml.safe_load((PROJECT_ROOT / "dagster.yaml").read_text("utf-8"))
    of_image = yaml.safe_load((DEPLOY / "container/dagster.yaml").read_text("utf-8"))
    assert of_image.pop("storage") == {"postgres": {"postgres_url": {"env": "DAGSTER_POSTGRES_URL"}}}
    assert of_image == plain
    assert CHART["additionalInstanceConfig"] | {"telemetry": CHART["telemetry"]} == plain
    chart, locked = VALUES.read_text("utf-8"), (PROJECT_ROOT / "requirements.lock").read_text("utf-8")
    (version,) = set(re.findall(r"(?:version,? )(\d+\.\d+\.\d+)", chart))
    assert f"\ndagster=={version} " in locked
