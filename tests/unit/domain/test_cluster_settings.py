"""Settings that a cluster cannot work with, or would show."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import Settings, require_cluster_settings

BUCKETS = {"landing_url": "s3://bucket/landing", "warehouse_url": "s3://bucket/warehouse"}
KEY = "spark.executorEnv.AWS_SECRET_ACCESS_KEY"
ROLE = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "TOKEN_DIR",
    "CREDENTIALS_PATH",
)
"""Where a worker finds the credentials of its role: nothing that opens anything."""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"landing_url": "/data/landing"},
            "landing_url: is a folder of this machine, while spark_master names a cluster.",
        ),
        ({"warehouse_url": "file:///data/lake"}, "warehouse_url: is a folder of this machine"),
        ({"warehouse_url": "/mnt/lake", "spark_shared_disk": True}, None),
        ({"spark_config": {KEY: "word"}}, f"spark_config: {KEY}: is a secret that the cluster's own pages show."),
        ({"spark_config": {"spark.executorEnv.TZ": "UTC", "spark.hadoop.fs.s3a.secret.key": "word"}}, None),
        *(({"spark_config": {f"spark.executorEnv.{name}": "/var/run/role"}}, None) for name in ROLE),
        *(
            (
                {"spark_config": {f"spark.executorEnv.{name}": "word"}},
                f"spark_config: spark.executorEnv.{name}: is a secret",
            )
            for name in ("AWS_SESSION_TOKEN", "TOKEN_FILE_CONTENT", "PASSFILE")
        ),
        ({"catalog_url": "sqlite:////data/catalog.db"}, None),
    ],
)
@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host:6443", "yarn"])
def test_what_only_works_on_one_machine_is_refused_for_a_cluster(
    master: str, changes: dict[str, Any], said: str | None
) -> None:
    """Scenario: a folder, a shared one, a secret for executors, a catalog that the driver alone opens; on each kind of cluster.
    Outcome: one sentence for what workers would not see, or everybody would; the secret is not in it. One machine takes all."""
    require_cluster_settings(Settings(**{**BUCKETS, **changes}, spark_master="local[2]"))
    settings = Settings(**{**BUCKETS, **changes}, spark_master=master)
    if said is None:
        require_cluster_settings(settings)
        return
    with pytest.raises(SettingsError) as refused:
        require_cluster_settings(settings)
    assert str(refused.value).startswith(said)
    assert "word" not in str(refused.value)
