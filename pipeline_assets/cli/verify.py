"""Output of `tidemark verify`: the result of a replay, as tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.inspection.scratch import replay_runtime
from pipeline_assets.inspection.verify import Compared, Proof, ReplayMatch, prove
from pipeline_assets.load.runtime import Runtime


def prove_range(runtime: Runtime, first: date, last: date, projects: Sequence[str]) -> Proof:
    """Replay a range into scratch tables that are dropped afterwards; returns the proof."""
    with replay_runtime(runtime) as scratch:
        return prove(runtime, scratch, first, last, projects, datetime.now(UTC))


def proof_json(proof: Proof) -> dict[str, Any]:
    """Return the proof for `--json`, with its evidence; snapshot ids are text, as JSON readers cannot hold them exactly."""
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
        "snapshots": {table: str(snapshot_id) for table, snapshot_id in proof.snapshots.items()},
        "code_versions": dict(proof.code_versions),
        "slices": [_slice_json(compared) for compared in proof.slices],
    }


def _slice_json(compared: Compared) -> dict[str, Any]:
    return {
        "table": compared.table,
        "day": compared.key.event_date.isoformat(),
        "project": compared.key.project_id,
        "verdict": compared.match.value,
        "published": str(compared.published),
        "replayed": str(compared.replayed),
        "reason": compared.reason,
    }


def print_proof(console: Console, proof: Proof) -> None:
    """Print counts per table, then every slice that differs, then the verdict."""
    matches: dict[str, Counter[ReplayMatch]] = {}
    rows: Counter[str] = Counter()
    for compared in proof.slices:
        matches.setdefault(compared.table, Counter())[compared.match] += 1
        rows[compared.table] += compared.published.rows
    table = RichTable("table", "slices", "equal", "not equal", "rows published", "snapshot", box=None, pad_edge=False)
    for name, counts in matches.items():
        equal = counts[ReplayMatch.EQUAL]
        figures = [f"{number:,}" for number in (counts.total(), equal, counts.total() - equal, rows[name])]
        table.add_row(name, *figures, str(proof.snapshots[name]))
    console.print(table)
    unequal = [compared for compared in proof.slices if compared.match is not ReplayMatch.EQUAL]
    for compared in unequal:
        reason = f" ({compared.reason})" if compared.reason else ""
        digests = f"published {compared.published}, replayed {compared.replayed}"
        text = f" {compared.table} {compared.key}: {digests}{reason}"
        console.print(line(styled(compared.match.value, "bold red"), text))
    excluded = f", {proof.excluded} excluded by operators" if proof.excluded else ""
    how = f"{proof.objects:,} objects of {proof.arrivals} arrival days read again{excluded}, in {proof.seconds:,.0f} s"
    result = styled("proven", "bold green") if proof.is_proven else styled("not proven", "bold red")
    if proof.is_proven:
        summary = f"all {len(proof.slices):,} slices are equal"
    elif proof.slices:
        summary = f"{len(unequal):,} of {len(proof.slices):,} slices are not equal"
    else:
        summary = "there is nothing to compare"
    console.print(line(result, f": {summary} ({proof.first} to {proof.last}; {how})"))
