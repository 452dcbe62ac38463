"""Compare published events with a list of keys or with another table of events, key by key."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.key_list import KeyList
from pipeline_assets.load.build.builder import kept
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms import digests
from pipeline_assets.transforms.event_hashes import KEY

EVENT_TABLES: dict[str, Table] = {table.key: table for table in (REFINED_EVENTS, *RAW_TABLES.values())}
ALIASES = {source.value: RAW_TABLES[source].key for source in Source}


@dataclass(frozen=True)
class KeyRange:
    """The projects and event days to compare."""

    projects: tuple[str, ...]
    first: date
    last: date


@dataclass(frozen=True)
class KeyComparison:
    """The result of comparing the keys of two sides."""

    here: str
    there: str
    range: KeyRange
    counts: dict[tuple[str, date | None, str], int] = field(default_factory=dict)
    """(project, day, state) -> number of keys; the day is None for a list without days."""
    samples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    nameless: int = 0
    """Uncompared rows of the table, without the ids that the list uses."""
    outside: int = 0
    faults: tuple[str, ...] = ()
    faulty_lines: int = 0

    def total(self, state: str) -> int:
        """Number of keys in a state."""
        return sum(count for (_, _, of), count in self.counts.items() if of == state)

    @property
    def is_good(self) -> bool:
        """Whether both sides hold the same keys, at least one, and every line of a list was readable."""
        differing = sum(self.total(state) for state in digests.STATES if state != digests.SAME)
        return bool(self.total(digests.SAME)) and not differing and not self.faulty_lines

    @property
    def lacking(self) -> dict[Slice, bool]:
        """Slice with differing keys -> whether the table lacks any; a key without a day counts for every day of the range."""
        found: dict[Slice, bool] = {}
        span = (self.range.last - self.range.first).days
        for project, day, state in self.counts:
            if state == digests.SAME:
                continue
            days = [day] if day is not None else [self.range.first + timedelta(days=shift) for shift in range(span + 1)]
            for one in days:
                key = Slice(one, project)
                found[key] = found.get(key, False) or state in (digests.ONLY_THERE, digests.FEWER_HERE)
        return found


def event_table(name: str) -> Table:
    """The event table with this key, or the raw table of this source; raises UsageError for any other name."""
    table = EVENT_TABLES.get(ALIASES.get(name, name))
    if table is None:
        known = ", ".join((*EVENT_TABLES, *ALIASES))
        raise UsageError(name, "is not a table of events, whose keys could be compared", f"There are {known}")
    return table


def compare_with_list(
    runtime: Runtime, table: Table, asked: KeyRange, name: str, listed: KeyList, samples: int
) -> KeyComparison:
    """Compare the table's events with a list of keys; raises UsageError if the list does not tell the project of its keys."""
    if not listed.has_projects and len(asked.projects) > 1:
        hint = f"Name one project (--project {asked.projects[0]}), or add the column project"
        raise UsageError(name, "does not say of which project its keys are", hint)
    rows = _list_frame(runtime, listed, asked)
    in_range = F.col("project_id").isin(*asked.projects)
    if listed.has_days:
        in_range &= F.col("event_date").between(F.lit(asked.first), F.lit(asked.last))
    chosen = rows.where(in_range)
    here = digests.by_ids(_events(runtime, table, asked), listed.columns, has_days=listed.has_days)
    there = digests.by_ids(chosen, listed.columns, has_days=listed.has_days)
    of_range = F.col("event_date").between(F.lit(asked.first), F.lit(asked.last))
    nameless = here.where(F.col("_id").isNull() & of_range).count()
    is_counted = are_rows_counted(table, listed)
    found = digests.presence(
        here.where("_id IS NOT NULL"), there, digests.BY_ID, asked.first, asked.last, is_counted=is_counted
    )
    outside = len(listed.rows) - chosen.count()
    counts, shown = _counted(found, samples)
    return KeyComparison(
        table.key, name, asked, counts, shown, nameless, outside, tuple(listed.faults), listed.faulty_lines
    )


def are_rows_counted(table: Table, listed: KeyList) -> bool:
    """Whether a key needs a row per line of the list; not without senders, as one id may name several events, nor in raw."""
    return table.kind.has_row_per_event and not listed.has_senders


def compare_tables(runtime: Runtime, table: Table, other: Table, asked: KeyRange, samples: int) -> KeyComparison:
    """Compare the events of two tables by event key; keys differ where no row on the other side has the same content."""
    if table.key == other.key:
        raise UsageError(other.key, "would be compared with itself", f"There are {', '.join(EVENT_TABLES)}")
    sides = [digests.by_event_key(_events(runtime, one, asked)) for one in (table, other)]
    counts, shown = _counted(digests.presence(sides[0], sides[1], KEY, asked.first, asked.last), samples)
    return KeyComparison(table.key, other.key, asked, counts, shown)


def _events(runtime: Runtime, table: Table, asked: KeyRange) -> DataFrame:
    """Events of the range and of the days around it, as an event's winner may lie on a neighbouring day."""
    window = timedelta(days=runtime.settings.dedupe_window_days)
    return runtime.lakehouse.read(table, runtime.lakehouse.head(table)).where(
        F.col("project_id").isin(*asked.projects)
        & F.col("event_date").between(F.lit(asked.first - window), F.lit(asked.last + window))
    )


def _list_frame(runtime: Runtime, listed: KeyList, asked: KeyRange) -> DataFrame:
    columns = {
        name: pa.array([row[number] for row in listed.rows], pa.string()) for number, name in enumerate(listed.columns)
    }
    frame = runtime.spark.createDataFrame(pa.table(columns))
    project = F.col("project") if listed.has_projects else F.lit(asked.projects[0])
    day = F.col("event_date").cast("date") if listed.has_days else F.lit(None).cast("date")
    return frame.withColumns({"project_id": project, "event_date": day})


def _counted(
    found: DataFrame, samples: int
) -> tuple[dict[tuple[str, date | None, str], int], dict[str, tuple[str, ...]]]:
    with kept(found):
        counts = {
            (row["project_id"], row["day"], row["state"]): row["count"]
            for row in found.groupBy("project_id", "day", "state").count().collect()
        }
        shown = {}
        for state in (state for state in digests.STATES if state != digests.SAME):
            rows = found.where(F.col("state") == state).orderBy("day", "project_id", "name").limit(samples).collect()
            shown[state] = tuple(f"{row['day'] or 'no day'}/{row['project_id']} {row['name']}" for row in rows)
    return counts, {state: names for state, names in shown.items() if names}
