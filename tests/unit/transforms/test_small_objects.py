"""Small objects read together give each one's result, in bounded memory."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import IO

import pytest

from pipeline_assets.domain.errors import ObjectMovedError
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms import parse
from pipeline_assets.transforms.object_text import Share
from pipeline_assets.transforms.parse import ObjectWork
from tests.support.read_objects import a_share, read

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


def a_shelf(rng: random.Random, oddity: float) -> tuple[Shelf, list[Share]]:
    objects: dict[str, bytes] = {}
    places: list[Share] = []
    for number in range(rng.randrange(1, 40)):
        key = f"10001/{number}"
        lines = [rng.choice(LINES) if rng.random() < oddity else LINES[0] for _ in range(rng.randrange(0, 8))]
        body = gzip.compress(b"\n".join(lines) + rng.choice((b"", b"\n")))
        objects[key] = body[:-3] if rng.random() < oddity / 4 else body
        if rng.random() < oddity / 4:
            del objects[key]
        places.append(
            a_share(key, len(body), source=rng.choice((Source.REGULAR, Source.BACKFILL)), day=rng.choice(DAYS))
        )
    return Shelf(objects), places


def texts(shelf: Shelf, parts: Iterable[list[Share]], max_line_bytes: int) -> list[str]:
    work = ObjectWork(shelf, 1 << 20, max_line_bytes)
    return sorted(text for part in parts for text in read(work, part).as_text())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("oddity", [0.0, 0.02, 0.4])
def test_together_they_give_what_each_gives_alone(seed: int, oddity: float) -> None:
    shelf, places = a_shelf(random.Random(seed), oddity)
    max_line_bytes = 2000 if seed % 2 else 10_000
    assert texts(shelf, [places], max_line_bytes) == texts(shelf, [[place] for place in places], max_line_bytes)


def test_they_are_parsed_at_once_and_as_soon_as_they_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(b"\n".join([LINES[0]] * 10) + b"\n")
    keys = [f"10001/{number}" for number in range(50)]
    places = [a_share(key, len(body)) for key in keys]

    def rows_of_batches() -> list[int]:
        return read(ObjectWork(Shelf(dict.fromkeys(keys, body)), 1 << 20, 1 << 20), places).sizes

    assert rows_of_batches() == [500]
    monkeypatch.setattr(parse, "_MOST_LINES", 100)
    assert rows_of_batches() == [100] * 5
    monkeypatch.setattr(parse, "_MOST_LINES", 10_000)
    monkeypatch.setattr(parse, "_MOST_BYTES", 20 * len(LINES[0]))
    assert rows_of_batches() == [20] * 25
