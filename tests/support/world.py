"""Many stories on one lake: each has its own project, and simultaneous loads are one load."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

from pipeline_assets.domain.records import DeliveryRecord, PublicationRecord
from pipeline_assets.domain.slices import Source
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
    must_succeed: bool = False

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

    def must_load(self, *days: date, **how: Any) -> Load:
        return replace(self.load(*days, **how), must_succeed=True)

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


def stories_in(names: Mapping[str, Any]) -> list[Callable[[Story], Steps]]:
    """A module's functions of a story alone, but private ones."""
    told = {"p": "Story", "return": "Steps"}
    return [one for name, one in names.items() if name[0] != "_" and getattr(one, "__annotations__", None) == told]


def tell(
    pipeline: Callable[..., Pipeline],
    subtests: Any,
    stories: Mapping[str, Callable[[Story], Steps]] | Iterable[Callable[[Story], Steps]],
    now: datetime = SOON,
    **settings: Any,
) -> None:
    """Run all stories to their end, and report each under its own name.

    The load that most stories wait for is made next, for all of these; the others wait on.
    """
    if not isinstance(stories, Mapping):
        listed = [(str(one.__name__), one) for one in stories]
        stories = dict(listed)
        assert len(stories) == len(listed), "two stories have one name"
    named = stories
    projects = tuple(str(FIRST_PROJECT + number) for number in range(len(named)))
    world = pipeline(projects=projects, **settings)
    world.now = now
    tables = Tables(world)
    told = {name: Story(world, project, tables) for name, project in zip(named, projects, strict=True)}
    steps = {name: named[name](told[name]) for name in named}
    asked: dict[str, Load] = {}
    failed: dict[str, BaseException] = {}

    def go_on(name: str, done: Loaded | None) -> None:
        load = asked.pop(name, None)
        try:
            if done is None or load is None:
                asked[name] = next(steps[name])
            elif load.must_succeed and not done.success:
                asked[name] = steps[name].throw(AssertionError(done.failure()))
            else:
                asked[name] = steps[name].send(done)
        except StopIteration:
            pass
        except BaseException as error:
            failed[name] = error

    try:
        for name in named:
            go_on(name, None)
        while asked:
            ((most, _),) = Counter(load.shared for load in asked.values()).most_common(1)
            group = {name: load for name, load in asked.items() if load.shared == most}
            done = _loaded(world, [(told[name], load) for name, load in group.items()])
            tables.forget()
            for name in group:
                go_on(name, done[told[name].project])
    finally:
        for name in named:
            with subtests.test(name):
                if name in failed:
                    raise failed[name]


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
