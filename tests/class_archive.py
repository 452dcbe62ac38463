"""An archive of the classes that a small load needs, so that a JVM of the tests maps them instead of loading and verifying them:
the first load of a process takes a quarter less. `make test` makes it; without it everything runs the same.

Lives here: where it lies, making it. Put here: what else a JVM may find prepared. Keep out: Spark's configuration
(small_spark.py).
"""

from __future__ import annotations

import sys
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from resources.jars import DEFAULT_JARS_DIR

ARCHIVE = DEFAULT_JARS_DIR / "tests.jsa"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive of another JVM or of other jars is passed over, and nothing is said of it."""
_LONGEST_SECONDS = 180


def make() -> None:
    """Load a day in a process whose JVM keeps its classes when it ends; raises RuntimeError when it does not."""
    from tests.builders import a_body, events_on
    from tests.scenarios.test_shell import Shell
    from tests.small_spark import small_config

    being_made = ARCHIVE.with_suffix(".making")
    being_made.unlink(missing_ok=True)
    day = date(2026, 2, 2)
    with TemporaryDirectory() as folder:
        shell = Shell(Path(folder), small_config(f"-XX:ArchiveClassesAtExit={being_made} {QUIET}"))
        shell.deliver(day, a_body(events_on(day, 12)))
        loaded = shell("load", "--source", "regular", "--from", str(day), "--to", str(day))
        if loaded.returncode:
            raise RuntimeError(f"the load failed:\n{loaded.stdout}{loaded.stderr}")
        # The JVM outlives the command, and writes the archive when it ends.
        deadline = time.monotonic() + _LONGEST_SECONDS
        while _is_a_jvm_at(being_made):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the JVM did not end within {_LONGEST_SECONDS} s")
            time.sleep(0.5)
    being_made.replace(ARCHIVE)


def _is_a_jvm_at(path: Path) -> bool:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(path).encode() in (entry / "cmdline").read_bytes():
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


if __name__ == "__main__":
    make()
    sys.stdout.write(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size >> 20} MB of classes\n")
