"""Rewrite slices of published tables: join small files of cold ones, remove old rows from quarantine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

from pipeline_assets.domain.errors import LakehouseError, PublishConflictError, SliceConflictError
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, days_by_project
from pipeline_assets.load import file_tasks
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.quarantine import QUARANTINE
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import slice_digests
from pipeline_assets.transforms.narrow_raw import LINEAGE
from resources.iceberg.errors import FAILURES
from resources.iceberg.lakehouse import Staged
from resources.iceberg.metadata import SliceFiles, slices_condition
from resources.ledger.changes import Changes
from resources.publishing.promise import publisher_of
from resources.publishing.request import PublishRequest

_SLICES_AT_ONCE = 200
"""Number of slices staged, proven and published together."""
_SMALL_BYTES = 8 * 1024**2
"""Size of a data file from which on it is left as it is: reading a day costs little more for a few of these."""
_ALL = "true"


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite."""

    files_before: int = 0
    files_after: int = 0
    rows_removed: int = 0
    is_left_alone: bool = False
    """Whether a load published one of the slices meanwhile, and won."""


def small_files(files: SliceFiles) -> int:
    """Number of a slice's files that are small enough to be joined."""
    return sum(size < _SMALL_BYTES for size in files.sizes.values())


def compact(runtime: Runtime, table: Table, cold: Sequence[Slice], run_id: str) -> Rewritten:
    """Join the small files of these slices; the result is published only once its rows are proven to match the ledger.

    A load that publishes one of them meanwhile wins. Held slices are compacted as well, because their rows do not change.
    Raises LakehouseError, with the slices unchanged, where the compacted files hold other rows.
    """
    return _in_parts(runtime, table, cold, run_id, None)


def remove_rows(runtime: Runtime, slices: Collection[Slice], condition: str, run_id: str) -> Rewritten:
    """Remove the rows that match a SQL condition from these quarantine slices; a load that writes one of them wins."""
    return _in_parts(runtime, QUARANTINE, sorted(slices), run_id, f"NOT coalesce({condition}, false)")


def _in_parts(runtime: Runtime, table: Table, slices: Sequence[Slice], run_id: str, keeps: str | None) -> Rewritten:
    done = []
    for number, start in enumerate(range(0, len(slices), _SLICES_AT_ONCE)):
        rewrite = _Rewrite(runtime, table, run_id, f"{run_id.replace('-', '')}_rewrite{number}", keeps)
        done.append(rewrite.run(slices[start : start + _SLICES_AT_ONCE]))
    return Rewritten(
        sum(one.files_before for one in done),
        sum(one.files_after for one in done),
        sum(one.rows_removed for one in done),
        any(one.is_left_alone for one in done),
    )


@dataclass(frozen=True)
class _Rewrite:
    """The rewrite of one part, based on a head of main."""

    runtime: Runtime
    table: Table
    run_id: str
    attempt: str
    """Part of its branch's name, which shows others that the run is at work."""
    keeps: str | None
    """SQL condition of the rows that stay; None: all rows stay, and only small files are rewritten."""

    def run(self, slices: Collection[Slice]) -> Rewritten:
        """Stage, prove, publish; or leave the slices alone."""
        lakehouse, table = self.runtime.lakehouse, self.table
        base_id = self._base()
        before = {key: files for key, files in lakehouse.slice_files(table, base_id, slices).items() if files.paths}
        if not before:
            return Rewritten()
        files = sum(len(of.paths) for of in before.values())
        rows = sum(of.rows for of in before.values())
        staged = lakehouse.stage(table, base_id, self.attempt, lambda target: self._write(target, before))
        try:
            self._require_same(staged, before)
            after = self._publish(staged, before)
        except PublishConflictError as conflict:
            self._abandon(staged)
            self.runtime.log(f"{conflict.subject}: {conflict.reason}; its files stay as they are")
            return Rewritten(files, files, is_left_alone=True)
        except BaseException:
            self._abandon(staged)
            raise
        left = sum(of.rows for of in after.values())
        return Rewritten(files, sum(len(of.paths) for of in after.values()), rows - left)

    def _write(self, target: str, before: Collection[Slice]) -> None:
        if self.keeps is None:
            self.runtime.lakehouse.join_files(self.table, target, before, _SMALL_BYTES)
        else:
            self.runtime.lakehouse.keep_rows(self.table, target, before, self.keeps)

    def _base(self) -> int:
        if self.table is QUARANTINE:
            # The ledger records no slices of quarantine.
            return self.runtime.lakehouse.head(self.table)
        return sync_ledger(self.runtime, self.table, self.run_id)

    def _require_same(self, staged: Staged, before: Mapping[Slice, SliceFiles]) -> None:
        """Raise LakehouseError unless the staged slices hold exactly the expected rows."""
        if self.table is QUARANTINE:
            # The ledger records nothing of quarantine, so it is compared with its own snapshot before.
            expected = self._quarantined(staged.base_id, before, self.keeps or _ALL)
            found = self._quarantined(staged.snapshot_id, before, _ALL)
        else:
            expected = self._on_record(before)
            found = self._measured(staged.snapshot_id, before)
        for key in sorted(before):
            if expected.get(key, EMPTY) != found.get(key, EMPTY):
                raise self._is_other(key, f"{found.get(key, EMPTY).rows} rows for {expected.get(key, EMPTY).rows}")

    def _require_same_batches(self, parts: Mapping[Slice, Mapping[date | None, BatchDay]]) -> None:
        """Raise LakehouseError unless each batch of raw still has its rows, each with its object and line."""
        source, ledger = SOURCE_OF_TABLE[self.table.key], self.runtime.ledger
        for project_id, days in days_by_project(parts).items():
            for day, batches in ledger.batch_days_of(source, project_id, sorted(days)).items():
                for batch, part in batches.items():
                    # Records of older versions cannot be compared.
                    is_known = part.lineage is not None and part.lineage.startswith(f"{LINEAGE}:")
                    is_comparable = is_known and part.digest.rows and part.digest.version == ROW_HASH_VERSION
                    if is_comparable and parts[Slice(day, project_id)].get(batch.arrival_date) != part:
                        raise self._is_other(Slice(day, project_id), f"rows of {batch} lie elsewhere")

    def _is_other(self, key: Slice, what: str) -> LakehouseError:
        reason = f"its files, written again, would hold other rows than before ({what})"
        return LakehouseError(f"{self.table.key} {key}", reason, "This is a defect: report it; nothing was published")

    def _on_record(self, slices: Mapping[Slice, SliceFiles]) -> dict[Slice, Digest]:
        """Slice -> recorded digest; raises SliceConflictError where the ledger records other files by now."""
        records = self.runtime.ledger.slices(self.table.key, None, {key.event_date for key in slices})
        moved = {
            (self.table.key, key)
            for key, files in slices.items()
            if key not in records or records[key].file_hash != files.file_hash
        }
        if moved:
            first = min(key for _, key in moved)
            reason = "another run recorded other files of it meanwhile"
            raise SliceConflictError(f"{self.table.key} {first}", reason, "The next maintenance looks again", moved)
        return {key: records[key].digest for key in slices}

    def _measured(self, snapshot_id: int, slices: Collection[Slice]) -> dict[Slice, Digest]:
        """The digests of staged slices; raises LakehouseError where rows of raw came to lie in another batch, object or line."""
        if self.table.key not in SOURCE_OF_TABLE:
            return file_tasks.slice_digests(self.runtime, self.table, snapshot_id, slices)
        parts = file_tasks.arrival_days(self.runtime, self.table, snapshot_id, slices)
        self._require_same_batches(parts)
        return {key: sum((part.digest for part in of.values()), EMPTY) for key, of in parts.items()}

    def _quarantined(self, snapshot_id: int, slices: Collection[Slice], keeps: str) -> dict[Slice, Digest]:
        rows = self.runtime.lakehouse.read(QUARANTINE, snapshot_id).where(slices_condition(QUARANTINE, slices))
        return slice_digests(rows.where(keeps), QUARANTINE.content_columns, QUARANTINE.day_column)

    def _publish(self, staged: Staged, before: Mapping[Slice, SliceFiles]) -> Mapping[Slice, SliceFiles]:
        lakehouse, key = self.runtime.lakehouse, self.table.key
        change = lakehouse.changes.of(self.table, staged.base_id, staged.snapshot_id, before, [staged.branch])
        after = change.files_by_slice
        changes = Changes(head=(key, staged.base_id, staged.base_id))
        changes.rewritten = {(key, one): (before[one].file_hash, after[one].file_hash) for one in before}
        steps = [] if self.table is QUARANTINE else [(key, changes)]
        publisher = publisher_of(self.runtime.settings, lakehouse, self.runtime.ledger)
        publisher.publish(PublishRequest(self.run_id, self.attempt, [change], steps, minds_holds=False))
        return after

    def _abandon(self, staged: Staged) -> None:
        # A branch that cannot be dropped is swept later with the branches of dead runs.
        with suppress(*FAILURES):
            self.runtime.lakehouse.drop(staged)
