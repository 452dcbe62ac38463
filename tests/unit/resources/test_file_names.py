"""Which files below a table may be removed: those of which name and place tell that Tidemark or Iceberg wrote them."""

from __future__ import annotations

import pytest

from resources.iceberg.upkeep import is_written

TABLE = "0d1e6a4e-24c8-4a6a-8d62-3f1b5c7a9e10"
OTHER = "8d2895f4-4e8f-480c-9f36-908f9b5a8b7b"
DAY = "data/event_date=2026-02-02/project_id=10001"


@pytest.mark.parametrize(
    "name",
    [
        f"{DAY}/{TABLE}-1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001.parquet",
        f"{DAY}/00012-3-{OTHER}-00002.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001-deletes.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001-deletes.puffin",
        f"data/valid_from=2026-02-01/project_id=all/00000-118-{OTHER}-0-00001.parquet",
        f"metadata/{OTHER}-m0.avro",
        f"metadata/optimized-m-{OTHER}.avro",
        f"metadata/snap-5714608875437899243-1-{OTHER}.avro",
        f"metadata/00004-{OTHER}.metadata.json",
        f"metadata/00004-{OTHER}.gz.metadata.json",
        f"metadata/5714608875437899243-{OTHER}.stats",
        f"metadata/partition-stats-5714608875437899243-{OTHER}.parquet",
    ],
)
def test_a_name_of_ours_or_icebergs_in_its_place_may_go(name: str) -> None:
    assert is_written(name, TABLE)
    assert not is_written(f"copy/{name}", TABLE)
    assert not is_written(f"{name}.bak", TABLE)


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "figures.csv",
        "data/customers.parquet",
        f"{DAY}/1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet",
        f"{DAY}/{OTHER}-1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet",
        f"{DAY}/part-00000-{OTHER}-c000.snappy.parquet",
        f"{DAY}/20260202_101010_00007_abcde-{OTHER}.parquet",
        f"data/00000-118-{OTHER}-0-00001.parquet",
        f"data/event_date=2026-02-02/00000-118-{OTHER}-0-00001.parquet",
        f"{DAY}/more/00000-118-{OTHER}-0-00001.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001.csv",
        f"metadata/more/{OTHER}-m0.avro",
        "metadata/v3.metadata.json",
        "metadata/00001-mine.metadata.json",
        f"metadata/{OTHER}.avro",
        "",
    ],
)
def test_every_other_name_stays(name: str) -> None:
    assert not is_written(name, TABLE)
