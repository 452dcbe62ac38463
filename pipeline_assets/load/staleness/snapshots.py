"""Decides when a delivered snapshot is loaded: by its marker, its deadline, and the policy for missing snapshots."""

from __future__ import annotations

from datetime import datetime

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.dimensions import MissingSnapshot
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.load.deliveries.snapshot_exclusions import is_ruled_out
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.waits import Wait
from pipeline_assets.tables.table import Table


def wait_of_snapshot(facts: Facts, table: Table, key: Slice, record: SliceRecord | None, now: datetime) -> Wait | None:
    """Why the snapshot of a day is not loaded now; None if it is, or if there is nothing to do."""
    day, listed = key.event_date, facts.delivered.get(key)
    may_come = now <= deadline(day, facts.settings)
    if listed is not None and listed.others:
        reason = f"{listed.key} and {listed.others[0].rpartition(' ')[0]} are both the snapshot of {day}"
        return Wait(reason, failure=_refused(reason, "Remove one of them from landing"))
    if listed is not None:
        is_loaded = (
            record is not None and record.input_state is not None and record.input_state.delivered == listed.version
        )
        if listed.is_marked or is_loaded or not may_come:
            return None
        return Wait(f"{listed.key} has no marker yet", is_early=True)
    if record is not None and record.digest != EMPTY:
        if is_ruled_out(facts.exclusions, record):
            return None
        if record.input_state is not None:
            return None
        return Wait("landing holds no snapshot of the day, and what is published is not what a load published")
    first = facts.first_snapshots.get(table.key)
    if first is None:
        return Wait("landing holds no snapshot of the dimension at all")
    if day < first:
        return None
    if may_come:
        return Wait(f"the snapshot of {day} is not delivered yet", is_early=True)
    if facts.settings.missing_snapshot is MissingSnapshot.PREVIOUS:
        return None
    policy = facts.settings.missing_snapshot.value
    if key in facts.excluded:
        return Wait(f"the snapshot of {day} is excluded: {facts.excluded[key]} (missing_snapshot = {policy})")
    return Wait(f"no snapshot of {day} was delivered by its deadline (missing_snapshot = {policy})")


def _refused(reason: str, hint: str) -> Evaluation:
    return Evaluation(Check.SNAPSHOT_IS_WHOLE, False, reason, hint)
