"""Tasks: one plain function over groups of items, run by Spark, or in this process for small steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pipeline_assets.domain import machine
from pipeline_assets.domain.errors import TidemarkError, error_in
from pipeline_assets.domain.skew import balanced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline_assets.domain.settings import Settings

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")

_GROUPS_PER_CORE = 2
_LEAST_TASK_BYTES = 1024**2
"""A step that reads fewer bytes per task gets fewer tasks: starting one takes as long."""


@dataclass(frozen=True)
class Tasks:
    """Runs a load's steps: a function from a group of items to a result, pickled for workers and the same wherever it runs."""

    session: Callable[[], SparkSession]
    settings: Settings
    new_bytes: machine.NewBytes

    @property
    def parallelism(self) -> int:
        """Number of tasks that Spark runs at a time."""
        return int(self.session().sparkContext.defaultParallelism)

    @property
    def most_groups(self) -> int:
        """Number of groups per step: several per core, so that a core that ends early takes another."""
        return self.parallelism * _GROUPS_PER_CORE

    def groups(self, items: Sequence[Item], weights: Sequence[float]) -> list[list[Item]]:
        """Return the items in at most `most_groups` groups of about the same weight; a group keeps their order."""
        most = self.most_groups
        groups: list[list[Item]] = [[] for _ in range(max(1, min(len(items), most)))]
        for item, group in zip(items, balanced(weights, most), strict=True):
            groups[group].append(item)
        return [group for group in groups if group]

    def are_here(self, read_bytes: int) -> bool:
        """Whether a step that reads so many bytes of columns of existing files runs in this process."""
        most = self.settings.local_bytes if machine.is_on_this_machine(self.settings.spark_master) else 0
        return most > 0 and self.new_bytes.count <= most and read_bytes <= machine.MOST_READ_BYTES

    def run(
        self, function: Callable[[Sequence[Item]], Result], groups: Sequence[Sequence[Item]], *, read_bytes: int
    ) -> list[Result]:
        """Return each group's result, in order; raises a task's TidemarkError; `read_bytes`: of existing files' columns."""
        if not groups:
            return []
        if sum(map(len, groups)) <= machine.MOST_ITEMS and self.are_here(read_bytes):
            try:
                with machine.here():
                    return [function(group) for group in groups]
            except machine.TooLargeHereError:
                # The function discarded its own files; those of earlier groups stay unnamed, as after any failure.
                pass
        with naming_what_workers_met():
            cost = read_bytes + self.new_bytes.count + sum(map(len, groups)) * machine.FILE_COST_BYTES
            tasks = min(len(groups), 1 + cost // _LEAST_TASK_BYTES)
            placed = self.session().sparkContext.parallelize(list(groups), tasks)
            return list(placed.map(lambda group: _told(partial(function, group))).collect())

    def exchange(
        self,
        function: Callable[[Sequence[Item]], Iterable[tuple[Key, Value]]],
        groups: Sequence[Sequence[Item]],
        collect: Callable[[Key, Iterable[Value]], Result],
        parts: int,
    ) -> list[Result]:
        """Return the result of `collect` per key, over tasks' values; always through Spark, which spills rows to disk."""
        if not groups:
            return []
        with naming_what_workers_met():
            placed = self.session().sparkContext.parallelize(list(groups), len(groups))
            shuffled = placed.flatMap(each_told(function)).groupByKey(parts)
            return list(shuffled.map(lambda pair: _told(partial(collect, *pair))).collect())


@contextmanager
def _errors_as_text() -> Iterator[None]:
    """A worker's exception arrives at the driver as text alone."""
    try:
        yield
    except TidemarkError as error:
        raise RuntimeError(error.as_line()) from error


def _told(function: Callable[[], Result]) -> Result:
    with _errors_as_text():
        return function()


def each_told(function: Callable[[Item], Iterable[Value]]) -> Callable[[Item], Iterator[Value]]:
    """Return the function as workers run it, also for `mapInArrow`: it yields values lazily and reports our errors as text."""

    def each(given: Item) -> Iterator[Value]:
        with _errors_as_text():
            yield from function(given)

    return each


@contextmanager
def naming_what_workers_met() -> Iterator[None]:
    """Raise our error that a worker reported as the text of a foreign exception."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - Dagster's processes that start no Spark import none
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if (met := error_in(str(error))) is None:
            raise
        raise met from error
