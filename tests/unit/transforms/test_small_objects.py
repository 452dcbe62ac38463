"""Small objects that are read together give what each gives alone; and what is held of them is bounded.

Contains: random shelves of small objects, good and bad.
Add here: another oddity of a small object.
Does not contain: the meaning of a line (test_parse.py).
"""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import IO, Any

import pyarrow as pa
import pytest

from pipeline_assets.domain.errors import ObjectMovedError
from pipeline_assets.transforms import small_objects
from pipeline_assets.transforms.parse import ObjectWork

DAYS = (date(2026, 2, 2), date(2026, 2, 3))
LINES = (
    b'{"event_time":"2026-02-02 10:00:00.000001","app":10001,"event_type":"click","event_properties":{"a": 1}}',
    b'{"event_time":"2026-02-02 11:00:00.000001","app":10001,"unknown":"kept"}',
    b'{"event_time":"2026-02-02 11:00:00.000001","app":"10001"}',
    b'{"event_time":"2026-02-09 11:00:00.000001","app":10001}',
    b'{"event_time":"2026-02-02 11:00:00.000001","app":77}',
    b"{broken",
    b"",
    b"   \r",
    b'{"app":10001}',
    b'{"event_time":"2026-02-02 12:00:00.000001","app":10001,"event_type":"\xff"}',
    b'{"event_time":"2026-02-02 12:00:00.000001","app":10001,"city":"' + b"x" * 3000 + b'"}',
)


@dataclass(frozen=True)
class Shelf:
    objects: dict[str, bytes]

    def open(self, key: str, etag: str) -> IO[bytes]:
        if key not in self.objects:
            raise ObjectMovedError(key, "was overwritten", "Load again")
        return io.BytesIO(self.objects[key])


def a_shelf(rng: random.Random, oddity: float) -> tuple[Shelf, list[dict[str, Any]]]:
    objects: dict[str, bytes] = {}
    places = []
    for number in range(rng.randrange(1, 40)):
        key = f"10001/{number}"
        lines = [rng.choice(LINES) if rng.random() < oddity else LINES[0] for _ in range(rng.randrange(0, 8))]
        body = gzip.compress(b"\n".join(lines) + rng.choice((b"", b"\n")))
        objects[key] = body[:-3] if rng.random() < oddity / 4 else body
        if rng.random() < oddity / 4:
            del objects[key]
        places.append(
            {
                "source": rng.choice(("regular", "backfill")),
                "project_id": "10001",
                "arrival_date": rng.choice(DAYS),
                "object_key": key,
                "object_etag": f"e{number}",
                "size_bytes": len(body),
                "known_sha256": None,
                "part": 0,
                "parts": 1,
            }
        )
    return Shelf(objects), places


def read(shelf: Shelf, parts: Iterable[list[dict[str, Any]]], max_line_bytes: int) -> list[str]:
    work = ObjectWork(shelf, 1 << 20, max_line_bytes)
    batches = [pa.RecordBatch.from_pylist(part) for part in parts]
    return sorted(repr(row) for batch in work(batches) for row in batch.to_pylist())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("oddity", [0.0, 0.02, 0.4])
def test_together_they_give_what_each_gives_alone(seed: int, oddity: float) -> None:
    shelf, places = a_shelf(random.Random(seed), oddity)
    max_line_bytes = 2000 if seed % 2 else 10_000
    assert read(shelf, [places], max_line_bytes) == read(shelf, [[place] for place in places], max_line_bytes)


def test_they_are_parsed_at_once_and_as_soon_as_they_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(b"\n".join([LINES[0]] * 10) + b"\n")
    keys = [f"10001/{number}" for number in range(50)]
    places = [
        {
            "source": "regular",
            "project_id": "10001",
            "arrival_date": DAYS[0],
            "object_key": key,
            "object_etag": "e",
            "size_bytes": len(body),
            "known_sha256": None,
            "part": 0,
            "parts": 1,
        }
        for key in keys
    ]

    def rows_of_batches() -> list[int]:
        batches = ObjectWork(Shelf(dict.fromkeys(keys, body)), 1 << 20, 1 << 20)([pa.RecordBatch.from_pylist(places)])
        return [batch.num_rows for batch in batches if batch["_kind"][0].as_py() == "row"]

    assert rows_of_batches() == [500]
    monkeypatch.setattr(small_objects, "_MOST_LINES", 100)
    assert rows_of_batches() == [100] * 5
    monkeypatch.setattr(small_objects, "_MOST_LINES", 10_000)
    monkeypatch.setattr(small_objects, "_MOST_BYTES", 20 * len(LINES[0]))
    assert rows_of_batches() == [20] * 25
