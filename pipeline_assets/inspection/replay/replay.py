"""What a replay of a publication showed: the values and their wording.

Contains: the result with its causes, as text lines and as JSON.
Add here: another thing told of a replay.
Does not contain: finding it (recompute.py, shares.py), options and exit codes (cli/replay.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pipeline_assets.domain.input_state import InputDay
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import EMPTY, Digest
from pipeline_assets.inspection.diff.difference import Sample
from pipeline_assets.transforms.key_changes import CHANGED


class ReplayBasis(StrEnum):
    """What a publication is computed again from."""

    AS_PUBLISHED = "as published"
    """The inputs and settings on record."""
    CURRENT = "current"
    """The inputs and settings of today."""


class ReplayResult(StrEnum):
    """What came of it."""

    EQUAL = "equal"
    """The inputs are those on record, and so is the digest; or today's inputs give the digest on record."""
    DIFFERS = "differs"
    IMPOSSIBLE = "cannot be replayed"
    """Something that it was built from is not on record, or no longer kept; or today no load would build it."""


@dataclass(frozen=True)
class InputSlice:
    """A day of an upstream table that the publication was built from."""

    day: InputDay
    recorded: Digest
    """What it held then, by the publication's record."""
    pin: int | None = None
    """The snapshot that it was read from then."""
    read_from: int | None = None
    """The snapshot that holds its rows of then today; None where it was empty, or where none is kept that does."""
    measured: Digest | None = None
    """What its files hold, by its columns; None where no file of then is kept or can be read."""
    reason: str = ""
    """Why it could not be read."""
    is_lost: bool = False
    """Whether a kept snapshot names its files, and they cannot be read."""

    @property
    def is_as_recorded(self) -> bool:
        """Whether its rows of then are there."""
        return self.measured == self.recorded

    @property
    def is_gone(self) -> bool:
        """Whether nothing is there to compute from."""
        return self.measured is None

    def __str__(self) -> str:
        """Where it is, and whether it is what it was."""
        name = f"{self.day.table} {self.day.day}"
        rows = f"{self.recorded.rows:,} rows"
        if self.is_gone:
            return f"{name}: {rows}, {self.reason}"
        if not self.is_as_recorded:
            return f"{name}: {self.change}"
        if self.recorded == EMPTY:
            return f"{name}: no rows"
        if self.pin is None:
            return f"{name}: {rows}, the same in snapshot {self.read_from} (its own snapshot is not on record)"
        if self.read_from != self.pin:
            return f"{name}: {rows}, the same in snapshot {self.read_from} (not read from snapshot {self.pin})"
        return f"{name}: {rows}, from snapshot {self.pin}"

    @property
    def change(self) -> str:
        """What is wrong with its files."""
        assert self.measured is not None
        return f"the files of snapshot {self.read_from} {other_rows(self.recorded, self.measured)}"


def other_rows(recorded: Digest, measured: Digest) -> str:
    """How content differs from what is on record."""
    if measured.rows < recorded.rows:
        return f"lost rows: {measured.rows:,} of {recorded.rows:,} are left"
    if measured.rows > recorded.rows:
        return f"hold {measured.rows:,} rows, but {recorded.rows:,} are on record"
    return f"hold {measured.rows:,} rows as on record, but not the same ones"


@dataclass(frozen=True)
class Keys:
    """How many keys of a slice are in one state, the other, or both."""

    kept: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0

    @property
    def differing(self) -> int:
        """Those that are not the same in both."""
        return self.added + self.removed + self.changed

    def __str__(self) -> str:
        """`keys added 3, changed 1`."""
        parts = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return ", ".join(f"{name} {count:,}" for name, count in parts.items() if count) or "no key differs"


@dataclass(frozen=True)
class Share:
    """What one input makes of the difference."""

    cause: str
    keys: Keys
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measure -> by how much it changes; measures that stay are left out."""

    def __str__(self) -> str:
        """The cause with its keys and measures."""
        figures = "".join(f"; {name} {by:+,.12g}" for name, by in self.figures.items())
        return f"{self.cause}: keys {self.keys}{figures}" if self.keys.differing else f"{self.cause}: {self.keys}"


@dataclass(frozen=True)
class Replay:
    """One publication of one slice, computed again."""

    publication: PublicationRecord
    basis: ReplayBasis
    result: ReplayResult
    is_standing: bool
    """Whether it is the slice's last publication."""
    code: tuple[str | None, str]
    """Code version on record, and of this Tidemark."""
    replayed: Digest | None = None
    """What was computed; None where nothing could be."""
    inputs: tuple[InputSlice, ...] = ()
    differing: tuple[str, ...] = ()
    """Of today's inputs: each that differs from the one of then."""
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Name -> value of then and of today, where they differ."""
    causes: tuple[str, ...] = ()
    """Why it is not equal or cannot be replayed, the first one first."""
    hint: str = ""
    notes: tuple[str, ...] = ()
    figures: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Measure -> as published and as computed."""
    keys: Keys | None = None
    """Between the rows as published and as computed; None where one of them is not there."""
    shares: tuple[Share, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether it gave what is on record."""
        return self.result is ReplayResult.EQUAL


def lines_of(replay: Replay) -> Iterator[str]:
    """The replay as text, a line each."""
    record = replay.publication
    by = f" by run {record.run_id[:8]}" if record.run_id else ""
    standing = "" if replay.is_standing else ", not the last one of the day"
    yield f"{record.table} {record.key}: {replay.result.value} ({replay.basis.value})"
    yield f"  publication {record.number} of {record.published_at[:19]}{by} ({record.cause.text or 'no cause'}){standing}"
    yield f"  on record  {record.digest_after}"
    yield f"  computed   {replay.replayed if replay.replayed is not None else 'nothing'}"
    yield f"  code       {replay.code[0]}{'' if replay.code[0] == replay.code[1] else f', this one {replay.code[1]}'}"
    for one in replay.inputs:
        yield f"  input      {one}"
    for text in replay.differing:
        yield f"  differs    {text}"
    for name, (then, now) in replay.settings.items():
        yield f"  setting    {name}: {_shown(then)} then, {_shown(now)} today"
    for cause in replay.causes:
        yield f"  cause      {cause}"
    for note in replay.notes:
        yield f"  note       {note}"
    if replay.hint:
        yield f"  fix: {replay.hint}"
    yield from _comparison(replay)


def _comparison(replay: Replay) -> Iterator[str]:
    if replay.figures and not replay.is_equal:
        yield ""
        yield f"  {'':<24}{'published':>16}{'computed':>16}"
        for name, (before, after) in replay.figures.items():
            yield f"  {name:<24}{before:>16,.12g}{after:>16,.12g}"
    if replay.keys is not None and not replay.is_equal:
        yield f"  keys {replay.keys}; {replay.keys.kept:,} are equal"
    if replay.shares:
        yield ""
        yield "  what makes the difference"
        for share in replay.shares:
            yield f"    {share}"
    for sample in replay.samples:
        yield ""
        yield f"  {sample.change}: {sample.name}"
        # A key that is on one side alone has all its columns there, which say no more than its name.
        for column, (then, now) in sample.values.items() if sample.change == CHANGED else ():
            yield f"    {column}: {then} -> {now}"


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def replay_json(replay: Replay) -> dict[str, Any]:
    """For `--json`; snapshot ids are text, because they exceed what JSON readers hold exactly."""
    record = replay.publication
    return {
        "table": record.table,
        "day": record.key.event_date.isoformat(),
        "project": record.key.project_id,
        "basis": replay.basis.value,
        "result": replay.result.value,
        "publication": record.number,
        "is_standing": replay.is_standing,
        "run_id": record.run_id,
        "published_at": record.published_at,
        "digest_on_record": str(record.digest_after),
        "digest_computed": None if replay.replayed is None else str(replay.replayed),
        "code_on_record": replay.code[0],
        "code_of_today": replay.code[1],
        "inputs": [_input_json(one) for one in replay.inputs],
        "differing_inputs": list(replay.differing),
        "settings": {name: {"then": then, "today": now} for name, (then, now) in replay.settings.items()},
        "causes": list(replay.causes),
        "fix": replay.hint or None,
        "notes": list(replay.notes),
        "measures": {name: {"published": then, "computed": now} for name, (then, now) in replay.figures.items()},
        "keys": None if replay.keys is None else vars(replay.keys),
        "shares": [
            {"cause": share.cause, "keys": vars(share.keys), "measures": dict(share.figures)} for share in replay.shares
        ],
    }


def _input_json(one: InputSlice) -> dict[str, Any]:
    return {
        "table": one.day.table,
        "day": one.day.day.isoformat(),
        "digest_on_record": str(one.recorded),
        "digest_measured": None if one.measured is None else str(one.measured),
        "snapshot_on_record": None if one.pin is None else str(one.pin),
        "read_from_snapshot": None if one.read_from is None else str(one.read_from),
        "reason": one.reason or None,
    }
