"""`replay`: a publication's own inputs give its digest; with today's inputs, each difference has its cause."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from pipeline_assets.domain.records import InputDay
from pipeline_assets.domain.slices import Slice
from pipeline_assets.inspection.replay import choose, derived_table, replay
from pipeline_assets.inspection.replay_result import Keys, Replay, ReplayBasis, ReplayResult, lines_of
from pipeline_assets.operations.rollback import RollbackRequest, roll_back
from pipeline_assets.tables.events import REGULAR_EVENTS
from resources.ledger.schema import PUBLICATIONS
from tests.support.builders import PROJECT, RAW_AND_REFINED, Pipeline, an_event, events_on, sent_again
from tests.support.shell import OfPipeline
from tests.support.upkeep import grow_old, maintained

pytestmark = pytest.mark.slow
DAY, NEXT, FAR = date(2026, 2, 2), date(2026, 2, 3), date(2026, 2, 12)
RAW, REFINED, REVENUE = "raw/regular_events", "refined/events", "aggregates/daily_revenue"
THEN, NOW = ReplayBasis.AS_PUBLISHED, ReplayBasis.CURRENT


def _replay(p: Pipeline, table: str, basis: ReplayBasis, number: int | None = None, samples: int = 0) -> Replay:
    (chosen,) = choose(p.ledger.publications(table), table, DAY, (PROJECT,), number)
    done = replay(p.runtime, derived_table(table), chosen, basis, samples)
    print("\n".join(lines_of(done)), "\n")
    return done


def _shell(p: Pipeline, *words: str) -> tuple[int, str]:
    done = OfPipeline(p)("replay", *words)
    return done.returncode, done.stdout + done.stderr


def _numbers(p: Pipeline, table: str) -> list[int]:
    return [record.number for record in p.ledger.publications(table, [PROJECT], [DAY])]


@contextmanager
def _as_an_older_version_recorded(p: Pipeline) -> Iterator[None]:
    """Publications record no snapshots and settings meanwhile."""
    kept = (PUBLICATIONS.c.id, PUBLICATIONS.c.settings, PUBLICATIONS.c.pins)
    with p.ledger.engine.begin() as connection:
        rows = connection.execute(sa.select(*kept)).mappings().all()
        connection.execute(PUBLICATIONS.update().values(settings=sa.null(), pins=sa.null()))
    yield
    with p.ledger.engine.begin() as connection:
        for row in rows:
            values = {name: row[name] for name in ("settings", "pins")}
            connection.execute(PUBLICATIONS.update().where(PUBLICATIONS.c.id == row["id"]).values(**values))


def _rewrite_without_its_last_row(path: Path) -> None:
    """The file keeps its length, so only its content tells."""
    body, table = path.read_bytes(), pq.ParquetFile(path).read()
    written = io.BytesIO()
    pq.write_table(
        table.slice(0, table.num_rows - 1), written, compression="zstd", store_schema=False, use_dictionary=False
    )
    short = written.getvalue()
    footer = len(short) - 8 - int.from_bytes(short[-8:-4], "little")
    path.write_bytes(short[:footer] + bytes(len(body) - len(short)) + short[footer:])


def _files(p: Pipeline, snapshot_id: int) -> list[Path]:
    """Files of the regular raw day as of a snapshot, the largest first."""
    key = Slice(DAY, PROJECT)
    paths = p.lakehouse.slice_files(REGULAR_EVENTS, snapshot_id, [key])[key].paths
    return sorted((Path(path.removeprefix("file:")) for path in paths), key=lambda path: -path.stat().st_size)


def test_publications_are_computed_again_and_every_difference_has_its_cause(pipeline: Any) -> None:
    """Scenario: replays after late facts, a move, a correction; other settings, a rollback, expiry, lost files.
    Outcome: kept inputs give the digest; with today's inputs each difference has its delivery or setting, key and
    measure; changed or lost inputs are named, never equal; nothing is written."""
    p: Pipeline = pipeline(only=(*RAW_AND_REFINED, REVENUE))
    p.deliver(DAY, events_on(DAY, 40))
    p.deliver(NEXT, events_on(NEXT, 40))
    run = p.must_run(DAY, NEXT)
    pins = {RAW, "raw/backfill_events"}
    assert {part.split(" ")[0] for part in run.metadata(REFINED, DAY)["built_from"].split("; ")} == pins
    late = [
        an_event(
            insert_id=f"late{n}",
            event_time=f"{DAY} 23:00:00.000000",
            server_upload_time=f"{NEXT} 09:00:00.000000",
            event_properties={"$revenue": 7, "currency": "EUR"},
        )
        for n in range(3)
    ]
    moved = sent_again(events_on(DAY, 40)[3], NEXT, to=NEXT, at="00:10", uuid="again")
    dearer = sent_again(events_on(DAY, 40)[10], NEXT, event_properties={"$revenue": 20, "currency": "EUR"})
    p.deliver(NEXT, [*late, moved], hour=12)
    p.deliver(DAY, [dearer], hour=23)
    p.must_run(DAY, NEXT)
    before = p.history(), len(p.ledger.publications())
    (first, second), (first_revenue, _) = _numbers(p, REFINED), _numbers(p, REVENUE)

    # Equal: the present and the earlier publication, and those built upon it.
    code, said = _shell(p, REFINED, str(DAY), "--as-published", "--json")
    (told,) = json.loads(said)
    assert (code, told["result"], told["publication"], told["is_standing"]) == (0, "equal", second, True)
    assert told["digest_computed"] == told["digest_on_record"] == p.digests()[REFINED][Slice(DAY, PROJECT)]
    used = {(one["table"], one["day"]): one for one in told["inputs"]}
    assert used[RAW, str(DAY)]["read_from_snapshot"] == used[RAW, str(DAY)]["snapshot_on_record"]
    assert _replay(p, REFINED, THEN, first).is_equal
    assert _replay(p, REVENUE, THEN).is_equal
    code, said = _shell(p, REFINED, str(DAY), "--current", "--project", PROJECT)
    assert (code, said.splitlines()[0]) == (0, f"{REFINED} {DAY}/{PROJECT}: equal (current)")

    # Unequal by later deliveries: each key appears once, under the delivery that decides it.
    then = _replay(p, REFINED, NOW, first, samples=3)
    assert (then.result, then.is_standing) == (ReplayResult.DIFFERS, False)
    assert then.figures == {"rows": (40, 42)}
    assert then.keys == Keys(kept=38, added=3, removed=1, changed=1)
    assert {share.cause.rpartition(":")[0]: share.keys for share in then.shares} == {
        f"regular batch that arrived {DAY}, in {RAW} {DAY}": Keys(changed=1),
        f"regular batch that arrived {NEXT}, in {RAW} {DAY}": Keys(added=3),
        f"regular batch that arrived {NEXT}, in {RAW} {NEXT} (a day near it)": Keys(removed=1),
    }
    assert [text.partition(", by")[0] for text in then.differing] == [
        f"{RAW} {DAY}: 40 rows then, 44 today",
        f"{RAW} {NEXT} (a day near it): 40 rows then, 41 today",
    ]
    (changed,) = [sample for sample in then.samples if sample.change == "changed"]
    assert changed.values["event_properties"][0] == '{"$revenue": 2.5, "currency": "EUR"}'
    revenue = _replay(p, REVENUE, NOW, first_revenue)
    assert revenue.figures["revenue"] == (10.0, 10.0 + 3 * 7 + 17.5)
    assert [(share.keys, share.figures) for share in revenue.shares] == [
        (Keys(changed=1), {"revenue": 38.5, "purchases": 3})
    ]
    assert f"publication {second} (changed {RAW})" in revenue.differing[0]

    # Unequal by a setting; the publication itself is computed by its own setting.
    p.change(dedupe_window_days=0)
    assert _replay(p, REFINED, THEN).is_equal
    of_setting = _replay(p, REFINED, NOW)
    assert of_setting.settings == {"dedupe_window_days": (1, 0)}
    assert [(share.cause, share.keys) for share in of_setting.shares] == [
        ("setting dedupe_window_days: 1 -> 0", Keys(kept=42, added=1))
    ]
    with _as_an_older_version_recorded(p):
        unknown = _replay(p, REFINED, THEN)
    assert (unknown.result, unknown.keys) == (ReplayResult.DIFFERS, Keys(kept=42, added=1))
    assert unknown.causes[0].startswith("settings: those of then are not on record")
    p.change(dedupe_window_days=1)
    assert (p.history(), len(p.ledger.publications())) == before

    # Rolled back: the first publication with its inputs.
    roll_back(p.runtime, RollbackRequest((REFINED,), (PROJECT,), DAY, NEXT, first, "why", "run-back"))
    back = _replay(p, REFINED, THEN)
    assert back.is_equal
    assert back.publication.cause.text == "rollback"

    # Expired snapshots: content that another snapshot holds serves, other content is gone.
    pinned = p.lakehouse.head(REGULAR_EVENTS)
    p.deliver(FAR, events_on(FAR, 5))
    p.must_run(FAR, tables=[RAW])
    grow_old(p)
    maintained(p)
    gone = _replay(p, REFINED, THEN, first)
    assert (gone.result, gone.replayed) == (ReplayResult.IMPOSSIBLE, None)
    assert "has expired, and no snapshot that is kept is known to have these rows" in gone.causes[0]
    assert _replay(p, REFINED, NOW, first).notes[0].startswith("what each input makes of the difference cannot be told")
    elsewhere = _replay(p, REFINED, THEN, second)
    assert elsewhere.is_equal
    (own,) = [one for one in elsewhere.inputs if one.day == InputDay(RAW, DAY)]
    assert (own.pin, own.read_from) == (pinned, p.lakehouse.head(REGULAR_EVENTS))
    assert own.pin != own.read_from
    assert f"(not read from snapshot {pinned})" in str(own)

    (path, *_) = _files(p, p.lakehouse.head(REGULAR_EVENTS))
    _rewrite_without_its_last_row(path)
    tampered = _replay(p, REFINED, THEN, second)
    assert tampered.result is ReplayResult.DIFFERS
    assert f"input {RAW} {DAY} is not what it was" in tampered.causes[0]
    assert "lost rows: 43 of 44 are left" in tampered.causes[0]
    path.unlink()
    code, said = _shell(p, REFINED, str(DAY), "--as-published", "--publication", str(second))
    assert code == 1
    assert "cannot be replayed" in said
    assert path.name in said
    assert "fix: Restore the files" in said
