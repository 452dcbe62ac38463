"""A load's draft: the staged state of each table, which later steps read, and everything to record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import SliceConflictError
from pipeline_assets.domain.records import Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, Digest, Slice, neighbourhood
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.facts import slices_read, slices_to_look_at
from pipeline_assets.tables.events import QUARANTINE, RAW_TABLES
from pipeline_assets.tables.registry import table_by_key
from resources.iceberg.errors import FAILURES
from resources.iceberg.slice_changes import Published, SliceChange
from resources.ledger.changes import Changes
from resources.ledger.store import PendingLedger
from resources.publishing import PartlyPublishedError, PublishRequest, publisher_of

if TYPE_CHECKING:
    from pipeline_assets.load.runtime import LoadRequest
    from pipeline_assets.tables.table import Table
    from resources.iceberg.lakehouse import Staged


RecordT = TypeVar("RecordT", SliceRecord, PublicationRecord)
Place = tuple[str, Slice]


def _touched(step: Changes) -> Iterator[tuple[BatchKey, set[Place]]]:
    """Each batch of a step -> the slices it changes: event days of raw if accepted, its arrival day in quarantine."""
    for batch in {*step.batch_days, *(one.batch for one in step.deliveries), *(one.key for one in step.batches)}:
        raw, days = RAW_TABLES[batch.source].key, step.batch_days.get(batch, ())
        quarantined = QUARANTINE.key, Slice(batch.arrival_date, batch.project_id)
        yield batch, {quarantined, *((raw, Slice(day, batch.project_id)) for day in days)}


def condensed(steps: Sequence[tuple[str, Changes]]) -> list[tuple[str, Changes]]:
    """The last record and publication of each slice, with the inputs of the first step; readers never saw earlier results."""
    if len({table for table, _ in steps}) == len(steps):
        return list(steps)
    first: dict[Any, Any] = {}
    last: dict[Any, int] = {}
    for number, (table, step) in enumerate(steps):
        records: list[SliceRecord | PublicationRecord] = [*step.slices, *step.publications]
        for one in records:
            first.setdefault((type(one), one.table, one.key), one)
            last[type(one), one.table, one.key] = number
        if step.head is not None:
            last[table] = number

    def kept(number: int, records: Sequence[RecordT], as_read: str) -> list[RecordT]:
        places = {(type(one), one.table, one.key): one for one in records}
        own = {place: one for place, one in places.items() if last[place] == number}
        return [replace(one, **{as_read: getattr(first[place], as_read)}) for place, one in own.items()]

    return [
        (
            table,
            replace(
                step,
                slices=kept(number, step.slices, "read_hash"),
                publications=kept(number, step.publications, "digest_before"),
                head=step.head if last.get(table) == number else None,
            ),
        )
        for number, (table, step) in enumerate(steps)
    ]


@dataclass
class _TableDraft:
    table: Table
    base_id: int
    snapshot_id: int
    slices: set[Slice] = field(default_factory=set)
    branches: list[str] = field(default_factory=list)
    published: set[Slice] = field(default_factory=set)
    stand_ins: set[int] = field(default_factory=set)
    emptied: frozenset[Slice] = frozenset()
    """Slices that are empty in the staged snapshot, because a data file is gone."""


@dataclass(frozen=True)
class LoadRuntime(Runtime):
    """The resources of a load's steps; its ledger answers as if accepted slices were published."""

    draft: Draft = field(kw_only=True)


class Draft:
    """All changes that one load will publish."""

    def __init__(self, runtime: Runtime, request: LoadRequest) -> None:
        self._runtime, self._run_id, self._request = runtime, request.run_id, request
        self._attempt, self._numbers = request.attempt, count()
        self.ledger = PendingLedger(runtime.ledger)
        self._tables: dict[str, _TableDraft] = {}
        self._steps: list[tuple[str, Changes]] = []
        self._built_from: dict[Place, Mapping[Place, Digest]] = {}
        self.looked_at: set[Slice] = set()
        """Derived slices accepted so far, also those given up since: the next pass considers them again."""
        self._near: dict[int, frozenset[Slice]] = {}
        self._also: dict[str, frozenset[Slice]] = {}
        self._found: dict[tuple[str, int], tuple[frozenset[Slice], dict[Slice, str]]] = {}
        """(table, head) -> the slices whose files were checked, and the lost ones -> the file."""

    def next_attempt(self) -> str:
        """Names the branch and the files of one step; no other one has the same."""
        return f"{self._attempt}_{next(self._numbers)}"

    @property
    def runtime(self) -> LoadRuntime:
        """For the steps of the load."""
        values = {one.name: getattr(self._runtime, one.name) for one in fields(Runtime)}
        return LoadRuntime(**{**values, "ledger": self.ledger}, draft=self)

    def pin(self, table: Table) -> int:
        """The snapshot of the table that this load reads and stages on: main's head with the accepted slices.

        A slice with a lost data file is empty there; slices built from it wait. The ledger agrees with main's head. Raises
        SliceConflictError if others published slices that this load accepted.
        """
        head = self._main(table)
        own = self._tables.get(table.key)
        if own is None:
            if not self._lost(table, head):
                return head
            own = self._tables[table.key] = _TableDraft(table, head, head)
        if own.base_id != head or self._lost(table, head).keys() - own.slices - own.emptied:
            self._stand_on(own, head)
        return own.snapshot_id

    def look_at(self, table: Table, slices: AbstractSet[Slice]) -> list[Slice]:
        """Check the files of these slices too, from here on; return the slices with a lost file."""
        self._also[table.key] = self._also.get(table.key, frozenset()) | slices
        return sorted(self.lost(table).keys() & slices)

    def lost(self, table: Table) -> dict[Slice, str]:
        """Slices within this load's reach with a lost data file, not accepted anew -> the file."""
        own = self._tables.get(table.key)
        lost = self._lost(table, own.base_id if own is not None else self._main(table))
        return {key: path for key, path in lost.items() if key not in self.slices_of(table.key)}

    def _lost(self, table: Table, head: int) -> dict[Slice, str]:
        request, settings = self._request, self._runtime.settings
        arrived = sum(bool(step.batch_days) for _, step in self._steps)
        if arrived not in self._near:
            self._near[arrived] = slices_to_look_at(self.ledger, settings, request.projects, request.days)
        slices = slices_read(self._near[arrived], settings, request, table) | self._also.get(table.key, frozenset())
        looked_at, lost = self._found.get((table.key, head), (frozenset(), {}))
        if not slices <= looked_at:
            found = self._runtime.lakehouse.lost_slices(table, head, slices - looked_at)
            for key, path in sorted(found.items()):
                self._runtime.log(f"{table.key}: a data file of {key} is gone from the warehouse: {path}")
            lost = lost | found
            self._found[table.key, head] = looked_at | slices, lost
        return lost

    def still_pins(self, name: str, pin: int) -> bool:
        """Whether main and the ledger are unchanged since this pin."""
        own = self._tables.get(name)
        base = own.base_id if own is not None and own.snapshot_id == pin else pin
        is_known = name == QUARANTINE.key or self._runtime.ledger.head(name) == Head(base)
        return is_known and self._runtime.lakehouse.head(table_by_key(name)) == base

    def _main(self, table: Table) -> int:
        if table is QUARANTINE:
            # Without recorded slices, the content follows from the deliveries on record.
            return self._runtime.lakehouse.head(table)
        return sync_ledger(self._runtime, table, self._run_id)

    def _stand_on(self, own: _TableDraft, head: int) -> None:
        """Apply the accepted slices to another head of main, and empty lost slices; metadata alone."""
        lakehouse, changes = self._runtime.lakehouse, [self._change(own)] if own.slices else []
        lost = self._lost(own.table, head).keys() - own.slices
        if lost:
            changes.append(lakehouse.changes.restoring(own.table, head, dict.fromkeys(lost)))
        if not changes:
            own.base_id, own.snapshot_id, own.emptied = head, head, frozenset()
            return
        branch, snapshot_id = lakehouse.branches.create(own.table, self.next_attempt(), head), head
        own.branches.append(branch)
        for number, change in enumerate(changes):
            made = lakehouse.changes.commit(change, f"{branch}_{number}", self._run_id, branch=branch)
            snapshot_id = made.snapshot_id
        # Not earlier: after a conflict, the accepted slices are those of the former head.
        own.base_id, own.snapshot_id, own.emptied = head, snapshot_id, frozenset(lost)
        own.stand_ins.add(snapshot_id)

    def accept(self, staged: Staged, slices: Collection[Slice], *, is_whole: bool) -> Published:
        """Accept these staged slices: later steps read them, and the load publishes them at its end.

        `is_whole`: all other slices of the staged snapshot may be seen. The draft owns the branch from now on.
        """
        lakehouse, table, wanted = self._runtime.lakehouse, staged.table, frozenset(slices)
        change = lakehouse.changes.of(table, staged.base_id, staged.snapshot_id, wanted)
        branch, snapshot_id = staged.branch, staged.snapshot_id
        if not is_whole:
            branch = lakehouse.branches.create(table, self.next_attempt(), staged.base_id)
            snapshot_id = lakehouse.changes.commit(change, branch, self._run_id, branch=branch).snapshot_id
        own = self._tables.setdefault(table.key, _TableDraft(table, staged.base_id, staged.base_id))
        own.snapshot_id = snapshot_id
        own.slices |= wanted
        if table.upstream:
            self.looked_at |= {key for key in wanted if key.project_id != ALL_PROJECTS}
        own.branches.append(branch)
        own.stand_ins.add(snapshot_id)
        return Published(snapshot_id, staged.base_id, change.files_by_slice)

    def slices_of(self, table: str) -> frozenset[Slice]:
        """The accepted slices of a table."""
        own = self._tables.get(table)
        return frozenset(own.slices | own.published) if own is not None else frozenset()

    def drop(self, staged: Staged) -> None:
        """Drop a staged branch, unless later steps read it."""
        own = self._tables.get(staged.table.key)
        if own is None or staged.branch not in own.branches:
            self._runtime.lakehouse.drop(staged)

    def record(
        self, table: Table, changes: Changes, built_from: Mapping[Slice, Mapping[Place, Digest]] | None = None
    ) -> None:
        """Keep the changes of a step; `built_from`: slice to publish -> its inputs with their digests."""
        self._steps.append((table.key, changes))
        self.ledger.record(changes, self._run_id)
        self._built_from |= {(table.key, key): inputs for key, inputs in (built_from or {}).items()}

    def give_up(self, conflict: SliceConflictError) -> None:
        """Forget slices lost to other writers and all built from them; apply the rest to main's new head (metadata alone)."""
        if isinstance(conflict, PartlyPublishedError):
            self._settle(conflict)
        gone, batches = self._with_what_follows(conflict.slices)
        while True:
            for own in self._tables.values():
                own.slices -= {key for table, key in gone if table == own.table.key}
            self._steps = [(table, self._still_true(step.without(gone, batches))) for table, step in self._steps]
            self._built_from = {place: inputs for place, inputs in self._built_from.items() if place not in gone}
            self.ledger = PendingLedger(self._runtime.ledger)
            for _, step in self._steps:
                self.ledger.record(step, self._run_id)
            try:
                for own in self._tables.values():
                    self._stand_on(own, self._main(own.table))
            except SliceConflictError as another:
                gone, batches = self._with_what_follows(another.slices)
            else:
                return

    def _with_what_follows(self, lost: Collection[Place]) -> tuple[frozenset[Place], frozenset[BatchKey]]:
        """The slices and batches that go with the lost slices: all built from them, and all of a touched batch."""
        gone: set[Place] = set(lost)
        batches: set[BatchKey] = set()
        touched = [pair for _, step in self._steps for pair in _touched(step)]
        before = -1
        while before != len(gone):
            before = len(gone)
            for batch, places in touched:
                if places & gone:
                    batches.add(batch)
                    gone |= places
            gone |= {place for place, inputs in self._built_from.items() if not gone.isdisjoint(inputs)}
            gone |= {place for own in self._tables.values() for place in self._tied(own, gone)}
        return frozenset(gone), frozenset(batches)

    def _settle(self, conflict: PartlyPublishedError) -> None:
        self._steps = self._steps[conflict.recorded :]
        for name in conflict.tables:
            own = self._tables[name]
            own.published |= own.slices
            own.slices.clear()

    def _still_true(self, step: Changes) -> Changes:
        """The step without statements on slices that are not accepted; the next pass decides them again."""
        accepted = {(name, key) for name, own in self._tables.items() for key in own.slices | own.published}
        return replace(step, slices=[record for record in step.slices if (record.table, record.key) in accepted])

    def _tied(self, own: _TableDraft, gone: Collection[Place]) -> set[Place]:
        """Accepted slices near lost ones of a table whose slices exchange rows: they were judged together."""
        window = own.table.kind.exchange_days(self._runtime.settings)
        lost = [key for name, key in gone if name == own.table.key]
        return {(own.table.key, key) for key in own.slices & neighbourhood(lost, window)} if window and lost else set()

    def publish(self, run: Mapping[str, Any]) -> Mapping[str, Published]:
        """Publish everything; return table -> main's state. Raises PublishConflictError on conflicts. `run`: the run's row."""
        request = PublishRequest(
            run_id=self._run_id,
            name=self._attempt,
            tables=[self._change(own) for own in self._tables.values()],
            steps=condensed(self._steps),
            stand_ins={name: frozenset(own.stand_ins) for name, own in self._tables.items()},
            rests_on={place: digest for inputs in self._built_from.values() for place, digest in inputs.items()},
            run=run,
        )
        return publisher_of(self._runtime.settings, self._runtime.lakehouse, self._runtime.ledger).publish(request)

    def published_pins(self, pins: Mapping[str, int], published: Mapping[str, Published]) -> dict[str, int]:
        """Pins with the published snapshots in place of the staged ones."""
        return {
            name: published[name].snapshot_id if name in published and pin in self._tables[name].stand_ins else pin
            for name, pin in pins.items()
        }

    def abandon(self) -> None:
        """Drop every branch, with nothing published; branches that remain are swept with those of dead runs."""
        # If one fails, do not try the others: each would wait for an unavailable store again.
        with suppress(*FAILURES):
            for own in self._tables.values():
                self._runtime.lakehouse.branches.drop(own.table, own.branches)

    def _change(self, own: _TableDraft) -> SliceChange:
        return self._runtime.lakehouse.changes.of(own.table, own.base_id, own.snapshot_id, own.slices, own.branches)
