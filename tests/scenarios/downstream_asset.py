"""A report below Tidemark's tables that runs for good days only."""

import dagster as dg
import pyspark.sql.functions as F
from dagster_pyspark import LazyPySparkResource

from pipeline_assets.config import load_settings
from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.settings import Settings
from pipeline_assets.orchestration.specs import calendar
from resources.spark.session import configure_catalog

DAILY_REVENUE = dg.AssetKey(["aggregates", "daily_revenue"])
REVENUE_REPORT = dg.AssetKey(["reports", "revenue_report"])

# A day is due when this asset never ran for it, or when what was published for it has other content than before.
IS_DUE = dg.AutomationCondition.newly_missing() | dg.AutomationCondition.any_deps_match(
    dg.AutomationCondition.data_version_changed()
)
# A due day stays due until it is requested; one that changes right after that is due once more.
GOOD_DAYS = (
    IS_DUE.since(dg.AutomationCondition.newly_requested() & ~IS_DUE)
    & dg.AutomationCondition.all_deps_blocking_checks_passed()
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.in_progress()
)


def reports(settings: Settings) -> dg.Definitions:
    """The report, and the sensor that requests it."""

    @dg.asset(
        key=REVENUE_REPORT,
        deps=[DAILY_REVENUE],
        partitions_def=calendar(settings),
        automation_condition=GOOD_DAYS,
        group_name="reports",
        pool="reports",
    )
    def revenue_report(context: dg.AssetExecutionContext, spark: LazyPySparkResource) -> dg.MaterializeResult:
        """Revenue of a day per currency, all projects together."""
        session = spark.spark_session
        configure_catalog(session, settings)
        day = F.lit(context.partition_key).cast("date")
        rows = (
            session.table(f"{settings.catalog_name}.aggregates.daily_revenue")
            .where(F.col("event_date") == day)
            .groupBy("currency")
            .agg(F.sum("revenue").alias("revenue"))
            .collect()
        )
        # Put the result where it is needed. Replace the whole day, because a day may run again.
        return dg.MaterializeResult(metadata={f"revenue_{row.currency}": float(row.revenue) for row in rows})

    return dg.Definitions(
        assets=[revenue_report],
        sensors=[
            dg.AutomationConditionSensorDefinition(
                "reports_automation",
                target=dg.AssetSelection.groups("reports"),
                default_status=dg.DefaultSensorStatus.RUNNING,
            )
        ],
    )


def with_tidemark(settings: Settings) -> dg.Definitions:
    """The report and Tidemark in one code location."""
    return dg.Definitions.merge(build_defs(settings), reports(settings))


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads."""
    return with_tidemark(load_settings())
