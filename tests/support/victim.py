"""A load of a test's pipeline in a process of its own, that is paused and killed where the test wants it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from pipeline_assets.domain.slices import Source
from pipeline_assets.drill.sandbox import Victim, as_environment
from pipeline_assets.drill.sandbox import a_victim as paused
from tests.support.small_spark import SMALL


def home_below(folder: Path) -> Path:
    """Dagster's home of the processes that work on the pipeline in this folder."""
    return folder / "dagster_home"


@contextmanager
def a_victim(
    pipeline: Any, first: date, last: date, point: str, *, source: Source = Source.REGULAR, **settings: Any
) -> Iterator[Victim]:
    """`tidemark load` on a pipeline's own tables, with a `home_below` its folder; it will pause at `point`."""
    folder = pipeline.landing.parent
    home = home_below(folder)
    home.mkdir(exist_ok=True)
    small = {"spark_master": "local[2]", "spark_driver_memory": "1g", "spark_config": SMALL}
    known = pipeline.settings.model_copy(update={**small, **settings})
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    environment = {**inherited, **as_environment(known), "DAGSTER_HOME": str(home)}
    command = [str(Path(sys.executable).parent / "tidemark"), "load", "--source", source.value]
    with paused([*command, "--from", str(first), "--to", str(last), "--verbose"], environment, point, folder) as victim:
        yield victim
