"""The borders between the rings hold: ruff refuses an import that crosses one, with the project's own configuration."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCED = (
    "pipeline_assets/domain",
    "pipeline_assets/transforms",
    "pipeline_assets/load_path",
    "pipeline_assets/tables",
    "resources",
)

FENCES = [
    ("pipeline_assets/domain", "import dagster as dg", "dagster"),
    ("pipeline_assets/domain", "from dagster_pyspark import LazyPySparkResource", "dagster_pyspark"),
    ("pipeline_assets/domain", "import pyspark.sql.functions as F", "pyspark"),
    ("pipeline_assets/domain", "from pipeline_assets.load.run import walk", "pipeline_assets.load"),
    ("pipeline_assets/domain", "from pipeline_assets import load_path", "pipeline_assets.load"),
    ("pipeline_assets/domain", "from resources.ledger.store import Ledger", "resources"),
    ("pipeline_assets/transforms", "import dagster as dg", "dagster"),
    ("pipeline_assets/transforms", "from resources.iceberg.lakehouse import Lakehouse", "resources"),
    ("pipeline_assets/load_path", "from dagster import AssetKey", "dagster"),
    (
        "pipeline_assets/load_path",
        "from pipeline_assets.orchestration.assets import LoadConfig",
        "pipeline_assets.orchestration.assets",
    ),
    ("pipeline_assets/tables", "from dagster import AssetKey", "dagster"),
    ("resources", "import dagster as dg", "dagster"),
    ("resources", "from dagster_aws.s3 import S3Resource", "dagster_aws"),
]

GATES = [
    ("pipeline_assets/domain/probe.py", "import json"),
    ("pipeline_assets/transforms/probe.py", "import pyspark.sql.functions as F"),
    ("pipeline_assets/load_path/probe.py", "from resources.ledger.store import Ledger"),
    ("pipeline_assets/probe.py", "import dagster as dg"),
    ("resources/landing/store.py", "from dagster_aws.s3 import S3Resource"),
    ("resources/spark/session.py", "from dagster_pyspark import LazyPySparkResource"),
]


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """The project's folders and ruff configurations, without its modules."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in FENCED:
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(ROOT / folder / "ruff.toml", tmp_path / folder)
    return tmp_path


def findings(root: Path, module: str, line: str) -> list[str]:
    """What ruff says about the border when `module` holds `line`."""
    (root / module).write_text(f"{line}\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", module],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
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
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--select=TID251", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_reason_is_the_only_way_through(skeleton: Path) -> None:
    """A bare noqa would silence a border without a trace; ruff asks for the code (PGH004)."""
    (skeleton / "resources/probe.py").write_text("import dagster as dg  # noqa\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "resources/probe.py"],
        cwd=skeleton, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "PGH004" in done.stdout
