"""Where the shell command writes: the terminal, the log beside it, and the Dagster home of its runs.

Lives here: standard output and error, and what is kept out of them. Put here: how a command speaks to a terminal. Keep out: what
it says (cli_tables.py, cli_explain.py).
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import PROJECT_ROOT

LOG_NAME = "tidemark-load.log"


def page() -> Console:
    """Standard output; a pipe gets the width that tables need."""
    return Console(width=None if sys.stdout.isatty() else 200, soft_wrap=sys.stdout.isatty())


def dagster_home() -> Path:
    """DAGSTER_HOME; without one, the folder that `make dev` uses, so that the UI shows these runs."""
    if not os.environ.get("DAGSTER_HOME"):
        home = Path.cwd() / "data" / "dagster_home"
        home.mkdir(parents=True, exist_ok=True)
        os.environ["DAGSTER_HOME"] = str(home)
    home = Path(os.environ["DAGSTER_HOME"])
    if not home.is_dir():
        raise UsageError("DAGSTER_HOME", f"there is no folder {home}", "Create it, or unset the variable")
    if not (home / "dagster.yaml").exists() and (PROJECT_ROOT / "dagster.yaml").exists():
        shutil.copy(PROJECT_ROOT / "dagster.yaml", home / "dagster.yaml")
    return home


@contextmanager
def terminal(*, verbose: bool) -> Iterator[Console]:
    """A console on standard error; Spark's and Dagster's own lines go to a log file unless --verbose."""
    if verbose:
        yield Console(stderr=True, soft_wrap=True)
        return
    warnings.simplefilter("ignore")
    home = dagster_home()
    sys.stderr.flush()
    kept = os.dup(2)
    with (home / LOG_NAME).open("a", encoding="utf-8") as log, os.fdopen(kept, "w", encoding="utf-8") as terminal:
        # The JVM inherits the descriptor, so it has to be the descriptor that is moved.
        os.dup2(log.fileno(), 2)
        try:
            yield Console(file=terminal, soft_wrap=True)
        finally:
            sys.stderr.flush()
            terminal.flush()
            os.dup2(kept, 2)
