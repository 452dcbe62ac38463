"""What one step of a load writes to the ledger, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import Slice


@dataclass(frozen=True)
class BatchAsRead:
    """What a judgement of a batch rests on."""

    accepted: Mapping[str, str]
    """Object -> etag of the version whose rows raw holds."""
    judgement: tuple[str, str | None] | None
    """Verdict and input state; None where it was not on record."""
    exclusions: frozenset[tuple[str, str]] = frozenset()
    """(object, etag) of the versions that persons had excluded."""


@dataclass
class Changes:
    """What one step of a load writes, in one transaction."""

    deliveries: list[DeliveryRecord] = field(default_factory=list)
    forgotten_deliveries: list[tuple[BatchKey, str]] = field(default_factory=list)
    batches: list[BatchRecord] = field(default_factory=list)
    forgotten_refusals: list[tuple[BatchKey, str]] = field(default_factory=list)
    """Refused versions that were replaced by an accepted one or are gone from landing."""
    batch_days: dict[BatchKey, dict[date, BatchDay]] = field(default_factory=dict)
    """Replaces all event days of each batch named here."""
    slices: list[SliceRecord] = field(default_factory=list)
    rewritten: dict[tuple[str, Slice], tuple[str, str]] = field(default_factory=dict)
    """(table, slice) -> file hash on record, and that of other files with the same rows: nothing else of its row changes."""
    publications: list[PublicationRecord] = field(default_factory=list)
    head: tuple[str, int, int | None] | None = None
    """(table, new snapshot, the snapshot it follows): recorded only where the ledger knows the latter, or if None."""
    read_batches: dict[BatchKey, BatchAsRead] = field(default_factory=dict)
    """What was on record of each batch when it was judged: another run may have judged or loaded it since."""
    exclusions: frozenset[tuple[str, str]] | None = None
    """(object, etag) of the excluded versions of objects of dimensions as the slices were decided about; None of all slices that
    are read from no object."""

    def without(self, slices: Collection[tuple[str, Slice]], batches: Collection[BatchKey]) -> Changes:
        """The same but for what is told of these (table, slice) and batches."""
        return replace(
            self,
            deliveries=[one for one in self.deliveries if one.batch not in batches],
            forgotten_deliveries=[one for one in self.forgotten_deliveries if one[0] not in batches],
            batches=[one for one in self.batches if one.key not in batches],
            forgotten_refusals=[one for one in self.forgotten_refusals if one[0] not in batches],
            batch_days={key: days for key, days in self.batch_days.items() if key not in batches},
            slices=[one for one in self.slices if (one.table, one.key) not in slices],
            rewritten={place: files for place, files in self.rewritten.items() if place not in slices},
            publications=[one for one in self.publications if (one.table, one.key) not in slices],
            read_batches={key: read for key, read in self.read_batches.items() if key not in batches},
        )
