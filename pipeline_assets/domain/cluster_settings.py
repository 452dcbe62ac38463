"""Settings that only work where Spark's workers are processes of this machine: refused for a cluster."""

from __future__ import annotations

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.machine import is_on_this_machine
from pipeline_assets.domain.masking import is_secret_name
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.settings import Settings

_OF_EXECUTORS = "spark.executorEnv."


def require_cluster_settings(settings: Settings) -> None:
    """Raise SettingsError for places that a cluster's workers cannot see, and for secrets that its pages would show."""
    if is_on_this_machine(settings.spark_master):
        return
    for name in ("landing_url", "warehouse_url"):
        if local_path(getattr(settings, name)) is not None and not settings.spark_shared_disk:
            raise SettingsError(
                name,
                "is a folder of this machine, while spark_master names a cluster",
                "Write s3://bucket[/prefix]; where each worker has that folder under the same path, set spark_shared_disk = true",
            )
    for name in settings.spark_config:
        if name.startswith(_OF_EXECUTORS) and is_secret_name(name):
            # A standalone worker's page shows the environment of its executors, and Kubernetes that of its pods.
            raise SettingsError(
                f"spark_config: {name}",
                "is a secret that the cluster's own pages show",
                "Give workers a role, or the variable in their own environment: docs/clusters.md",
            )
