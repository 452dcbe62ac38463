"""The recorded verdicts of days, for reports: a raw day has the verdict of its batch, a derived day that of its slice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchRecord
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict
from pipeline_assets.load.request import Outcome
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from resources.ledger.store import Ledger


def early_slices(batches: Mapping[BatchKey, BatchRecord]) -> frozenset[Slice]:
    """Days for which neither source delivered anything yet, and whose deadline lies ahead."""
    found: dict[Slice, list[BatchRecord]] = {}
    for key, batch in batches.items():
        found.setdefault(Slice(key.arrival_date, key.project_id), []).append(batch)
    return frozenset(
        key
        for key, here in found.items()
        if any(batch.verdict is BatchVerdict.WAITING for batch in here)
        and not any(batch.deliveries or batch.verdict is BatchVerdict.REFUSED for batch in here)
    )


DAY_VERDICTS = {
    BatchVerdict.ACCEPTED: Verdict.UNCHANGED,
    BatchVerdict.REFUSED: Verdict.REFUSED,
    BatchVerdict.WAITING: Verdict.WAITING,
    BatchVerdict.MOVED: Verdict.WAITING,
}
"""The verdict of a raw day, by the verdict of its batch."""


def standing_outcomes(ledger: Ledger, table: str, projects: Sequence[str], days: Collection[date]) -> list[Outcome]:
    """The recorded outcomes of a table's slices on these days; the outcome of a raw day is that of its batch."""
    if not days:
        return []
    records = ledger.slices(table, projects, days)
    if table in SOURCE_OF_TABLE:
        batches = ledger.batches(projects, min(days), max(days))
        found = []
        for batch_key, batch in batches.items():
            key = Slice(batch_key.arrival_date, batch_key.project_id)
            if batch_key.source is SOURCE_OF_TABLE[table] and key.event_date in days:
                digest = records[key].digest if key in records else EMPTY
                evaluation = next(iter(batch.evaluations), None)
                figures = {"rows": digest.rows, **(evaluation.figures if evaluation else {})}
                loss = records[key].loss if key in records else None
                told = loss or batch
                verdict = Verdict.REFUSED if loss else DAY_VERDICTS[batch.verdict]
                found.append(
                    Outcome(
                        table,
                        key,
                        verdict,
                        told.reason,
                        told.hint,
                        is_repeat=True,
                        digest=digest,
                        figures=figures,
                        evaluations=() if loss else batch.evaluations,
                        is_early=not loss and batch.verdict is BatchVerdict.WAITING,
                    )
                )
        return found
    early = early_slices(ledger.batches(projects, min(days), max(days)))
    return [
        Outcome(
            table,
            key,
            record.verdict,
            record.reason,
            record.hint,
            is_repeat=True,
            is_final=record.is_final,
            is_early=record.verdict is Verdict.WAITING and key in early,
            digest=record.digest,
            figures={"rows": record.digest.rows, **record.figures},
            evaluations=record.refused_evaluations if record.verdict is Verdict.REFUSED else record.evaluations,
        )
        for key, record in records.items()
    ]
