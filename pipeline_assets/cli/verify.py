"""`tidemark verify`: the scratch tables of a replay, and its verdict for people and machines.

Contains: where a replay lies, that nothing of it stays, how its verdict looks.
Add here: how the verdict is shown.
Does not contain: replaying and comparing (inspection/verify.py), options and exit codes
(inspect.py).
"""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.domain.places import local_path
from pipeline_assets.inspection.verify import Compared, Proof, Verdict, prove, scratch_settings
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import ALL_TABLES
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.lakehouse import Lakehouse
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog


def prove_range(runtime: Runtime, first: date, last: date, projects: Sequence[str]) -> Proof:
    """Replay into scratch tables that are dropped afterwards."""
    with _scratch(runtime) as scratch:
        return prove(runtime, scratch, first, last, projects, datetime.now(UTC))


@contextmanager
def _scratch(runtime: Runtime) -> Iterator[Runtime]:
    """Tables and ledger of their own: beside the warehouse where workers must reach them, else in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="tidemark-proof-") as folder:
        is_local = local_path(runtime.settings.warehouse_url) is not None
        warehouse = f"{runtime.settings.warehouse_url.rstrip('/')}/_proof_{uuid.uuid4().hex[:8]}"
        own = scratch_settings(runtime.settings, folder, f"{folder}/warehouse" if is_local else warehouse)
        configure_catalog(runtime.spark, own)
        lakehouse = Lakehouse(runtime.spark, own.catalog_name)
        with closing(Ledger(own.ledger_database_url)) as ledger:
            try:
                yield replace(runtime, lakehouse=lakehouse, ledger=ledger, settings=own)
            finally:
                if not is_local:
                    for table in ALL_TABLES:
                        runtime.spark.sql(f"DROP TABLE IF EXISTS {lakehouse.identifier(table)} PURGE")
                    # What is left: the mark of this warehouse, and metadata that no table names any more.
                    objects = LakeObjects(warehouse)
                    for one in objects.list():
                        objects.delete(one.name)


def proof_json(proof: Proof) -> dict[str, Any]:
    """For `--json`: all that the verdict rests on; snapshot ids are text, because they exceed what JSON readers hold exactly."""
    return {
        "is_proven": proof.is_proven,
        "first": proof.first.isoformat(),
        "last": proof.last.isoformat(),
        "projects": list(proof.projects),
        "proven_at": proof.proven_at.isoformat(),
        "seconds": proof.seconds,
        "arrival_days_replayed": proof.arrivals,
        "objects_read_again": proof.objects,
        "excluded": proof.excluded,
        "snapshots": {table: str(found) for table, found in proof.snapshots.items()},
        "code_versions": dict(proof.code_versions),
        "slices": [_slice_json(one) for one in proof.slices],
    }


def _slice_json(one: Compared) -> dict[str, Any]:
    return {
        "table": one.table,
        "day": one.key.event_date.isoformat(),
        "project": one.key.project_id,
        "verdict": one.verdict.value,
        "published": str(one.published),
        "replayed": str(one.replayed),
        "reason": one.reason,
    }


def print_proof(console: Console, proof: Proof) -> None:
    """Counts per table, then every slice that is not equal, then the verdict."""
    verdicts: dict[str, Counter[Verdict]] = {}
    rows: Counter[str] = Counter()
    for one in proof.slices:
        verdicts.setdefault(one.table, Counter())[one.verdict] += 1
        rows[one.table] += one.published.rows
    table = RichTable("table", "slices", "equal", "not equal", "rows published", "snapshot", box=None, pad_edge=False)
    for name, counts in verdicts.items():
        equal = counts[Verdict.EQUAL]
        table.add_row(
            name,
            f"{counts.total():,}",
            f"{equal:,}",
            f"{counts.total() - equal:,}",
            f"{rows[name]:,}",
            str(proof.snapshots[name]),
        )
    console.print(table)
    for one in proof.slices:
        if one.verdict is not Verdict.EQUAL:
            reason = f" ({one.reason})" if one.reason else ""
            found = f" {one.table} {one.key}: published {one.published}, replayed {one.replayed}{reason}"
            console.print(line(styled(one.verdict.value, "bold red"), found))
    excluded = f", {proof.excluded} excluded by a person" if proof.excluded else ""
    how = f"{proof.objects:,} objects of {proof.arrivals} arrival days read again{excluded}, in {proof.seconds:,.0f} s"
    not_proven = styled("not proven", "bold red")
    if proof.is_proven:
        verdict, told = styled("proven", "bold green"), f"all {len(proof.slices):,} slices are equal"
    elif proof.slices:
        bad = sum(one.verdict is not Verdict.EQUAL for one in proof.slices)
        verdict, told = not_proven, f"{bad:,} of {len(proof.slices):,} slices are not equal"
    else:
        verdict, told = not_proven, "there is nothing to compare"
    console.print(line(verdict, f": {told} ({proof.first} to {proof.last}; {how})"))
