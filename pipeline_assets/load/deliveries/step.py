"""One attempt at accepting a source's deliveries: its state, and the statements its parts share.

Contains: the step and how rows of objects are chosen and removed.
Add here: what acceptance and quarantine both need.
Does not contain: judging and publishing (read.py, publish.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.plain_text import sql_text
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table
from resources.ledger.records import Changes, DeliveryRecord


@dataclass
class RawStep:
    """One attempt at accepting a source's deliveries."""

    runtime: Runtime
    request: LoadRequest
    source: Source
    table: Table
    base_id: int
    plans: Mapping[BatchKey, BatchPlan]
    attempt: str
    started_at: float
    may_list_again: bool = False
    """Whether batches that moved are tried once more in this run."""
    summaries: dict[str, DeliveryRecord] = field(default_factory=dict)
    """Object key -> what reading it found; of a touched object what was known of its bytes."""
    touched: set[str] = field(default_factory=set)
    """Objects with another etag and the same bytes: hashed, not parsed."""
    unread: dict[str, str] = field(default_factory=dict)
    """Object that could not be read -> why."""
    verdicts: dict[BatchKey, tuple[BatchVerdict, Evaluation]] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    published: dict[Slice, Digest] = field(default_factory=dict)

    @property
    def work(self) -> list[BatchPlan]:
        """Batches of which something must be read or removed, and that nothing refuses beforehand."""
        return [plan for _, plan in sorted(self.plans.items()) if plan.needs_work and plan.verdict is None]

    def batches(self, verdict: BatchVerdict) -> list[BatchPlan]:
        """Batches that were worked on and ended so."""
        return [
            plan for key, plan in sorted(self.plans.items())
            if plan.needs_work and self.verdicts[key][0] is verdict
        ]  # fmt: skip

    def replaced(self, plan: BatchPlan) -> list[str]:
        """Objects of a batch whose rows in raw are no longer right."""
        return sorted({*(d.key for d in plan.changed if d.key not in self.touched), *plan.withdrawn})


_KEYS_PER_STATEMENT = 500


def delete_objects(
    runtime: Runtime, target: str, day_column: str, key_column: str, reach: set[Slice], keys: Sequence[str],
    also: str = "TRUE",
) -> None:  # fmt: skip
    """Copy-on-write: only data files that hold rows of these objects (and meet the condition `also`) are rewritten."""
    days = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted({key.event_date for key in reach}))
    projects = ", ".join(sql_text(project) for project in sorted({key.project_id for key in reach}))
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        listed = ", ".join(map(sql_text, keys[start : start + _KEYS_PER_STATEMENT]))
        runtime.spark.sql(
            f"DELETE FROM {target} WHERE {day_column} IN ({days}) AND project_id IN ({projects}) "
            f"AND {key_column} IN ({listed}) AND {also}"
        )


def in_batches(batches: Sequence[BatchKey], source_column: str | None, day_column: str) -> Column:
    """Whether a row lies in one of these batches; `source_column` is None where a table holds one source."""
    condition = F.lit(False)
    by_project: dict[tuple[Source, str], list[date]] = {}
    for batch in batches:
        by_project.setdefault((batch.source, batch.project_id), []).append(batch.arrival_date)
    for (source, project), days in by_project.items():
        part = (F.col("project_id") == project) & F.col(day_column).isin(*days)
        condition = condition | (part if source_column is None else part & (F.col(source_column) == source.value))
    return condition
