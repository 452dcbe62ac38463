"""Facts about the machine without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_assets.domain import machine
from pipeline_assets.domain.machine import cores, engine_cores, shared_file_system


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("local", 1), ("local[4]", 4), ("local[ 4, 3]", 4), ("local[*]", cores()), ("local[*,3]", cores()),
        ("local[0]", cores()), ("spark://host:7077", cores()),
    ],
)  # fmt: skip
def test_the_cores_of_the_engine_are_those_that_its_master_names(master: str, told: int) -> None:
    assert engine_cores(master) == told


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: the innermost and latest mount counts, also behind a link; nothing is said of a local one or of none."""
    shared = ("vmhgfs", "drvfs", "panfs", "wekafs", "orangefs", "pvfs2", "coda")
    (tmp_path / "link").symlink_to("/srv/share")
    mounts = (
        ("/", "rw", "overlay overlay"),
        ("/srv/share", "rw shared:5", "nfs4 server:/exports"),
        ("/srv/share/local", "rw", "ext4 /dev/sdb"),
        ("/srv/share\\040disk", "rw", "fuse.grpcfuse grpcfuse"),
        ("/twice", "rw", "ext4 /dev/sdd"),
        ("/twice", "rw master:1", "virtiofs host"),
        ("/ü", "rw", "9p host"),
        *((f"/{kind}", "rw", f"{kind} host") for kind in shared),
    )
    told = tmp_path / "mountinfo"
    told.write_text(
        "".join(f"36 35 98:0 / {place} {options} - {kind} rw\n" for place, options, kind in mounts), "utf-8"
    )
    monkeypatch.setattr(machine, "_MOUNTS", told)
    for path, kind in (
        ("/data/x.db", None), ("/srv/shared/x.db", None), ("/srv/share/deep/x.db", "nfs4"), ("/srv/share/local/x.db", None),
        ("/srv/share disk/x.db", "fuse.grpcfuse"), ("/twice/x.db", "virtiofs"), ("/ü/x.db", "9p"),
        ("/srv/../srv/share/x.db", "nfs4"), (f"{tmp_path}/link/x.db", "nfs4"), *((f"/{kind}/x.db", kind) for kind in shared),
    ):  # fmt: skip
        assert shared_file_system(Path(path)) == kind, path
    monkeypatch.setattr(machine, "_MOUNTS", tmp_path / "none")
    assert shared_file_system(Path("/srv/share/x.db")) is None


def test_this_machine_keeps_what_tests_write_to_itself(tmp_path: Path) -> None:
    assert shared_file_system(tmp_path) is None
