"""ruff refuses a folder's banned libraries, import-linter imports of a layer above."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_RINGS = ("domain", "native", "formats", "transforms", "tables", "load", "operations", "inspection")
FENCED = (*(f"pipeline_assets/{name}" for name in _RINGS), "resources")

FENCES = [
    *((folder, "import dagster as dg", "dagster") for folder in FENCED),
    ("pipeline_assets/domain", "from dagster_pyspark import LazyPySparkResource", "dagster_pyspark"),
    ("pipeline_assets/domain", "import pyspark.sql.functions as F", "pyspark"),
    ("pipeline_assets/native", "from pyspark.sql import DataFrame", "pyspark"),
    ("pipeline_assets/formats", "from pyspark.sql import DataFrame", "pyspark"),
    ("pipeline_assets/load", "from dagster import AssetKey", "dagster"),
    ("resources", "from dagster_aws.s3 import S3Resource", "dagster_aws"),
]

GATES = [
    ("pipeline_assets/domain/probe.py", "import json"),
    ("pipeline_assets/transforms/probe.py", "import pyspark.sql.functions as F"),
    ("pipeline_assets/load/probe.py", "from resources.ledger.store import Ledger"),
    ("pipeline_assets/probe.py", "import dagster as dg"),
    ("resources/landing/store.py", "from dagster_aws.s3 import S3Resource"),
    ("resources/spark/session.py", "from dagster_pyspark import LazyPySparkResource"),
]

CLIMBS = [
    ("pipeline_assets/domain", "from pipeline_assets.formats.amplitude.keys import KeyGrammar"),
    ("pipeline_assets/native", "from pipeline_assets.formats.base import ColumnType"),
    ("pipeline_assets/load", "from pipeline_assets.formats.amplitude.columns import VENDOR_COLUMNS"),
    ("pipeline_assets/formats", "from pipeline_assets.formats.amplitude.keys import KeyGrammar"),
    ("pipeline_assets/transforms", "from resources.iceberg.lakehouse import Lakehouse"),
    ("resources", "from pipeline_assets.load.run import run_load"),
    ("pipeline_assets/load", "from pipeline_assets.orchestration.assets import LoadConfig"),
    ("pipeline_assets/operations", "from pipeline_assets.inspection.verify import prove"),
    ("pipeline_assets/orchestration", "from pipeline_assets.cli.app import app"),
]
"""Folder, and an import of a layer above or beside it, or of a format past the registry."""


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """The project's folders and ruff configurations, without modules."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in (*FENCED, "resources/landing", "resources/spark"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for folder in FENCED:
        shutil.copy(ROOT / folder / "ruff.toml", tmp_path / folder)
    return tmp_path


def _ruff(root: Path, path: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "ruff", "check", "--no-cache", *options, path]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)


def findings(root: Path, module: str, line: str) -> list[str]:
    """ruff's findings when `module` holds `line`."""
    (root / module).write_text(f"{line}\n", "utf-8")
    done = _ruff(root, module, "--output-format=json")
    assert done.returncode in {0, 1}, done.stderr
    return [found["message"] for found in json.loads(done.stdout) if found["code"] == "TID251"]


@pytest.mark.parametrize(("folder", "line", "banned"), FENCES)
def test_an_import_across_a_border_is_refused(skeleton: Path, folder: str, line: str, banned: str) -> None:
    (message,) = findings(skeleton, f"{folder}/probe.py", line)
    assert message.startswith(f"`{banned}` is banned")


@pytest.mark.parametrize(("module", "line"), GATES)
def test_an_import_inside_a_ring_is_allowed(skeleton: Path, module: str, line: str) -> None:
    assert findings(skeleton, module, line) == []


@pytest.mark.parametrize("folder", FENCED)
def test_no_module_of_ours_crosses_a_border(folder: str) -> None:
    done = _ruff(ROOT, folder, "--select=TID251")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_reason_is_the_only_way_through(skeleton: Path) -> None:
    """A bare noqa would silence a border without a trace; ruff asks for the code (PGH004)."""
    (skeleton / "resources/probe.py").write_text("import dagster as dg  # noqa\n", "utf-8")
    assert "PGH004" in _ruff(skeleton, "resources/probe.py", "--output-format=concise").stdout


def _contract(root: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--config", "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def test_no_module_of_ours_imports_a_layer_above() -> None:
    done = _contract(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("layers")
    shutil.copy(ROOT / "pyproject.toml", root)
    for folder in ("pipeline_assets", "resources"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_an_import_of_a_layer_above_is_refused(copy: Path) -> None:
    for number, (folder, line) in enumerate(CLIMBS):
        (copy / folder / f"probe{number}.py").write_text(f"{line}\n", "utf-8")
    done = _contract(copy)
    assert done.returncode == 1, done.stderr
    refused = {number for number in range(len(CLIMBS)) if f".probe{number} ->" in done.stdout}
    assert refused == set(range(len(CLIMBS))), done.stdout
