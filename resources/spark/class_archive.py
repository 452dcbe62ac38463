"""An archive of the classes that a load needs: a JVM maps it instead of loading each class, and starts a third faster."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from resources.spark.jars import default_jars_dir

_NAME = "classes.jsa"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM silently ignores an archive of another JVM or of other jars."""
_LONGEST_SECONDS = 180
_DAY = date(2026, 2, 2)


def jvm_options(jars_dir: Path) -> str:
    """Return the JVM options that use the archive beside the jars; empty where there is none that only its owner may change.

    The JVM runs what is in the archive, and no sum of it can be pinned, because each machine makes its own.
    """
    archive = jars_dir / _NAME
    is_safe = archive.is_file() and _is_ours(archive) and _is_ours(jars_dir)
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if is_safe else ""


def _is_ours(path: Path) -> bool:
    """Whether only this user, its own group and root may write there."""
    found = path.stat()
    others = 0o002 if found.st_gid == os.getegid() else 0o022
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & others


def make(jars_dir: Path) -> Path:
    """Load a day in a process whose JVM writes the archive on exit; returns its path; raises RuntimeError on failure."""
    archive = jars_dir / _NAME
    being_made = archive.with_suffix(".making")
    for former in (archive, being_made):
        former.unlink(missing_ok=True)
    with TemporaryDirectory() as folder:
        _deliver(Path(folder, "landing", "10001"))
        Path(folder, "home").mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")} | {
            "TIDEMARK_LANDING_URL": f"{folder}/landing",
            "TIDEMARK_WAREHOUSE_URL": f"{folder}/warehouse",
            "TIDEMARK_CATALOG_URL": f"sqlite:///{folder}/catalog.db",
            "TIDEMARK_PROJECTS": "10001",
            "TIDEMARK_CALENDAR_START": str(_DAY),
            "DAGSTER_HOME": f"{folder}/home",
            "TIDEMARK_JARS_DIR": str(jars_dir),
            "TIDEMARK_SPARK_CONFIG": json.dumps(
                {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={being_made} {_QUIET}"}
            ),
        }
        words = f"-P -m pipeline_assets.cli load --source regular --from {_DAY} --to {_DAY}"
        command = [sys.executable, *words.split()]
        loaded = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if loaded.returncode:
            raise RuntimeError(f"the load failed:\n{loaded.stdout}{loaded.stderr}")
        # The JVM outlives the command and writes the archive when it exits.
        deadline = time.monotonic() + _LONGEST_SECONDS
        while _is_a_jvm_at(being_made):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the JVM did not end within {_LONGEST_SECONDS} s")
            time.sleep(0.2)
    being_made.replace(archive)
    return archive


def _deliver(folder: Path) -> None:
    """Write one day as one object, with the event fields that a load reads."""
    folder.mkdir(parents=True)
    lines = [
        {
            "event_time": f"{_DAY} 10:00:0{at % 10}.000000",
            "server_upload_time": f"{_DAY} 10:01:00.000000",
            "uuid": f"u{at}",
            "$insert_id": f"i{at % 10}",
            "device_id": "d",
            "amplitude_id": at,
            "event_type": "play",
            "event_properties": {"revenue": 1.5, "currency": "EUR"} if at % 2 else {},
        }
        for at in range(12)
    ]
    body = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / f"10001_{_DAY}_10#1.json.gz").write_bytes(gzip.compress(body.encode()))


def _is_a_jvm_at(path: Path) -> bool:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(path).encode() in (entry / "cmdline").read_bytes():
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


def main() -> int:
    """Create the archive beside the jars of the default folder; returns the exit code."""
    try:
        archive = make(default_jars_dir())
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"no class archive was made, so each JVM starts a third slower: {error}\n")
        return 1
    sys.stdout.write(f"{archive.name}: {archive.stat().st_size >> 20} MB of classes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
