"""What a swap takes, refuses and rests on, and what an undo goes back to: on a real ledger; the lakehouse is faked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.errors import PublishConflictError, TakenOverError, TransientError, UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, SliceDifference
from pipeline_assets.domain.records import InputDay, InputState, PublicationRecord, Rejection, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from pipeline_assets.load.build.builder import TablePlan
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.facts import judging
from pipeline_assets.operations import rebuild_build as green
from pipeline_assets.operations import rebuild_swap as swap
from pipeline_assets.operations import rollback
from pipeline_assets.operations.rollback import RollbackRequest, SliceRestore, published_by, restores_of
from pipeline_assets.tables.aggregates import EVENT_COUNTS
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import table_by_key
from resources.iceberg.metadata import SliceFiles
from resources.ledger.changes import Changes
from resources.ledger.rebuilds import SwapOfRebuild
from resources.ledger.schema import RUNS
from resources.ledger.store import Ledger
from resources.publishing import PublishRequest

REFINED, REVENUE, PROJECT, DAY = "refined/events", "aggregates/daily_revenue", "10001", date(2026, 2, 2)
KEY, NEXT = Slice(DAY, PROJECT), Slice(DAY + timedelta(days=1), PROJECT)
NOW = datetime(2026, 6, 1, tzinfo=UTC)
PUBLISHED = Digest(1000, 7, 7)
Step = Callable[[], Sequence[RebuiltSlice]]


def made(rows: int, content: int, table: str = REFINED, key: Slice = KEY, **more: Any) -> RebuiltSlice:
    """A slice that the rebuild made; `content` tells equal row counts apart."""
    known = {"verdict": Verdict.PUBLISHED, "is_final": True, "figures": {"rows": rows}} | more
    record = SliceRecord(table, key, digest=Digest(rows, content, content), **known)
    return RebuiltSlice(record, PUBLISHED, SliceDifference((1000, rows)))


def change(key: Slice, after: Digest, run_id: str, table: str = REFINED, snapshot_id: int = 11) -> PublicationRecord:
    cause = Cause.of(CauseKind.REBUILD if run_id.startswith("swap") else CauseKind.DELIVERY)
    return PublicationRecord(table, key, snapshot_id, snapshot_id - 1, PUBLISHED, after, cause, run_id)


def lakehouse(files: dict[Slice, SliceFiles], of: Callable[..., Any] | None = None) -> SimpleNamespace:
    """Its green branches, at snapshot 5, hold these files."""

    def change_of(table: Any, _: int, __: int, slices: Any) -> Any:
        return SimpleNamespace(table=table, files_by_slice={key: files[key] for key in slices})

    return SimpleNamespace(
        branches=SimpleNamespace(head=lambda *_: 5, name=lambda name: f"tidemark_{name}"),
        slice_files=lambda _, snapshot_id, __: files if snapshot_id == 5 else {},
        changes=SimpleNamespace(of=of or change_of),
    )


class Story:
    """A rebuild on a real ledger. Tests give the catching up and the commit."""

    def __init__(self, ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
        self.ledger, self.steps, self.commit = ledger, list[Step](), self.publish
        self.swapped, self.restored, self.settle = list[str](), list[RollbackRequest](), lambda: None
        settings = Settings(projects=(PROJECT,), dedupe_window_days=0, publish_attempts=2)
        lake = SimpleNamespace(knows=lambda _: False)
        self.runtime: Any = SimpleNamespace(ledger=ledger, settings=settings, log=lambda _: None, lakehouse=lake)
        for module in (green, swap):
            patch.setattr(module, "catch_up", self._catch_up)
        patch.setattr(swap, "sync_ledger", lambda *_: self.settle())
        patch.setattr(swap, "drop_branches", lambda *_: None)
        patch.setattr(swap, "roll_back", lambda _, request: self.restored.append(request) or [])
        self.swap_of = swap._swap_of
        patch.setattr(swap, "_swap_of", lambda _, __, table, rebuilt, *___: self._swap_of(table, rebuilt))
        self.really_publish = swap._publish
        patch.setattr(swap, "_publish", self._table_by_table)

    def _catch_up(self, _: Any, rebuild: RebuildRecord, __: datetime) -> green.MainAsRead:
        self.ledger.rebuilds.record(rebuild, self.steps.pop(0)() if self.steps else [])
        return green.MainAsRead(dict.fromkeys(rebuild.tables, 1))

    def _swap_of(self, table: Any, rebuilt: Any) -> Any:
        going = frozenset(key for key, one in rebuilt.items() if one.goes)
        return SimpleNamespace(table=table, rebuilt=rebuilt, changed=going)

    def _table_by_table(self, _: Any, rebuild: RebuildRecord, swaps: Sequence[Any]) -> None:
        with self.ledger.transaction() as connection:
            SwapOfRebuild(rebuild).require(connection)
        for one in swaps:
            self.commit(rebuild, one.table, one.rebuilt)
        with self.ledger.transaction() as connection:
            SwapOfRebuild(rebuild).write(connection)

    def publish(self, rebuild: RebuildRecord, table: Any, rebuilt: Any) -> frozenset[Slice]:
        going = frozenset(key for key, one in rebuilt.items() if one.goes)
        published = [change(key, rebuilt[key].record.digest, rebuild.run_id or "", table.key) for key in sorted(going)]
        self.ledger.record(Changes(publications=published), rebuild.run_id or "")
        self.swapped += [f"{table.key} {key}" for key in sorted(going)]
        return going

    def reported(self, *slices: RebuiltSlice, tables: tuple[str, ...] = (REFINED,)) -> None:
        days, begun = (DAY, NEXT.event_date), RebuildState.BUILDING
        self.ledger.rebuilds.begin(RebuildRecord(0, tables, *days, (PROJECT,), "why", "ann", begun, "start-1"))
        self.start(*slices)

    def start(self, *slices: RebuiltSlice) -> None:
        self.steps.insert(0, lambda: slices)
        green.build(self.runtime, self.rebuild, NOW)

    def swap(self, *catching_up: Step, run_id: str = "swap-1") -> RebuildRecord:
        self.steps = list(catching_up)
        return swap.swap(self.runtime, self.ledger.rebuilds.claim(self.rebuild, run_id), "bob", None, NOW)

    def swap_of_refined(self, going: Any, main: green.MainAsRead = green.MainAsRead({REFINED: 1})) -> Any:  # noqa: B008 - frozen
        return self.swap_of(self.runtime, self.rebuild, swap.table_by_key(REFINED), going, main, NOW)

    def undo(self) -> None:
        swap.undo(self.runtime, self.rebuild, "bob", None)

    @property
    def rebuild(self) -> RebuildRecord:
        return self.ledger.rebuilds.get(1)

    @property
    def state(self) -> RebuildState:
        return self.rebuild.state


@pytest.fixture
def story(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(ledger, monkeypatch)


def lost(story: Story, *slices: RebuiltSlice) -> Step:
    """A step that dies after it recorded these."""

    def step() -> Sequence[RebuiltSlice]:
        story.ledger.rebuilds.record(story.rebuild, slices)
        raise TransientError("s3", "is away", "Wait")

    return step


def test_a_swap_that_died_over_catching_up_is_compared_with_the_report(story: Story) -> None:
    """Outcome: the repeated swap is refused and shows the new figures, so the next one takes them."""
    story.reported(made(1000, 1))
    with pytest.raises(TransientError):
        story.swap(lost(story, made(400, 2)))

    with pytest.raises(UsageError, match=r"no longer what was reported, and nothing was swapped: .*shrinks by 60.0%"):
        story.swap(run_id="swap-2")

    assert (story.state, story.swapped) == (RebuildState.READY, [])
    story.swap(run_id="swap-3")
    assert (story.state, story.swapped) == (RebuildState.SWAPPED, [f"{REFINED} {KEY}"])


def test_a_start_that_dies_leaves_no_older_report_to_swap(story: Story) -> None:
    story.reported(made(1000, 1))
    story.steps = [lost(story, made(400, 2))]
    with pytest.raises(TransientError):
        green.build(story.runtime, story.rebuild, NOW)
    assert story.state is RebuildState.BUILDING
    with pytest.raises(UsageError, match="has no report yet"):
        story.swap()


@pytest.mark.parametrize("was_refused", [False, True])
def test_what_was_not_reported_to_go_stays_until_it_is(story: Story, was_refused: bool) -> None:
    """Outcome: an unreported slice and the aggregate built from it stay, with the reason; after another start they go."""
    unseen = made(400, 2, key=NEXT)
    before = [made(1000, 7, key=NEXT, verdict=Verdict.REFUSED, reason="twice")] if was_refused else []
    story.reported(made(1000, 1), *before, made(3, 3, REVENUE, NEXT), tables=(REFINED, REVENUE))

    done = story.ledger.rebuilds.slices(story.swap(lambda: [unseen]))

    assert story.swapped == [f"{REFINED} {KEY}"]
    assert done[REFINED][NEXT].why_not == "was not in the report; start the rebuild again to report it"
    assert done[REVENUE][NEXT].why_not == f"cannot go without {REFINED} {NEXT}, left out as well"
    story.ledger.rebuilds.change(story.rebuild, state=RebuildState.BUILDING)
    story.start(unseen)
    of_tables = story.ledger.rebuilds.slices(story.rebuild).values()
    assert all(one.goes for of_table in of_tables for one in of_table.values())


@pytest.mark.parametrize(
    ("table", "is_final", "is_refused"), [(REFINED, True, True), (REFINED, False, False), (REVENUE, True, False)]
)
def test_other_events_of_the_same_number_need_another_look(
    story: Story, table: str, is_final: bool, is_refused: bool
) -> None:
    """Where a final slice's keys are bounded: the number of keys that differ from the report is unknown."""
    story.reported(made(1000, 1, table), tables=(table,))
    main = SliceRecord(table, KEY, Verdict.PUBLISHED, is_final=is_final, digest=PUBLISHED)
    story.ledger.record(Changes(slices=[main]), "load")
    if is_refused:
        with pytest.raises(UsageError, match="final slice holds other events than were reported, 1000 -> 1000"):
            story.swap(lambda: [made(1000, 99, table, is_final=False)])
        assert story.swapped == []
        story.swap(run_id="swap-2")
    else:
        story.swap(lambda: [made(1000, 99, table, is_final=is_final)])
    assert story.swapped == [f"{table} {KEY}"]


def test_a_swap_that_was_taken_over_tells_so_and_answers_nothing(story: Story) -> None:
    """Scenario: another run abandons the rebuild right before the publish. Outcome: nothing is published."""
    story.reported(made(1000, 1))

    def taken(_: Any, rebuild: RebuildRecord, table: Any, rebuilt: Any, *__: Any) -> Any:
        swap.abandon(story.runtime, story.ledger.rebuilds.claim(rebuild, "another"), "ann", None)
        return story._swap_of(table, rebuilt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "_swap_of", taken)
        with pytest.raises(TakenOverError, match="another run works on it by now"):
            story.swap()
    assert (story.state, story.swapped) == (RebuildState.ABANDONED, [])


def conflicts(*_: Any) -> frozenset[Slice]:
    raise PublishConflictError(REFINED, "run load changed it since it was read", "Again")


def test_a_refusal_before_anything_is_shown_leaves_the_rebuild_to_be_answered(story: Story) -> None:
    """Scenario: a swap meets a load and catching up fails in three ways. Outcome: it stays ready, and can be abandoned."""
    story.reported(made(1000, 1))
    story.commit = conflicts
    refused = made(1000, 7, verdict=Verdict.REFUSED, reason="twice")
    unseen, none = (made(1000, 1), "run load changed it"), (refused, "no slice that could go, and nothing was swapped")
    for number, (found, said) in enumerate([unseen, (made(400, 2), "nothing was swapped"), none]):
        with pytest.raises((UsageError, PublishConflictError), match=said):
            story.swap(list, lambda found=found: [found], run_id=f"swap-{number}")
        assert story.state is RebuildState.READY, said
    swap.abandon(story.runtime, story.rebuild, "bob", None)
    assert story.state is RebuildState.ABANDONED


@pytest.mark.parametrize("is_settled", [True, False])
@pytest.mark.parametrize("how", ["refused", "conflict", "catching up"])
def test_a_refusal_says_what_main_shows_already(story: Story, how: str, is_settled: bool) -> None:
    """Scenario: refined is swapped in, then the aggregate's swap fails.
    Outcome: the refusal names refined and offers to complete or undo; it stays swapping and cannot be abandoned."""
    story.reported(made(1000, 1), made(1000, 1, REVENUE), tables=(REFINED, REVENUE))
    committed = change(KEY, Digest(1000, 1, 1), "swap-1")

    def commit(rebuild: RebuildRecord, table: Any, rebuilt: Any) -> frozenset[Slice]:
        if table.key == REVENUE:
            return conflicts()
        if is_settled:
            return story.publish(rebuild, table, rebuilt)
        story.settle = lambda: story.ledger.record(Changes(publications=[committed]), "any")
        return frozenset()

    story.commit = commit
    then = {
        "refused": lambda: [made(1000, 1), made(400, 2, REVENUE, figures={"rows": 400})],
        "conflict": list,
        "catching up": conflicts,
    }[how]
    with pytest.raises((UsageError, PublishConflictError)) as refusal:
        story.swap(list, then)

    assert f"main shows {REFINED} of" in refusal.value.reason
    assert "tidemark rebuild swap 1; or take it back: tidemark rebuild undo 1" in refusal.value.hint
    assert "abandon" not in str(refusal.value)
    assert story.state is RebuildState.SWAPPING
    for state in (RebuildState.SWAPPING, RebuildState.READY, RebuildState.BUILDING):
        story.ledger.rebuilds.change(story.rebuild, state=state)
        with pytest.raises(UsageError, match=f"main shows {REFINED} of it already"):
            swap.abandon(story.runtime, story.rebuild, "bob", None)
    story.undo()
    assert story.state is RebuildState.UNDONE


def test_files_that_are_not_on_record_are_not_published(story: Story) -> None:
    """Outcome: a file without a recorded audit is a conflict; with the recorded files the seen snapshot is published."""
    files = {KEY: SliceFiles(frozenset({"a"}), 1000), NEXT: SliceFiles(frozenset({"b"}), 1000)}
    going = {key: made(1000, 1, key=key, file_hash=one.file_hash) for key, one in files.items()}
    story.reported(*going.values())
    staged = []

    def change_of(table: Any, *seen: Any) -> Any:
        staged.append(seen[1:])
        return SimpleNamespace(table=table, files_by_slice=files)

    story.runtime.lakehouse = lakehouse(files, change_of)
    assert story.swap_of_refined(going).changed == {KEY, NEXT}
    assert staged == [(5, frozenset({KEY, NEXT}))]
    files[NEXT] = SliceFiles(frozenset({"b", "c"}), 1000)
    with pytest.raises(PublishConflictError, match="its green branch holds other files than were recorded"):
        story.swap_of_refined(going)
    assert len(staged) == 1


def test_what_a_swap_publishes_can_be_replayed_with_its_settings(story: Story) -> None:
    """Outcome: its publications carry the build's settings, like those of a load."""
    files = {KEY: SliceFiles(frozenset({"a"}), 1000)}
    going = {KEY: made(1000, 1, file_hash=files[KEY].file_hash)}
    story.reported(*going.values())
    story.runtime.lakehouse = lakehouse(files)
    (record,) = story.swap_of_refined(going).record.publications
    assert record.settings == swap.table_by_key(REFINED).recorded_settings(story.runtime.settings)
    assert record.settings["dedupe_window_days"] == 0


def test_a_swap_rests_on_what_its_slices_were_built_from_and_judged_beside(story: Story) -> None:
    """Outcome: the publish asks for both days' inputs as built, for the remaining neighbour as last seen, for the
    rebuild."""
    story.runtime.settings = story.runtime.settings.model_copy(update={"dedupe_window_days": 1})
    before, after, far = (Slice(DAY + timedelta(days=shift), PROJECT) for shift in (-1, 1, 2))
    raw, files = "raw/regular_events", SliceFiles(frozenset({"a"}), 1000)
    inputs = InputState({InputDay(raw, key.event_date): Digest(5, 5, 5) for key in (KEY, NEXT)})
    here = {"file_hash": files.file_hash}
    going = {key: made(1000, n, key=key, input_state=inputs, **here) for key, n in ((KEY, 1), (NEXT, 7))}
    below = made(3, 3, REVENUE, input_state=InputState({InputDay(REFINED, DAY): going[KEY].record.digest}), **here)
    story.reported(*going.values(), below, tables=(REFINED, REVENUE))
    story.ledger.record(Changes(slices=[replace(going[NEXT].record, input_state=None)]), "load")
    story.runtime.lakehouse = lakehouse(dict.fromkeys((KEY, NEXT), files))
    held = {(REFINED, key): Digest(number, 1, 1) for number, key in enumerate((before, KEY, after, far), 1)}
    main = green.MainAsRead({REFINED: 1, REVENUE: 1}, held)
    swaps = [
        story.swap_of(story.runtime, story.rebuild, swap.table_by_key(name), of_table, main, NOW)
        for name, of_table in story.ledger.rebuilds.slices(story.rebuild).items()
    ]
    asked = list[PublishRequest]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "publisher_of", lambda *_: SimpleNamespace(publish=asked.append))
        story.really_publish(story.runtime, story.rebuild, swaps)

    (request,) = asked
    assert [set(one.changed) for one in swaps] == [{KEY}, {KEY}]
    assert request.alongside == SwapOfRebuild(story.rebuild)
    expected = {(raw, KEY): Digest(5, 5, 5), (raw, NEXT): Digest(5, 5, 5), (REFINED, KEY): going[KEY].record.digest}
    expected[REFINED, before] = held[REFINED, before]
    assert {place: digest for place, digest in request.rests_on.items() if digest != EMPTY} == expected
    assert (REFINED, after) not in request.rests_on, "it goes itself"
    assert (REFINED, far) not in request.rests_on
    assert {key for table, key in request.rests_on if table == raw} == {before, KEY, NEXT, far}
    other = replace(going[NEXT].record, input_state=InputState({InputDay(raw, DAY): Digest(6, 6, 6)}))
    with pytest.raises(PublishConflictError, match=f"{raw} {KEY}: changed while slices were built from it"):
        story.swap_of_refined({**going, NEXT: replace(going[NEXT], record=other)}, main)


def test_what_lies_around_a_rebuild_is_read_of_tables_that_exchange_rows(story: Story) -> None:
    story.runtime.settings = story.runtime.settings.model_copy(update={"dedupe_window_days": 1})
    story.reported(made(1000, 1))
    near = Slice(DAY - timedelta(days=1), PROJECT)
    story.ledger.record(Changes(slices=[SliceRecord(REFINED, near, Verdict.PUBLISHED, digest=PUBLISHED)]), "load")
    refined, revenue = swap.table_by_key(REFINED), swap.table_by_key(REVENUE)
    keys = [Slice(DAY + timedelta(days=shift), PROJECT) for shift in (-1, 0, 1, 2)]
    expected = {(REFINED, key): PUBLISHED if key == near else EMPTY for key in keys}
    assert green.digests_beside(story.runtime, story.rebuild, refined) == expected
    assert green.digests_beside(story.runtime, story.rebuild, revenue) == {}


def test_a_swap_that_died_over_its_branches_is_ended_by_the_same_again(story: Story) -> None:
    """Outcome: the repeated swap drops the branches and publishes nothing; a third one is refused."""
    story.reported(made(1000, 1))
    story.swap()
    story.runtime.lakehouse = lakehouse({})
    assert story.swap(run_id="swap-2").state is RebuildState.SWAPPED
    assert story.swapped == [f"{REFINED} {KEY}"]
    story.runtime.lakehouse.branches.head = lambda *_: None
    with pytest.raises(UsageError, match="rebuild 1: is swapped"):
        story.swap(run_id="swap-3")


def test_an_undo_goes_back_to_right_before_the_swaps_own_changes(story: Story) -> None:
    """Scenario: a load publishes a day, then the swap two, interrupted by a load and repeated.
    Outcome: each day goes back to right before the swap's first change of it, and no day is forgotten."""
    story.reported(made(1000, 1), made(1000, 1, key=NEXT))
    story.commit = conflicts
    with suppress(TransientError):
        story.swap(list, lost(story))
    changed = [(KEY, "load-1"), (KEY, "swap-1"), (NEXT, "swap-1"), (NEXT, "load-2"), (NEXT, "swap-2")]
    for number, (key, run_id) in enumerate(changed, 1):
        record = change(key, Digest(1000, number, number), run_id, snapshot_id=10 * number)
        story.ledger.record(Changes(publications=[record]), run_id)
    numbers = [record.number for record in story.ledger.publications(REFINED)]
    story.ledger.rebuilds.change(story.rebuild, state=RebuildState.SWAPPED, swap_runs=("swap-1", "swap-2"))
    story.ledger.rebuilds.record(story.rebuild, [made(1000, 1, key=NEXT, verdict=Verdict.WAITING, reason="waits")])

    story.undo()

    (request,) = story.restored
    assert (request.tables, request.only) == ((REFINED,), {REFINED: {KEY: numbers[1] - 1, NEXT: numbers[2] - 1}})
    assert story.state is RebuildState.UNDONE


@pytest.mark.parametrize(
    ("state", "said"), [(RebuildState.SWAPPING, "Abandon it"), (RebuildState.SWAPPED, "nothing to take back")]
)
def test_an_undo_of_nothing_is_refused(story: Story, state: RebuildState, said: str) -> None:
    """A load's publication after the swap began is not the swap's."""
    story.reported(made(1000, 1))
    story.ledger.rebuilds.change(story.rebuild, state=state, swap_after=0, swap_runs=("swap-1",))
    story.ledger.record(Changes(publications=[change(KEY, EMPTY, "load-1")]), "load-1")
    with pytest.raises(UsageError, match=f"changed nothing of main.*{said}"):
        story.undo()
    assert (story.state, story.restored) == (state, [])
    if state.is_open:
        swap.abandon(story.runtime, story.rebuild, "bob", None)
        assert story.state is RebuildState.ABANDONED


def test_a_slice_of_an_undo_is_restored_to_its_own_publication(story: Story) -> None:
    """Each goes back to right after its own number, whatever the request says of the others."""
    digests = [Digest(1000, number, number) for number in range(4)]
    for number, (key, digest) in enumerate(zip([KEY, NEXT] * 2, digests, strict=True)):
        record = replace(change(key, digest, "load", snapshot_id=10 + number), parent_id=9 + number)
        present = SliceRecord(REFINED, key, Verdict.PUBLISHED, digest=digest)
        story.ledger.record(Changes(publications=[record], slices=[present]), "load")
    files = {key: SliceFiles(frozenset({"a"}), 1000) for key in (KEY, NEXT)}
    ancestry, branches = lambda _: dict.fromkeys(range(9, 14), NOW), SimpleNamespace(kept=lambda _: ())
    story.runtime.lakehouse = SimpleNamespace(ancestry=ancestry, branches=branches, slice_files=lambda *_: files)
    refined = swap.table_by_key(REFINED)
    numbers = [record.number for record in story.ledger.publications(REFINED)]

    found = restores_of(story.runtime, refined, [KEY, NEXT], numbers[0], {NEXT: numbers[3] - 1})

    assert [(one.key, one.digest, one.snapshot_id) for one in found] == [(KEY, digests[0], 10), (NEXT, digests[1], 11)]


def test_the_baseline_of_a_swap_or_a_rollback_holds_what_the_run_read_that_built_it(story: Story) -> None:
    """Scenario: a final day is rebuilt, and rolled back. Outcome: earlier recoveries lift no bound again."""
    final = made(1000, 1, final_at="2026-02-05T00:00:00+00:00")
    swapped = swap._baseline(final, None, True, NOW)
    assert swapped is not None
    assert (swapped.figures, swapped.since) == ({"rows": 1000}, NOW.isoformat())
    with story.ledger.engine.begin() as connection:
        connection.execute(RUNS.insert(), {"run_id": "load", "started_at": "2026-05-02T00:00:00+00:00"})
    for run_id, since in (("load", "2026-05-02T00:00:00+00:00"), ("unknown", "2026-05-02T01:00:00+00:00")):
        target = replace(change(KEY, PUBLISHED, run_id), published_at="2026-05-02T01:00:00+00:00")
        look = rollback._Look(table_by_key(REFINED), 11, [SliceRestore(REFINED, KEY, final.record, target, 10)])
        request: Any = SimpleNamespace(reason="why", run_id="back")
        (held,) = rollback._changes(story.ledger, request, look, {KEY: SliceFiles(frozenset(), 0)}).slices
        assert held.baseline is not None
        assert held.baseline.since == since


def _published(*days: int) -> list[PublicationRecord]:
    at = [(NOW + timedelta(days=day)).isoformat() for day in days]
    made = [change(KEY, EMPTY, "run") for _ in days]
    return [replace(one, published_at=at[number], number=number + 1) for number, one in enumerate(made)]


@pytest.mark.parametrize(
    ("days", "back_to", "count"),
    [((-3, -2, -1), -2, 2), ((-3, 90, -1), -1, 3), ((-3, 90), 0, 2), ((-3, 90), -1, 1), ((-1,), -2, 0)],
)
def test_no_publication_was_made_later_than_now_or_than_one_that_followed(
    days: tuple[int, ...], back_to: int, count: int
) -> None:
    assert published_by(_published(*days), NOW + timedelta(days=back_to), NOW) == count
    assert published_by(_published(*days), len(days), NOW) == len(days)


BEFORE, OWN, AFTER = (Slice(NEXT.event_date + timedelta(days=shift), PROJECT) for shift in (-1, 0, 1))
SETTINGS = Settings(projects=(PROJECT,), dedupe_window_days=1)
RUNTIME = Runtime(None, None, None, SETTINGS)  # type: ignore[arg-type]
MAIN, STAGED = 1, 2


def held(key: Slice, rows: int = 9) -> SliceRecord:
    return SliceRecord(REFINED, key, Verdict.PUBLISHED, digest=Digest(rows, 1, 1))


def test_a_neighbour_is_read_from_the_snapshot_that_holds_it_as_it_is_now() -> None:
    """Outcome: a load reads all three days from its staging; on a lasting branch, main has the unchanged ones."""
    request = LoadRequest((NEXT.event_date,), (PROJECT,), frozenset({REFINED}), "run", NOW)
    todo = [SlicePlan(OWN, Todo.REBUILD, InputState(), None, is_requested=True)]
    load = TablePlan(RUNTIME, request, REFINED_EVENTS, MAIN, {}, "run_0", todo, 0.0)
    near = {BEFORE, OWN, AFTER}
    assert load.states(STAGED, near) == {STAGED: near}
    assert replace(load, built_beside=frozenset()).states(STAGED, near) == {STAGED: {OWN}, MAIN: {BEFORE, AFTER}}
    one_moved = replace(load, built_beside=frozenset({BEFORE}))
    assert one_moved.states(STAGED, near) == {STAGED: {BEFORE, OWN}, MAIN: {AFTER}}
    assert replace(load, built_beside=frozenset({BEFORE, AFTER})).states(STAGED, near) == {STAGED: near}


def test_what_a_neighbour_refuses_is_looked_at_again_once_the_neighbour_is_another() -> None:
    """Outcome: a refusal for a shared key stands while both neighbours are the same, any other one regardless."""

    def beside(*built: Slice, rows: int = 9) -> str:
        return green.states_beside(SETTINGS, REFINED_EVENTS, OWN, built, {AFTER: held(AFTER, rows)})

    def refused(check: Check, beside: str) -> SliceRecord:
        failed = (Evaluation(check, False, "1 rows share a key with another row"),)
        rejection = Rejection(InputState(), judging(REFINED_EVENTS, SETTINGS))
        record = replace(held(OWN), verdict=Verdict.REFUSED, rejection=rejection, refused_evaluations=failed)
        return green.refused_beside(record, beside)

    by_key, by_raw = (refused(check, beside()) for check in (Check.UNIQUE_EVENT_KEY, Check.RECONCILES_WITH_RAW))
    for changed in (beside(AFTER), beside(BEFORE), beside(rows=8)):
        assert not green.is_judged_beside(RUNTIME, REFINED_EVENTS, by_key, changed)
        assert green.is_judged_beside(RUNTIME, REFINED_EVENTS, by_raw, changed)
    assert green.is_judged_beside(RUNTIME, REFINED_EVENTS, by_key, beside(OWN))
    assert green.states_beside(SETTINGS, EVENT_COUNTS, OWN, {BEFORE, AFTER}, {}) == ""
