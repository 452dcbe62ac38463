"""The local stack as a whole: its servers and their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from local_stack.dagster_servers import dagster_servers
from local_stack.folder import StackFolder
from local_stack.objects import objects
from local_stack.options import Options
from local_stack.postgres import postgres
from local_stack.spark import master, workers
from local_stack.supervisor import Stages
from pipeline_assets.domain.settings import PROJECT_ROOT

FOLDER = StackFolder(PROJECT_ROOT / "data" / "stack")


def stages_of(folder: StackFolder, options: Options, deployment: Mapping[str, str]) -> Stages:
    """Return all servers by stage; raises UsageError and EngineError for what is not installed."""
    secret, variables = folder.secrets()["spark"], dict(deployment)
    first = (postgres(folder, options), objects(folder, options), master(folder, options, secret))
    stages = (
        first,
        workers(folder, options, secret, variables),
        # Each Dagster process needs the one before it.
        *([one] for one in dagster_servers(folder, options, variables)),
    )
    return [[replace(server, choices=options.chosen) for server in stage] for stage in stages]
