"""What is told of the machine without asking Spark."""

from __future__ import annotations

import pytest

from pipeline_assets.domain.machine import cores, engine_cores


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("local", 1), ("local[4]", 4), ("local[ 4, 3]", 4), ("local[*]", cores()), ("local[*,3]", cores()),
        ("local[0]", cores()), ("spark://host:7077", cores()),
    ],
)  # fmt: skip
def test_the_cores_of_the_engine_are_those_that_its_master_names(master: str, told: int) -> None:
    assert engine_cores(master) == told
