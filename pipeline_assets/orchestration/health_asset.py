"""The asset `ops/health_report`: the health page in the deployment's data folder, and the job that writes it."""

# Dagster reads the op's annotations as types, so they are not postponed here.

import dagster as dg

from pipeline_assets.domain.errors import TidemarkError, TransientError
from pipeline_assets.domain.masking import tellable
from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.health.report import HealthReport, read_health
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.event_text import markdown_table
from resources.ledger.store import own_ledger

REPORT_KEY = dg.AssetKey(["ops", "health_report"])
JOB_NAME = "health_report"
_DESCRIPTION = """One page that shows how everything stands: days x tables, figures, revisions of published numbers, and
what waits for a person with the command that answers it.

**It has no partitions**, and no table depends on it: the page is drawn from the ledger, without Spark, whenever the asset is
materialized. `tidemark report --out FILE` draws the same page."""


def health_asset(settings: Settings) -> dg.AssetsDefinition:
    """Return the asset; it is part of no load, pool, sensor or backfill."""

    @dg.asset(
        key=REPORT_KEY,
        config_schema={},
        description=_DESCRIPTION,
        owners=settings.owners,
        group_name="ops",
        kinds={"html"},
        tags={"layer": "ops"},
        metadata={"dagster/uri": settings.health_report.absolute().as_uri()},
    )
    def health_report(clock: dg.ResourceParam[Clock]) -> dg.MaterializeResult[None]:
        from pipeline_assets.orchestration.health_page.page import write_page  # noqa: PLC0415 - charts' library makes folders
        from pipeline_assets.orchestration.health_page.tiles import tiles  # noqa: PLC0415 - as above

        try:
            with own_ledger(settings) as ledger:
                report = read_health(ledger, settings, clock.now())
            path = write_page(report, settings.health_report)
        except TransientError as error:
            raise dg.RetryRequested(max_retries=2, seconds_to_wait=10) from tellable(error)
        except TidemarkError as error:
            raise dg.Failure(str(error), allow_retries=False) from tellable(error)
        return dg.MaterializeResult(
            metadata={
                "page": dg.MetadataValue.url(path.as_uri()),
                "file": dg.MetadataValue.path(path),
                "waits_for_a_person": report.waiting,
                "red_days": len({one.day for one in report.calendar.red}) if report.calendar is not None else 0,
                "revisions": len(report.revisions),
                "figures": markdown_table(("", "", ""), [(tile.name, tile.value, tile.note) for tile in tiles(report)]),
                **_answers(report),
            }
        )

    return health_report


def _answers(report: HealthReport) -> dict[str, dg.MarkdownMetadataValue]:
    rows = [
        (f"{one.first} to {one.last}", ", ".join(one.tables), one.reason, one.commands[-1])
        for one in report.for_a_person
    ]
    rows += [("", f"notices to {one.place}", one.reason, one.command or one.hint) for one in report.troubles]
    rows += [("", one.origin, one.reason, one.hint) for one in report.golden_faults]
    return {"what waits": markdown_table(("days", "tables", "reason", "answer"), rows)} if rows else {}


def health_job() -> "dg.UnresolvedAssetJobDefinition":
    """Return the job that writes the page."""
    selection = dg.AssetSelection.assets(REPORT_KEY)
    return dg.define_asset_job(JOB_NAME, selection=selection, description="Draw the page of health from the ledger.")
