"""A step gives equal results and errors wherever it runs, and runs here only where allowed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark import TaskContext, cloudpickle

from pipeline_assets.domain.errors import DiskFullError, LakehouseError, ObjectMovedError, ReadTwiceError, TidemarkError
from pipeline_assets.domain.machine import (
    MOST_READ_BYTES,
    MOST_TEXT_BYTES,
    NewBytes,
    TooLargeHereError,
    here,
    most_text_bytes,
    require_room,
)
from pipeline_assets.domain.settings import Settings
from resources.spark.tasks import Tasks

pytestmark = pytest.mark.slow
LOCAL_BYTES = 1000

# Spark's workers do not have this module on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def some_tasks(spark: Any, new_bytes: int = LOCAL_BYTES, **settings: Any) -> Tasks:
    places = {"landing_url": "/a", "warehouse_url": "/b", "spark_master": "local[2]", "local_bytes": LOCAL_BYTES}
    return Tasks(lambda: spark, Settings(**{**places, **settings}), NewBytes(new_bytes))


def both(spark: Any) -> tuple[Tasks, Tasks]:
    return some_tasks(spark), some_tasks(spark, local_bytes=0)


def process_of(group: Sequence[Any]) -> tuple[int, list[Any]]:
    return os.getpid(), list(group)


def is_here(tasks: Tasks, groups: Sequence[Sequence[Any]], read_bytes: int = 0) -> bool:
    """Whether the groups ran in this process; asserts their results in order."""
    found = tasks.run(process_of, groups, read_bytes=read_bytes)
    assert [given for _, given in found] == [list(group) for group in groups]
    (is_here,) = {pid == os.getpid() for pid, _ in found}
    return is_here


def test_a_step_runs_here_where_there_is_little_to_do(spark: Any) -> None:
    groups = [["a", "b"], [], ["c"]]
    assert is_here(some_tasks(spark), groups, MOST_READ_BYTES)
    assert not is_here(some_tasks(spark), groups, MOST_READ_BYTES + 1)
    assert not is_here(some_tasks(spark, LOCAL_BYTES + 1), groups)
    assert not is_here(some_tasks(spark, 0, local_bytes=0), groups)
    assert not some_tasks(spark, 0, spark_master="spark://host:7077").are_here(0)
    assert not some_tasks(spark, 0, spark_master="k8s://https://host").are_here(0)


@pytest.mark.parametrize("count", [1, 3])
def test_many_files_are_opened_side_by_side(spark: Any, count: int) -> None:
    """In any number of groups."""
    tasks = some_tasks(spark, 0)
    most, more = ([list(range(items))[at::count] for at in range(count)] for items in (64, 65))
    assert is_here(tasks, most)
    assert not is_here(tasks, more)


def task_of(_: Sequence[Any]) -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


@pytest.mark.parametrize(("items", "read_bytes", "new_bytes", "tasks"), [
    (4, 0, 0, 1), (4, 1 << 30, 0, 4), (4, 0, 1 << 30, 4), (400, 0, 0, 4), (12, 1 << 19, 1 << 19, 2)
])  # fmt: skip
def test_a_step_has_few_tasks_where_there_is_little_to_do(
    spark: Any, items: int, read_bytes: int, new_bytes: int, tasks: int
) -> None:
    """Each group is a separate call anyway; bytes and files to open decide."""
    groups = [list(range(items))[at::4] for at in range(4)]
    found = some_tasks(spark, new_bytes, local_bytes=0).run(task_of, groups, read_bytes=read_bytes)
    assert (len(found), set(found)) == (4, set(range(tasks)))


def test_nothing_to_do_starts_nothing() -> None:
    def session() -> Any:
        raise AssertionError("started Spark")

    tasks = Tasks(session, Settings(landing_url="/a", warehouse_url="/b", local_bytes=0), NewBytes())
    assert (tasks.run(process_of, [], read_bytes=0), tasks.exchange(halves, [], collected, 2)) == ([], [])


def test_what_a_load_has_to_read_adds_up_and_is_forgotten_with_the_next() -> None:
    new = NewBytes()
    new.add(3)
    new.add(4)
    assert new.count == 7
    new.begin()
    assert new.count == 0


def test_groups_have_about_the_same_weight_and_keep_the_order(spark: Any) -> None:
    tasks = some_tasks(spark)
    weights = [9.0, 1.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0]
    groups = tasks.groups(range(8), weights)
    assert tasks.most_groups == 4
    assert sorted(item for group in groups for item in group) == [*range(8)]
    assert all(group == sorted(group) for group in groups)
    assert [sum(weights[item] for item in group) for group in groups] == [10.0] * 4
    assert (tasks.groups(["a"], [1.0]), tasks.groups([], [])) == ([["a"]], [])


@dataclass(frozen=True)
class Failing:
    kind: type[Exception]
    said: tuple[str, ...] = ()

    def __call__(self, group: Sequence[Any]) -> Any:
        raise self.kind(*self.said)


@pytest.mark.parametrize("kind", [LakehouseError, ObjectMovedError, DiskFullError, ReadTwiceError])
def test_an_error_of_ours_is_itself_wherever_it_is_raised(spark: Any, kind: type[TidemarkError]) -> None:
    """Outcome: kind, base kind and message."""
    error = kind("a", "was overwritten\nmeanwhile", "Load again")
    for tasks in both(spark):
        with pytest.raises(TidemarkError) as failure:
            tasks.run(Failing(kind, (error.subject, error.reason, str(error.hint))), [["a"]], read_bytes=0)
        assert type(failure.value) is kind
        assert failure.value.as_line() == error.as_line()


def test_another_error_is_not_hidden(spark: Any) -> None:
    for tasks in both(spark):
        with pytest.raises(Exception, match="a defect"):
            tasks.run(Failing(ValueError, ("a defect",)), [["a"]], read_bytes=0)


def bounded(group: Sequence[int]) -> tuple[int, list[int]]:
    """Gives back groups beyond the driving process's bound."""
    for size in group:
        if size > most_text_bytes(1 << 40):
            require_room(1 << 40)
    return process_of(group)


def test_what_is_too_large_here_goes_to_spark_as_a_whole(spark: Any) -> None:
    tasks = some_tasks(spark)
    small, large = [[1], [2]], [[1], [1 << 30]]
    assert {pid for pid, _ in tasks.run(bounded, small, read_bytes=0)} == {os.getpid()}
    found = tasks.run(bounded, large, read_bytes=0)
    assert os.getpid() not in {pid for pid, _ in found}
    assert [given for _, given in found] == large


def test_a_bound_that_holds_everywhere_gives_nothing_back() -> None:
    for limit in (10, MOST_TEXT_BYTES):
        with here():
            require_room(limit)
            assert most_text_bytes(limit) == limit
    with here(), pytest.raises(TooLargeHereError):
        require_room(MOST_TEXT_BYTES + 1)
    require_room(MOST_TEXT_BYTES + 1)


def halves(group: Sequence[int]) -> Iterator[tuple[bool, int]]:
    for number in group:
        if number < 0:
            raise LakehouseError(str(number), "is negative", "Report it")
        yield number % 2 == 0, number


def collected(is_even: bool, numbers: Iterable[int]) -> tuple[bool, int]:
    return is_even, sum(numbers)


def test_values_of_a_key_come_together(spark: Any) -> None:
    for tasks in both(spark):
        found = tasks.exchange(halves, [[1, 2, 3], [4, 5], [6]], collected, 2)
        assert dict(found) == {True: 12, False: 9}
        with pytest.raises(LakehouseError, match="negative"):
            tasks.exchange(halves, [[1, -1]], collected, 2)
