"""The columns of an event that aggregates read, computed once: user, platform, revenue, currency."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.named import named
from pipeline_assets.transforms.revenue import with_money
from pipeline_assets.transforms.users import user


def narrow_events(refined: DataFrame, settings: Settings) -> DataFrame:
    """One narrow row per event: event_date, project_id, event_type, platform, user, currency (string), revenue (decimal(28,6)),
    claims_revenue (boolean).

    platform is `unknown` if absent or blank; currency is null if an event has no revenue.
    """  # noqa: D205 - columns in one sentence
    events = refined.select(
        "event_date",
        "project_id",
        "event_type",
        F.coalesce(named("platform"), F.lit("unknown")).alias("platform"),
        user().alias("user"),
        "event_properties",
    )
    return with_money(events, settings).drop("event_properties")
