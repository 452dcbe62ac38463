"""The same facts of events as a DataFrame, for what Spark reads: rows of other programs' files, and tables of users."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.revenue import RevenueRule
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.event_hashes import whole
from pipeline_assets.transforms.fold import (
    FACT_TYPES,
    SOURCES,
    Folded,
    SliceFold,
    columns_of,
    event_facts,
    joined,
    shares_of,
)

_PLACE = {"event_date": "date", "project_id": "string"}
_RESULT = {"folded": "binary"}
_SHARE = {"_share": "bigint"}
_SHARES = 4_096
"""Of a slice; few events each, so that Spark can divide and join them as it likes."""
_USER = ("user_number", "user_text")


def narrow_events(events: DataFrame, settings: Settings) -> DataFrame:
    """One narrow row per event: event_date, project_id, event_type, platform, user, currency (string), revenue (decimal(28,6)),
    claims_revenue, repeats_revenue (boolean).

    platform is `unknown` if absent or blank; user has a prefix for the kind of id, and is null without any; currency is null if
    an event has no revenue. Python workers compute them, about 10 µs an event.
    """  # noqa: D205 - columns in one sentence
    number, text = F.col(_USER[0]), F.col(_USER[1])
    user = F.coalesce(F.concat(F.lit("a:"), number.cast("string")), text)
    return _facts(events, RevenueRule.of(settings), SOURCES).withColumn("user", user).drop(*_USER)


def fold_events(events: DataFrame, fold: SliceFold) -> dict[Slice, dict[str, Folded]]:
    """Slice -> key of a table -> its fold, of all events of a DataFrame with the columns of refined.events; one query.

    Spark brings all events of a share to one task, and no share of a slice has a user of another.
    """
    placed = _facts(events, fold.rule, fold.facts, _SHARES).repartition(*_PLACE, *_SHARE).drop(*_SHARE)
    folded = placed.mapInArrow(_Folding(fold), _told(_PLACE | _RESULT))
    shares: dict[Slice, list[dict[str, Folded]]] = {}
    for row in folded.collect():
        shares.setdefault(Slice(row["event_date"], row["project_id"]), []).append(pickle.loads(row["folded"]))  # noqa: S301 - our own tasks wrote it
    return {key: joined(of_slice) for key, of_slice in shares.items()}


def _types(facts: Iterable[str]) -> dict[str, str]:
    return {name: kind for fact in facts for name, kind in FACT_TYPES[fact].items()}


def _told(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def _facts(events: DataFrame, rule: RevenueRule, wanted: Collection[str], shares: int = 0) -> DataFrame:
    facts = tuple(fact for fact in FACT_TYPES if fact in wanted)
    read = events.select(*dict.fromkeys((*_PLACE, *columns_of(facts))))
    types = _PLACE | _types(facts) | (_SHARE if shares else {})
    return read.mapInArrow(_Narrowing(rule, facts, shares), _told(types))


@dataclass(frozen=True)
class _Narrowing:
    rule: RevenueRule
    facts: tuple[str, ...]
    shares: int
    """To tell the share of each event; 0 to tell none."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            facts = event_facts(pa.Table.from_batches([batch]), self.rule, self.facts)
            columns = {name: batch[name] for name in _PLACE}
            columns |= {name: whole(facts[name]) for name in facts.column_names}
            columns |= {name: pa.array(shares_of(facts, self.shares)) for name in _SHARE if self.shares}
            yield pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True)
class _Folding:
    fold: SliceFold

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: dict[tuple[date, str], list[pa.Table]] = {}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for place in rows.group_by(list(_PLACE)).aggregate([]).to_pylist():
                is_there = [pc.equal(rows[name], pa.scalar(place[name], rows[name].type)) for name in _PLACE]
                own = rows.filter(pc.and_(*is_there)).drop_columns(list(_PLACE))
                parts.setdefault((place["event_date"], place["project_id"]), []).append(own)
        for (day, project), facts in parts.items():
            folded = pickle.dumps(self.fold.of(facts))
            yield pa.RecordBatch.from_arrays(
                [pa.array([day], pa.date32()), pa.array([project], pa.string()), pa.array([folded], pa.binary())],
                names=[*_PLACE, *_RESULT],
            )
