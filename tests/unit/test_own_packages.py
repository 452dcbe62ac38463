"""A folder with its own `resources` is named, in place of errors about missing modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_assets.domain.settings import PROJECT_ROOT


def _imported(folder: Path, module: str) -> subprocess.CompletedProcess[str]:
    """Like Dagster's `-m`: its working directory comes first."""
    words = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(PROJECT_ROOT)!r}]; import {module}"
    return subprocess.run([sys.executable, "-P", "-c", words], capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.parametrize("module", ["pipeline_assets.definitions", "pipeline_assets.cli.app"])
def test_another_package_of_the_name_is_named_with_its_place(module: str, tmp_path: Path) -> None:
    foreign = tmp_path / "resources" / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("raise SystemExit('imported')")
    done = _imported(tmp_path, module)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: resources: {foreign} would be imported in place of Tidemark's package")
    assert f"of that name, {PROJECT_ROOT / 'resources'}. " in last
    assert "rename that package" in last


def test_a_folder_of_the_name_that_is_no_package_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "notes.py").write_text("")
    assert _imported(tmp_path, "pipeline_assets.domain.errors").returncode == 0


def test_a_link_to_the_clone_is_the_clone(tmp_path: Path) -> None:
    for name in ("resources", "pipeline_assets"):
        (tmp_path / "whole").mkdir(exist_ok=True)
        (tmp_path / "whole" / name).symlink_to(PROJECT_ROOT / name)
    (tmp_path / "resources").symlink_to(PROJECT_ROOT / "resources")
    for folder in (tmp_path / "whole", tmp_path):
        assert _imported(folder, "pipeline_assets.domain.errors").returncode == 0


def test_dagster_takes_nothing_from_the_folder_of_a_workspace(tmp_path: Path) -> None:
    """A workspace names no working directory, so Dagster puts none before installed packages."""
    from dagster._core.workspace.load import location_origins_from_yaml_paths

    (origin,) = location_origins_from_yaml_paths([str(PROJECT_ROOT / "workspace.yaml")])
    assert origin.loadable_target_origin.working_directory is None  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["resources/landing/store.py", "pipeline_assets/config.py", "resources/theirs.py"])
def test_another_distribution_that_installs_into_our_packages_is_named_with_both_places(
    name: str, tmp_path: Path
) -> None:
    """Scenario: pip silently put another distribution's files over ours. Outcome: nothing starts."""
    for folder in ("resources", "pipeline_assets"):
        shutil.copytree(
            PROJECT_ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "deployment")
        )
    for owner, files in (("tidemark_pipeline-0.1.0", ("resources/__init__.py",)), ("other-2.0", ("other.py", name))):
        (tmp_path / f"{owner}.dist-info").mkdir()
        record = "".join(f"{file},sha256=x,1\n" for file in files)
        (tmp_path / f"{owner}.dist-info" / "RECORD").write_text(record)
    done = _imported(tmp_path, "pipeline_assets.domain.errors")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / name} is installed by {tmp_path / 'other-2.0.dist-info'}")
    assert str(tmp_path / "pipeline_assets") in last
    (tmp_path / "other-2.0.dist-info" / "RECORD").write_text("my/resources/a.py,,\nresources_of_mine/b.py,,\n")
    assert _imported(tmp_path, "pipeline_assets.domain.errors").returncode == 0
