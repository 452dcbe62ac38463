"""The state of a batch in landing and ledger, and the objects to read or remove."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import RENAME, BatchKey, Delivery
from pipeline_assets.domain.errors import recover_refused
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import (
    EXCLUDED,
    HOURS_HELD,
    HOURS_UNFINISHED,
    HOURS_UNPLACED,
    MISSING,
    THIS_LOAD,
    VANISHED,
    BatchRecord,
    DeliveryRecord,
    Exclusion,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.staleness.finality import HOURS_A_DAY


@dataclass(frozen=True)
class BatchPlan:
    """The state of a batch in landing, compared with the ledger."""

    key: BatchKey
    listed: Mapping[str, Delivery] = field(default_factory=dict)
    excluded: Mapping[str, Delivery] = field(default_factory=dict)
    exclusions: Mapping[str, Sequence[Exclusion]] = field(default_factory=dict)
    recorded: Mapping[str, DeliveryRecord] = field(default_factory=dict)
    refused: Mapping[str, DeliveryRecord] = field(default_factory=dict)
    hours_marked: frozenset[int] = frozenset()
    hours_unfinished: frozenset[int] = frozenset()
    """Hours whose objects wait for the end of their recovery; these are not `listed`."""
    unplaced: Mapping[str, int] = field(default_factory=dict)
    """Object whose name cannot be placed -> its hour, which is neither marked nor held."""
    hours_elsewhere: frozenset[int] = frozenset()
    hours_held: frozenset[int] = frozenset()
    """Hours with a marker or an object in landing or raw; past the horizon also those on record."""
    is_marked: bool = False
    prior: BatchRecord | None = None
    is_requested: bool = False
    is_awaited: bool = True
    is_closed: bool = False
    is_read_again: bool = False
    has_lost_rows: bool = False
    accepted_reason: str | None = None
    code_version: str = ""
    changed: tuple[Delivery, ...] = ()
    """New objects, other versions, and objects with lines that another parser refused."""
    gone: tuple[str, ...] = ()
    """Objects in raw that landing lost inside the horizon, or damaged at any age; neither excluded nor relocated."""
    withdrawn: tuple[str, ...] = ()
    """Objects in raw to remove: landing lacks them, and a later delivery of their hour or an operator confirms it."""
    ruled_out: frozenset[str] = frozenset()
    relocated: frozenset[str] = frozenset()
    being_relocated: frozenset[str] = frozenset()
    """The same before the copies are loaded: neither missing nor withdrawn."""
    missing: tuple[str, ...] = ()
    is_repeated_refusal: bool = False
    verdict: tuple[BatchVerdict, Evaluation] | None = None

    @property
    def needs_work(self) -> bool:
        """Whether anything must be read or removed."""
        is_judged = self.is_repeated_refusal or self.missing
        return not is_judged and bool(self.changed or self.withdrawn or self.stale_refusals)

    @property
    def is_told_whole(self) -> bool:
        """Whether each hour of the day has a marker or an object, of either source."""
        return len(self.hours_marked | self.hours_held | self.hours_elsewhere) == HOURS_A_DAY

    @property
    def is_newly_empty(self) -> bool:
        """Whether all hours are marked, none has an object, and the ledger does not say so yet."""
        is_awaited = self.key.source is Source.REGULAR or self.prior is not None
        is_absent = is_awaited and not (self.listed or self.excluded or self.recorded or self.refused)
        is_known = self.prior is not None and self.prior.verdict is BatchVerdict.ACCEPTED
        return is_absent and not is_known and self.is_told_whole

    @property
    def stale_refusals(self) -> list[str]:
        """Refused versions that landing no longer holds: deleted, or overwritten by the version in raw."""
        return sorted(self.refused.keys() - {delivery.key for delivery in self.changed})

    @property
    def exclusion_reason(self) -> str | None:
        """Which deliveries an operator excluded, and why; None without any."""
        named = sorted(self.excluded.keys() | self.ruled_out)
        if not named and not self.listed and not self.recorded:
            named = sorted(self.exclusions)
        if not named:
            return None
        reasons = dict.fromkeys(exclusion.reason for key in named for exclusion in self.exclusions[key])
        return f"{len(named)} excluded: {'; '.join(reasons)}"

    @property
    def told_recovery(self) -> str | None:
        """Which hours wait for the end of their recovery, and what ends it; None without any."""
        if not self.hours_unfinished:
            return None
        first, last = (Hour(self.key.arrival_date, end(self.hours_unfinished)) for end in (min, max))
        command = f"tidemark recover --from {first} --to {last} --project {self.key.project_id}"
        listed = ", ".join(map(str, sorted(self.hours_unfinished)))
        return f"hours {listed} wait: their recovery has not written its marker; if it died, run {command}"

    @property
    def told_unplaced(self) -> str | None:
        """Which hours hold objects whose names cannot be placed; None without any."""
        if not self.unplaced:
            return None
        hours = ", ".join(map(str, sorted(set(self.unplaced.values()))))
        return f"hours {hours} hold {len(self.unplaced)} objects whose names cannot be placed: {few(sorted(self.unplaced))}"

    @property
    def let_go(self) -> tuple[str, ...]:
        """Withdrawn objects that landing lost."""
        return () if self.missing else self.gone

    @property
    def known_bytes(self) -> dict[str, str]:
        """Object key -> sha256 of its bytes in raw, which need no parsing."""
        return {
            d.key: record.sha256
            for d in self.changed
            if (record := self.recorded.get(d.key)) is not None
            and record.sha256 is not None
            and not self.is_read_again
            and not is_to_be_replayed(record, self.code_version)
        }

    def input_state(self, settings: Settings) -> str:
        """Text for the listed versions, the parser and the bounds; the same state is refused only once."""
        bounds = (settings.max_unreadable_objects, settings.max_quarantined_share)
        of_losses = (settings.change_min_rows, settings.change_max_shrink, settings.change_bounds)
        parts = [f"{d.key}\t{d.etag}" for d in sorted(self.listed.values())] + [repr(bounds), self.code_version]
        if self.gone or any(delivery.key in self.recorded for delivery in self.changed):
            parts.append(repr((self.gone, of_losses)))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def without(self, exclusion: Exclusion) -> BatchPlan:
        """The plan in which a listed object counts as excluded."""
        key = exclusion.object_key
        is_held = key in self.recorded and self.holds(key, exclusion)
        return replace(
            self,
            listed={listed: delivery for listed, delivery in self.listed.items() if listed != key},
            excluded={**self.excluded, key: self.listed[key]},
            exclusions={**self.exclusions, key: (*self.exclusions.get(key, ()), exclusion)},
            changed=tuple(delivery for delivery in self.changed if delivery.key != key),
            ruled_out=self.ruled_out | {key} if is_held else self.ruled_out,
            withdrawn=tuple(sorted({*self.withdrawn, key})) if is_held else self.withdrawn,
        )

    def holds(self, object_key: str, exclusion: Exclusion) -> bool:
        """Whether raw holds exactly the excluded version."""
        record = self.recorded[object_key]
        return exclusion.names(record.etag, record.sha256)

    def with_recovery(self, evaluation: Evaluation) -> Evaluation:
        """The refusal of missing or unreadable objects, with the command that fetches them, unless a recovery wrote them."""
        if self.key.source is not Source.REGULAR:
            return evaluation
        command = recover_refused(self.key.arrival_date, self.key.arrival_date, [self.key.project_id])
        return replace(evaluation, hint=f"{evaluation.hint}; or fetch it from the vendor: {command}")

    def record(self, verdict: BatchVerdict, evaluation: Evaluation, settings: Settings) -> BatchRecord:
        """The batch's row in the ledger."""
        if self.prior is not None and self.prior.vanished_rows:
            carried = {VANISHED: self.prior.vanished_rows}
            evaluation = replace(evaluation, figures={**carried, **evaluation.figures})
        return BatchRecord(
            key=self.key,
            verdict=verdict,
            reason=evaluation.reason,
            hint=evaluation.hint,
            input_state=self.input_state(settings),
            deliveries=len(self.known),
            hours_delivered=len({delivery.hour for delivery in self.listed.values()}),
            hours_marked=len(self.hours_marked),
            is_closed=self.is_closed,
            hours=tuple(sorted(self.hours_held | self.hours_marked | self.hours_known(settings))),
            evaluations=(evaluation, completeness(self, evaluation)),
        )

    def hour_of(self, object_key: str, settings: Settings) -> int | None:
        """The hour in the name of an object of this batch."""
        listed = self.listed.get(object_key)
        if listed is not None:
            return listed.hour
        parsed = EXPORT_FORMAT.keys(settings.marker_pattern).parse(
            self.key.source, self.key.project_id, object_key, "", 0
        )
        return parsed.hour if isinstance(parsed, Delivery) else None

    @property
    def known(self) -> set[str]:
        """Objects in landing, and those that raw keeps although landing lost them."""
        return self.listed.keys() | (self.recorded.keys() - set(self.withdrawn))

    def told_loss(self, settings: Settings) -> str:
        """The losses that an operator's reason accepts, before they are accepted."""
        gone = self.let_go
        if gone:
            hours = sorted({hour for key in gone if (hour := self.hour_of(key, settings)) is not None})
            rows = sum(self.recorded[key].rows for key in gone)
            told = f"{len(gone)} objects with {rows} rows of hours {', '.join(map(str, hours))}, first {gone[0]}"
            return f"lets go {together(told, self.told_partial)}: {self.accepted_reason}"
        if self.known and self.told_partial is not None:
            return f"lets go what is missing: {self.loss_reason(None)}"
        verdict, evaluation = self.verdict or (None, None)
        if verdict is BatchVerdict.ACCEPTED and evaluation is not None and evaluation.figures.get(MISSING):
            held = self.partial_hours
            but = "" if held is None else f", but for {held} hours that the other source holds"
            return f"is let go whole, nothing of it was delivered{but}: {self.accepted_reason}"
        return "lacks nothing that raw holds and may lose; the reason given is not needed"

    def hours_known(self, settings: Settings) -> set[int]:
        """Hours with an object in landing or raw; for a regular export also with an excluded one."""
        came = self.known | (self.exclusions.keys() if self.key.source is Source.REGULAR else set())
        hours = {hour for key in came if (hour := self.hour_of(key, settings)) is not None}
        return hours - {*self.unplaced.values()}

    def from_its_start(self, first_arrival: date | None) -> BatchPlan:
        """The plan in which hours before the project's first one are not missing."""
        is_first = self.key.source is Source.REGULAR and self.key.arrival_date == first_arrival
        if not is_first or self.hours_elsewhere or not self.hours_held:
            return self
        before = set(range(min(self.hours_held))) - {*self.unplaced.values()}
        return replace(self, hours_held=self.hours_held | before)

    @property
    def partial_hours(self) -> int | None:
        """Hours that some source holds of a day with missing hours; None for other days."""
        held = len(self.hours_held | self.hours_elsewhere)
        is_short = bool(self.unplaced or (self.is_marked if self.known else self.hours_elsewhere))
        is_ours = self.key.source is Source.REGULAR and self.is_awaited
        return held if is_ours and is_short and held < HOURS_A_DAY else None

    @property
    def told_partial(self) -> str | None:
        """Which hours are missing, and where, once nobody waits for them; None without any."""
        told = "hours of a regular export never came" if self.known else "no regular delivery came"
        is_told = self.partial_hours is not None and (self.is_closed or not self.known)
        told = f"{told}, and any source holds {self.partial_hours} of {HOURS_A_DAY} hours"
        return together(told, self.told_unplaced) if is_told else None

    def loss_reason(self, reason: str | None) -> str | None:
        """`reason`, and why an operator accepts missing hours, now or earlier (valid while no other hour is missing)."""
        prior = self.prior
        if self.told_partial is None or self.accepted_reason is not None or prior is None:
            told = self.told_partial and self.accepted_reason and f"{self.told_partial}: {self.accepted_reason}"
            return together(reason, told) if told else None
        is_standing = prior.is_closed and prior.is_loss_accepted and set(prior.hours or ()) <= self.hours_held
        return prior.reason if is_standing else None


def together(*reasons: str | None) -> str | None:
    """The reasons that are not None, as one text."""
    return "; ".join(filter(None, reasons)) or None


def is_to_be_replayed(record: DeliveryRecord, code_version: str) -> bool:
    """Whether another parser could not read values or lines of these bytes, or all of them."""
    return record.code_version != code_version and bool(record.quarantined or record.error or record.line_reasons)


def without_successor(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> tuple[str, ...]:
    """The gone objects that brought rows to an hour without a later delivery in the listing, by the ledger.

    `read`: listed versions as they were read; an unread version counts as a new delivery, an excluded object replaces nothing.
    """
    latest: dict[int | None, str] = {}
    for listed in plan.listed.values():
        known = read.get(listed.key) or plan.recorded.get(listed.key)
        is_new = known is None or (known.etag != listed.etag and known.sha256 is not None)
        at = THIS_LOAD if known is None or is_new else known.recorded_at
        latest[listed.hour] = max(latest.get(listed.hour, ""), at)

    def is_replaced(gone: DeliveryRecord) -> bool:
        return not gone.rows or latest.get(plan.hour_of(gone.object_key, settings), "") > gone.recorded_at

    is_empty = not (plan.listed or plan.excluded)
    return tuple(key for key in plan.gone if is_empty or not is_replaced(plan.recorded[key]))


def completeness(plan: BatchPlan, verdict: Evaluation) -> Evaluation:
    """The check that all hours of the batch are marked; `verdict` is of the other check."""

    def incomplete(reason: str | None, hint: str, figures: Mapping[str, float]) -> Evaluation:
        return Evaluation(Check.DELIVERY_COMPLETE, False, reason, hint, figures)

    if plan.told_recovery is not None:
        hint = "A load after the end of the recovery takes them; six hours after it began they are taken as they lie"
        return incomplete(plan.told_recovery, hint, {HOURS_UNFINISHED: len(plan.hours_unfinished)})
    held = plan.partial_hours
    rename = f"{RENAME}. " if plan.unplaced else ""
    if plan.unplaced and held is None:
        hint = f"{rename}The day stays provisional until then"
        return incomplete(plan.told_unplaced, hint, {HOURS_UNPLACED: len({*plan.unplaced.values()})})
    figures = {"hours_marked": len(plan.hours_marked), "hours_delivered": len({d.hour for d in plan.listed.values()})}
    is_decided = verdict.figures.get(MISSING) or (verdict.figures.get(EXCLUDED) and not plan.known)
    if plan.told_partial is not None and verdict.is_passed and not is_decided:
        hint = (
            f"{rename}Recover the other hours, or accept that they are lost, with a reason (--accept-missing, accept_missing in "
            f"run config); the day stays provisional until then{'' if plan.is_closed else ', and until its deadline'}"
        )
        return incomplete(plan.told_partial, hint, {**figures, HOURS_HELD: held or 0})
    missing = HOURS_A_DAY - len(plan.hours_marked)
    # Recoveries need no markers, and a day on which one source is empty is complete.
    if missing == 0 or plan.is_closed or not plan.listed:
        return Evaluation(Check.DELIVERY_COMPLETE, True, figures=figures)
    reason = together(f"{missing} of 24 hours have no marker yet", plan.told_unplaced)
    hint = f"{rename}The day stays provisional until they come or the deadline passes"
    return incomplete(reason, hint, figures if held is None else {**figures, HOURS_HELD: held})
