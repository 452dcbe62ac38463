"""What one load is about to publish: per table the staged state that later steps read, and everything to be recorded."""

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
from pipeline_assets.tables.raw_events import QUARANTINE, RAW_TABLES
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
"""(table key, slice)."""


def _touched(step: Changes) -> Iterator[tuple[BatchKey, set[Place]]]:
    """Each batch of a step, and the slices that an accepted one changes: its event days of raw, its arrival day in quarantine."""
    for batch in {*step.batch_days, *(one.batch for one in step.deliveries), *(one.key for one in step.batches)}:
        raw, days = RAW_TABLES[batch.source].key, step.batch_days.get(batch, ())
        quarantined = QUARANTINE.key, Slice(batch.arrival_date, batch.project_id)
        yield batch, {quarantined, *((raw, Slice(day, batch.project_id)) for day in days)}


def condensed(steps: Sequence[tuple[str, Changes]]) -> list[tuple[str, Changes]]:
    """Keep the last record and the last publication of each slice, with what the first step read, and a table's last head.

    What earlier steps made of a slice was never visible to readers, so no notice mentions it.
    """
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
    """One table as this load leaves it."""

    table: Table
    base_id: int
    """Main's head that it stands on."""
    snapshot_id: int
    """Staged: main with the accepted slices."""
    slices: set[Slice] = field(default_factory=set)
    branches: list[str] = field(default_factory=list)
    published: set[Slice] = field(default_factory=set)
    """Those that main shows already: only where tables are published one after another."""
    stand_ins: set[int] = field(default_factory=set)
    """Every staged snapshot that a later step may have read."""
    emptied: frozenset[Slice] = frozenset()
    """Slices that are empty in the staged snapshot, because a data file of them is gone."""


@dataclass(frozen=True)
class LoadRuntime(Runtime):
    """What the steps of one load work with: the ledger answers as if what they accepted were published."""

    draft: Draft = field(kw_only=True)


class Draft:
    """The one publish of a load, as far as it has got."""

    def __init__(self, runtime: Runtime, run_id: str, attempt: str, request: LoadRequest | None = None) -> None:
        """`runtime`: of the process, with the ledger itself; `attempt`: names branches; `request`: whose files are looked for."""
        self._runtime, self._run_id, self._request = runtime, run_id, request
        self._attempt, self._numbers = attempt, count()
        self.ledger = PendingLedger(runtime.ledger)
        """Answers as if everything accepted were published."""
        self._tables: dict[str, _TableDraft] = {}
        self._steps: list[tuple[str, Changes]] = []
        self._built_from: dict[Place, Mapping[Place, Digest]] = {}
        """Slice that is published -> what it was built from."""
        self.looked_at: set[Slice] = set()
        """Derived slices that were accepted, also those that were given up since: a later walk looks at them again."""
        self._near: dict[int, frozenset[Slice]] = {}
        self._also: dict[str, frozenset[Slice]] = {}
        self._found: dict[tuple[str, int], tuple[frozenset[Slice], dict[Slice, str]]] = {}
        """(table, head) -> the slices of which files were looked for, and those of which one is gone -> the file."""

    def next_attempt(self) -> str:
        """Names the branch and the files of one step; no other one has the same."""
        return f"{self._attempt}_{next(self._numbers)}"

    @property
    def runtime(self) -> LoadRuntime:
        """For the steps of the load."""
        values = {one.name: getattr(self._runtime, one.name) for one in fields(Runtime)}
        return LoadRuntime(**{**values, "ledger": self.ledger}, draft=self)

    def pin(self, table: Table) -> int:
        """The snapshot of the table that this load reads and stages on: main's head, with what it accepted itself.

        A slice of which a data file is gone is empty there, so that nothing opens the file; what rests on it waits. The ledger
        agrees with main's head. Raises SliceConflictError where others published slices that this load accepted.
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
        """Look at the files of these slices too, from here on; return those of which one is gone."""
        self._also[table.key] = self._also.get(table.key, frozenset()) | slices
        return sorted(self.lost(table).keys() & slices)

    def lost(self, table: Table) -> dict[Slice, str]:
        """Slices within this load's reach of which a data file is gone, and that it has not accepted anew -> the file."""
        own = self._tables.get(table.key)
        lost = self._lost(table, own.base_id if own is not None else self._main(table))
        return {key: path for key, path in lost.items() if key not in self.slices_of(table.key)}

    def _lost(self, table: Table, head: int) -> dict[Slice, str]:
        """Slices of a head, of those that this load may read -> a data file of it that is gone; one look for each head."""
        if self._request is None:
            return {}
        request, settings = self._request, self._runtime.settings
        # Only arrivals bring days into reach that were not there before.
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
        """Whether main and the ledger are what they were when this pin was taken."""
        own = self._tables.get(name)
        base = own.base_id if own is not None and own.snapshot_id == pin else pin
        is_known = name == QUARANTINE.key or self._runtime.ledger.head(name) == Head(base)
        return is_known and self._runtime.lakehouse.head(table_by_key(name)) == base

    def _main(self, table: Table) -> int:
        if table is QUARANTINE:
            # No slice of it is on record: what it holds follows from the deliveries that are.
            return self._runtime.lakehouse.head(table)
        return sync_ledger(self._runtime, table, self._run_id)

    def _stand_on(self, own: _TableDraft, head: int) -> None:
        """What this load accepted, applied to another head of main, where lost slices are emptied; metadata alone."""
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
        # Not before: after a conflict the accepted slices that are left are those of the former head.
        own.base_id, own.snapshot_id, own.emptied = head, snapshot_id, frozenset(lost)
        own.stand_ins.add(snapshot_id)

    def accept(self, staged: Staged, slices: Collection[Slice], *, is_whole: bool) -> Published:
        """Take exactly these staged slices into what later steps read, and what is published at the end.

        `is_whole`: no other slice of the staged snapshot holds rows that may not be seen. The branch is this draft's from now on.
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
        """What is accepted of a table by now."""
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
        """Keep what a step found out; `built_from`: slice to publish -> what it was built from, with the digests of then."""
        self._steps.append((table.key, changes))
        self.ledger.record(changes, self._run_id)
        self._built_from |= {(table.key, key): inputs for key, inputs in (built_from or {}).items()}

    def give_up(self, conflict: SliceConflictError) -> None:
        """Forget slices that were lost to other writers, and what was built from them; the rest stands on main as it is now.

        Metadata alone: the next walk over the tables builds what was forgotten from fresh inputs, and finds the rest in place.
        """
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
        """The slices that cannot stay without the lost ones, and the batches that go with them.

        A batch is accepted whole or not at all, so all slices that it touches go; and what was built from any of these.
        """
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
        """What was published and recorded before the conflict is main's and the ledger's, and this draft's no more."""
        self._steps = self._steps[conflict.recorded :]
        for name in conflict.tables:
            own = self._tables[name]
            own.published |= own.slices
            own.slices.clear()

    def _still_true(self, step: Changes) -> Changes:
        """Without what was thought of slices that are not accepted: the next walk looks at them beside what others did."""
        accepted = {(name, key) for name, own in self._tables.items() for key in own.slices | own.published}
        return replace(step, slices=[record for record in step.slices if (record.table, record.key) in accepted])

    def _tied(self, own: _TableDraft, gone: Collection[Place]) -> set[Place]:
        """Accepted slices near lost ones of a table whose slices exchange rows: they were judged together."""
        window = own.table.kind.exchange_days(self._runtime.settings)
        lost = [key for name, key in gone if name == own.table.key]
        return {(own.table.key, key) for key in own.slices & neighbourhood(lost, window)} if window and lost else set()

    def publish(self, run: Mapping[str, Any]) -> Mapping[str, Published]:
        """Make all of it visible; returns table -> what main shows. Raises PublishConflictError where others were there.

        `run`: the run's row, written with it.
        """
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
        """Pins with the snapshots that readers find, in place of the staged ones."""
        return {
            name: published[name].snapshot_id if name in published and pin in self._tables[name].stand_ins else pin
            for name, pin in pins.items()
        }

    def abandon(self) -> None:
        """Drop every branch; nothing was published. What cannot be dropped is swept with the branches of dead runs."""
        # Where one cannot be, the others need not be tried: a store that is away is waited for each time.
        with suppress(*FAILURES):
            for own in self._tables.values():
                self._runtime.lakehouse.branches.drop(own.table, own.branches)

    def _change(self, own: _TableDraft) -> SliceChange:
        return self._runtime.lakehouse.changes.of(own.table, own.base_id, own.snapshot_id, own.slices, own.branches)
