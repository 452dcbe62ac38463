"""aggregates.city_events: events per city, an aggregate of a team's own beside Tidemark's."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check, CheckRule, Evaluation, Totals
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn


def _build(events: DataFrame, settings: Settings) -> DataFrame:
    city = F.coalesce(F.col("city"), F.lit("unknown")).alias("city")
    return events.groupBy("event_date", "project_id", city).agg(F.count(F.lit(1)).alias("events"))


def _controls(events: DataFrame, settings: Settings) -> DataFrame:
    return events.groupBy("event_date", "project_id").agg(
        F.count(F.lit(1)).alias("events"), F.count_if(F.col("city").isNull()).alias("events_without_city")
    )


def _cities_are_known(totals: Totals) -> Evaluation:
    events, unknown = totals.control.get("events", 0), totals.control.get("events_without_city", 0)
    share = unknown / events if events else 0.0
    reason = None if share <= 0.5 else f"{unknown} of {events} events have no city"
    return Evaluation(CITIES_ARE_KNOWN, reason is None, reason, "Ask the app's team", {"share_without_city": share})


CITIES_ARE_KNOWN = CheckRule("cities_are_known", "Half of the events have a city.", evaluate=_cities_are_known)

CITY_EVENTS = AggregateTable(
    key="aggregates/city_events",
    description="Events per day, project and city.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("city", "string", "`unknown` where absent"),
        TableColumn("events", "bigint"),
    ),
    write_order=("city",),
    key_columns=("city",),
    upstream=("refined/events",),
    checks=(Check.RECONCILES_WITH_REFINED, CITIES_ARE_KNOWN, Check.CHANGE_IS_EXPLAINED),
    recovery="Recover refined/events for the day; this table follows.",
    build=_build,
    measures={"events": Measure(lambda: F.sum("events"))},
    controls=_controls,
)
