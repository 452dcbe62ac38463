"""Many stories on one lake: each has its own project, and simultaneous loads are one load."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.load.runtime import Runtime
from tests.support.builders import PROJECT, LandingFolder, Loaded, Pipeline

FIRST_PROJECT = int(PROJECT)
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Past the deadlines of the stories' days, and inside the redelivery horizon, so withdrawn rows leave raw."""


@dataclass(frozen=True)
class Load:
    """A story yields this, and is sent its project's result."""

    first: date
    last: date
    source: Source
    tables: tuple[str, ...]
    now: datetime
    settings: tuple[tuple[str, Any], ...]
    decided: Mapping[str, Any]

    @property
    def shared(self) -> tuple[Any, ...]:
        """Equal values allow one common load; decisions about named places are merged."""
        whole = {name: value for name, value in self.decided.items() if not isinstance(value, dict)}
        place = self.first, self.last, self.source, self.tables, self.now
        return *place, repr(self.settings), repr(sorted(whole.items()))


Steps = Generator[Load, Loaded, None]


class Story(LandingFolder):
    def __init__(self, world: Pipeline, project: str, tables: Tables) -> None:
        self._world, self.project, self._tables = world, project, tables
        self.landing, self.grammar, self.ledger = world.landing, world.grammar, world.ledger
        self.now = world.now
        self._settings: dict[str, Any] = {}

    def deliver(self, day: date, events: Iterable[Mapping[str, Any] | bytes], **place: Any) -> str:
        own = [
            one if isinstance(one, bytes) or one["app"] != FIRST_PROJECT else {**one, "app": int(self.project)}
            for one in events
        ]
        return super().deliver(day, own, **{"project": self.project, **place})

    def mark(self, day: date, *, hours: Iterable[int] = range(24), project: str | None = None) -> None:
        super().mark(day, hours=hours, project=project or self.project)

    def change(self, **settings: Any) -> None:
        self._settings |= settings

    def load(
        self,
        first: date,
        last: date | None = None,
        *,
        source: Source = Source.REGULAR,
        tables: Iterable[str] = (),
        **decided: Any,
    ) -> Load:
        """A load of this project; `decided` as in `Pipeline.load`."""
        return Load(
            first, last or first, source, tuple(tables), self.now, tuple(sorted(self._settings.items())), decided
        )

    @property
    def runtime(self) -> Runtime:
        """The steps' runtime, of this project alone."""
        world = self._world.runtime
        return replace(
            world, settings=world.settings.model_copy(update={**self._settings, "projects": (self.project,)})
        )

    def rows(self, key: str) -> list[dict[str, Any]]:
        return self._tables.rows(key)[self.project]

    def count(self, key: str, day: date | None = None) -> int:
        return sum(day is None or row["event_date"] == day for row in self.rows(key))

    def files(self, key: str, day: date) -> frozenset[str]:
        return self._world.files(key, day, self.project)

    def record(self, key: str, day: date) -> SliceRecord:
        return self.ledger.slices(key, [self.project], [day])[Slice(day, self.project)]

    def verdict(self, key: str, day: date) -> str:
        return self.record(key, day).verdict.value

    def batch(self, day: date, source: Source = Source.REGULAR) -> BatchRecord:
        return self.ledger.batches([self.project], day, day)[BatchKey(source, self.project, day)]

    def delivery(self, key: str, day: date, source: Source = Source.REGULAR) -> DeliveryRecord:
        return self.ledger.deliveries(source, [self.project], day, day)[key]

    def digests(self) -> dict[str, dict[date, str]]:
        """Table -> day -> recorded digest, of days with rows."""
        return {
            table.key: {key.event_date: str(one.digest) for key, one in found.items() if one.digest.rows}
            for table in self._world.tables
            if (found := self.ledger.slices(table.key, [self.project]))
        }

    def publications(self, key: str | None = None) -> list[PublicationRecord]:
        return [one for one in self.ledger.publications(*([key] if key else [])) if one.key.project_id == self.project]

    def history(self) -> Counter[str]:
        """Table -> number of commits that changed it."""
        return Counter(table for table, _ in {(one.table, one.snapshot_id) for one in self.publications()})


class Tables:
    """A world's tables, read once between two loads."""

    def __init__(self, world: Pipeline) -> None:
        self._world = world
        self._read: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def rows(self, key: str) -> Mapping[str, list[dict[str, Any]]]:
        if key not in self._read:
            self._read[key] = found = defaultdict(list)
            for row in self._world.rows(key):
                found[row["project_id"]].append(row)
        return self._read[key]

    def forget(self) -> None:
        self._read.clear()


def tell(
    pipeline: Callable[..., Pipeline],
    subtests: Any,
    stories: Mapping[str, Callable[[Story], Steps]] | Iterable[Callable[[Story], Steps]],
    now: datetime = SOON,
    **settings: Any,
) -> None:
    """Run all stories to their end, and report each under its own name."""
    if not isinstance(stories, Mapping):
        told = [(str(one.__name__), one) for one in stories]
        stories = dict(told)
        assert len(stories) == len(told), "two stories have one name"
    named = stories
    projects = tuple(str(FIRST_PROJECT + number) for number in range(len(named)))
    world = pipeline(projects=projects, **settings)
    world.now = now
    tables = Tables(world)
    going = {}
    for (name, telling), project in zip(named.items(), projects, strict=True):
        story = Story(world, project, tables)
        going[name] = (story, telling(story))
    failed: dict[str, BaseException] = {}
    answers: dict[str, Loaded] = {}
    try:
        while going:
            asked: list[tuple[Story, Load]] = []
            for name, (story, steps) in [*going.items()]:
                try:
                    sent = story.project in answers
                    asked.append((story, steps.send(answers[story.project]) if sent else next(steps)))
                except StopIteration:
                    del going[name]
                except BaseException as error:
                    failed[name] = error
                    del going[name]
            answers = _carried_out(world, asked)
            tables.forget()
    finally:
        for name in named:
            with subtests.test(name):
                if name in failed:
                    raise failed[name]


def _carried_out(world: Pipeline, asked: Sequence[tuple[Story, Load]]) -> dict[str, Loaded]:
    """Project -> result; loads that differ in projects alone are one."""
    groups: defaultdict[tuple[Any, ...], list[tuple[Story, Load]]] = defaultdict(list)
    for story, load in asked:
        groups[load.shared].append((story, load))
    return {project: ran for group in groups.values() for project, ran in _loaded(world, group).items()}


def _loaded(world: Pipeline, group: Sequence[tuple[Story, Load]]) -> dict[str, Loaded]:
    first = group[0][1]
    decided: dict[str, Any] = {"projects": [story.project for story, _ in group]}
    for story, load in group:
        for name, value in load.decided.items():
            if isinstance(value, dict):
                decided.setdefault(name, {}).update(
                    {f"{key}/{story.project}" if name == "accept" else key: reason for key, reason in value.items()}
                )
            else:
                decided[name] = value
    kept, now = world.settings, world.now
    world.change(**dict(first.settings))
    world.now = first.now
    try:
        done = world.load(first.first, first.last, source=first.source, tables=first.tables, **decided)
    finally:
        world.settings, world.now = kept, now
    if done.error is not None and len(group) > 1:
        return {project: ran for one in group for project, ran in _loaded(world, [one]).items()}
    return {story.project: done.of(story.project) for story, _ in group}
