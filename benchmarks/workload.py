"""The files to load: generated once, kept, and given to every contender."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from pipeline_assets.domain.settings import PROJECT_ROOT
from sample_export.objects import write_export
from sample_export.spec import ExportSpec

KEPT = PROJECT_ROOT / ".bench"
"""Folder of generated files and of the contenders' output."""
PROJECT = "10001"
FIRST_DAY = date(2026, 1, 5)
_EVENTS_OF_A_PART = 1_000_000
_SHARDS_OF_A_PART = 10_000


@dataclass(frozen=True)
class Stage:
    """One delivery, and the event days that its load requests."""

    name: str
    objects: tuple[Path, ...]
    """Files of the kept export."""
    days: tuple[date, ...]


def five_days_and_one(events_per_day: int) -> tuple[Stage, ...]:
    """Return the stages: W1 five days, W2 the next day with 3 % late events, W3 the bytes of W2 again."""
    spec = ExportSpec(
        seed=11,
        projects=(PROJECT,),
        first_day=FIRST_DAY,
        days=6,
        events_per_day=events_per_day,
        people=50_000,
        late_share=0.03,
        tail_share=0.0,
    )
    first, last = spec.arrival_days[:-1], spec.arrival_days[-1:]
    return (
        Stage("W1", export(replace(spec, days=5)), first),
        Stage("W2", export(replace(spec, first_day=last[0], days=1)), last),
        Stage("W3", export(replace(spec, first_day=last[0], days=1)), last),
    )


def one_day(name: str, **changes: Any) -> Stage:
    """Return one arrival day of an export with these parameters, written in parts that fit into memory."""
    usual = ExportSpec(seed=11, projects=(PROJECT,), first_day=FIRST_DAY, days=1, tail_share=0.0)
    spec = replace(usual, **changes)
    parts = -(-spec.events_per_day // _EVENTS_OF_A_PART)
    objects: list[Path] = []
    for part in range(parts):
        of_part = replace(spec, seed=spec.seed + part, events_per_day=spec.events_per_day // parts)
        objects += [_as_shard_of(path, part * _SHARDS_OF_A_PART) for path in export(of_part)]
    return Stage(name, tuple(objects), spec.arrival_days)


def late_events(days: int, events_per_day: int, *, is_correction_beside: bool = False) -> tuple[Stage, ...]:
    """Return the stages: so many days (none for an empty lake), then five times ten events that come two days late.

    They are of one day and replace nothing; a correction of an event of the first day stands beside them on request.
    """
    usual = ExportSpec(seed=11, projects=(PROJECT,), first_day=FIRST_DAY, days=10, late_share=0.0, tail_share=0.0)
    spec, (of_day, _, last) = replace(usual, events_per_day=events_per_day), usual.arrival_days[-3:]
    whole = Stage("days", export(replace(spec, days=days)), spec.arrival_days[:days])
    ten = replace(
        usual, first_day=of_day, days=1, events_per_day=10, hours=(10,), shards=1,
        delivery_duplicate_share=0.0, send_duplicate_share=0.0, correction_share=0.0,
    )  # fmt: skip
    stages = [whole] if days else []
    for number in range(1, 6):
        (path,) = export(replace(ten, seed=100 + number))
        if is_correction_beside:
            path = _with_a_correction(path, whole.objects[number], last)
        named = _linked(_as_shard_of(path, number * _SHARDS_OF_A_PART), str(of_day), str(last))
        stages.append(Stage(f"late {number}", (named,), (last,)))
    return tuple(stages)


def _with_a_correction(path: Path, delivered: Path, day: date) -> Path:
    """The same events and one of `delivered` with other properties, received on `day`; its folder is no export's."""
    with gzip.open(delivered) as lines:
        event = json.loads(next(iter(lines)))
    event["event_properties"] = {"corrected": True}
    event |= dict.fromkeys(("server_upload_time", "processed_time"), f"{day} 10:59:00.000000")
    named = KEPT / "corrections" / path.parent.parent.name / path.parent.name / path.name
    named.parent.mkdir(parents=True, exist_ok=True)
    named.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + json.dumps(event).encode() + b"\n", mtime=0))
    return named


def _as_shard_of(path: Path, first: int) -> Path:
    """The same file, renamed to another shard of its hour."""
    if not first:
        return path
    stem, _, shard = path.name.partition("#")
    number, _, rest = shard.partition(".")
    return _linked(path, f"{stem}#{shard}", f"{stem}#{int(number) + first}.{rest}")


def _linked(path: Path, old: str, new: str) -> Path:
    """The same file under another name."""
    named = path.with_name(path.name.replace(old, new))
    if not named.exists():
        os.link(path, named)
    return named


def export(spec: ExportSpec) -> tuple[Path, ...]:
    """Return the objects of an export, without markers; days are written in parallel and only once per machine."""
    days = [replace(spec, first_day=day, days=1, has_markers=False) for day in spec.arrival_days]
    with ProcessPoolExecutor() as pool:
        return tuple(path for paths in pool.map(_one_day, days) for path in paths)


def _one_day(spec: ExportSpec) -> list[Path]:
    folder = KEPT / "exports" / hashlib.sha256(repr(spec).encode()).hexdigest()[:16]
    if not folder.is_dir():
        work = folder.with_suffix(f".{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        write_export(spec, work)
        work.rename(folder)
    return sorted(
        path
        for path in folder.rglob("*.json.gz")
        if int(path.name.partition("#")[2].partition(".")[0]) < _SHARDS_OF_A_PART
    )


def deliver(objects: Sequence[Path], landing: Path) -> list[Path]:
    """Copy objects into a landing folder as a new delivery: new files are new versions of the objects."""
    placed = []
    for source in objects:
        target = landing / source.parent.name / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        shutil.copyfile(source, part)
        part.replace(target)
        placed.append(target)
    return placed


def record_of(stage: Stage) -> dict[str, Any]:
    """Return a stage as JSON-compatible values."""
    return {
        "name": stage.name,
        "objects": [str(path) for path in stage.objects],
        "days": [day.isoformat() for day in stage.days],
    }


def stage_of(record: dict[str, Any]) -> Stage:
    """Parse the result of `record_of`."""
    days = tuple(date.fromisoformat(day) for day in record["days"])
    return Stage(record["name"], tuple(map(Path, record["objects"])), days)
