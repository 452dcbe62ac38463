"""What aggregates read of an event, computed once: user, platform, revenue, currency.

Lives here: the narrow frame. Put here: a value that several aggregates read. Keep out: how a value is read (revenue.py), grouping
(tables/), keeping the frame during a load (load_path/derived/shared_facts.py).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.named import named
from pipeline_assets.transforms.revenue import currency, may_claim_revenue, revenue, revenue_text, user


def facts(refined: DataFrame, settings: Settings) -> DataFrame:
    """One narrow row per event: event_date, project_id, event_type, platform, user, currency (string), revenue (decimal(28,6)),
    claims_revenue (boolean).

    platform is `unknown` where absent or blank; currency is null where an event has no revenue.
    """  # noqa: D205 - columns in one sentence
    may_claim = may_claim_revenue(settings)
    read = refined.select(
        "event_date",
        "project_id",
        "event_type",
        F.coalesce(named("platform"), F.lit("unknown")).alias("platform"),
        user().alias("user"),
        F.when(may_claim, revenue(settings)).alias("revenue"),
        F.when(may_claim, currency(settings)).alias("currency"),
        F.coalesce(may_claim & revenue_text(settings).isNotNull(), F.lit(False)).alias("claims_revenue"),
    )
    return read.withColumn("currency", F.when(F.col("revenue").isNotNull(), F.col("currency")))
