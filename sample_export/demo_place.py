"""Where the demo plays, and that it plays nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from pipeline_assets.config import CONFIG_VARIABLE, load_settings
from resources.spark.jars import jars_folder

OF_A_DEPLOYMENT = ("TIDEMARK_", "DAGSTER_", "AWS_", "PG")
"""Beginnings of variables that say which deployment a command works on."""
SETTINGS = Path(__file__).with_name("demo.toml")
"""What no variable says."""


@dataclass(frozen=True)
class Deployment:
    """Where the story plays."""

    folder: Path
    """Holds the export below `landing`, as it was written, and `dagster_home` unless the variables name another one."""
    variables: Mapping[str, str]
    """All that says which deployment it is."""
    catalog: Callable[[], Catalog]
    ledger_url: str
    deliver: Callable[[], None] = lambda: None
    """Bring what was written to where loads look for it."""

    @property
    def landing(self) -> Path:
        """Where exports are written."""
        return self.folder / "landing"

    def environment(self) -> dict[str, str]:
        """Of a command that works on this deployment, whatever other one the caller's own variables name."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_DEPLOYMENT)}
        return {**kept, "DAGSTER_HOME": str(self.folder / "dagster_home"), **self.variables}


def embedded(folder: Path) -> Deployment:
    """Everything below one folder, as settings have it where nobody says otherwise; raises SettingsError for wrong ones."""
    database = f"sqlite:///{folder}/catalog.db"
    variables = {
        CONFIG_VARIABLE: str(SETTINGS),
        "TIDEMARK_LANDING_URL": str(folder / "landing"),
        "TIDEMARK_WAREHOUSE_URL": str(folder / "warehouse"),
        "TIDEMARK_CATALOG_URL": database,
        "TIDEMARK_LEDGER_URL": database,
        "TIDEMARK_CATALOG_NAME": "lake",
        "TIDEMARK_HEALTH_REPORT": str(folder / "health_report.html"),
        **of_this_machine(),
    }
    where = {"uri": database, "warehouse": f"file://{folder}/warehouse"}
    return Deployment(folder, variables, lambda: SqlCatalog("lake", **where), database)


def of_this_machine() -> dict[str, str]:
    """Where the jars lie: all that is taken from a person's own settings. Raises SettingsError for wrong ones."""
    return {"TIDEMARK_JARS_DIR": str(jars_folder(load_settings()))}
