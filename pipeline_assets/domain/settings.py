"""Settings: every value with its type, its default and the rule that refuses a bad one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from pipeline_assets.domain import places
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.json_members import property_path
from pipeline_assets.domain.machine import default_object_bytes, is_on_this_machine
from pipeline_assets.domain.masking import MASK, URL_SETTINGS, is_secret_name, receiver_place, remember, shown
from pipeline_assets.domain.slices import Source

ENV_PREFIX = "TIDEMARK_"
PROJECT_ROOT = Path(__file__).resolve().parents[2]
KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED = "keys_added", "keys_removed", "keys_changed"
"""Key changes of a slice, as shares of the keys it had before."""
MOST_CHANGED_KEYS = 0.20
"""Share of a final slice's keys whose content may change, however far the slice may grow."""
_LARGEST_PROJECT = (1 << 63) - 1


@cache
def is_clone(root: Path = PROJECT_ROOT) -> bool:
    """Whether Tidemark runs from a clone of its repository; it reads `pyproject.toml`, so no import calls it."""
    # Other packages may leave a file of that name beside the installed ones.
    project = root / "pyproject.toml"
    return project.is_file() and '\nname = "tidemark-pipeline"\n' in project.read_text("utf-8", errors="replace")


class Completeness(StrEnum):
    """How an hour of a regular export is known to be complete."""

    MARKERS = "markers"
    QUIET = "quiet"
    """The exporter writes none: no object arrived for `quiet_minutes`."""


class ShippedCode(StrEnum):
    """How the workers of a cluster get our code."""

    ARCHIVE = "archive"
    INSTALLED = "installed"


class MissingSnapshot(StrEnum):
    """Treatment of a day's events if its snapshot misses the deadline."""

    WAIT = "wait"
    PREVIOUS = "previous"
    """They join the latest earlier snapshot, and the day's check names it."""
    REFUSE = "refuse"


class ChangeBound(BaseModel):
    """How far one measure of a final slice may change, as a share; a missing side uses the default bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shrink: float | None = Field(default=None, ge=0)
    growth: float | None = Field(default=None, ge=0)


def _split_comma_list(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


_Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_comma_list)]


class Settings(BaseSettings):
    """All that a deployment may change. `tidemark.toml` explains the settings; strings here add what it leaves out."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True)

    landing_url: str = "data/landing"
    """Where the vendor drops exports: a path, `file://` or `s3://bucket[/prefix]`."""
    warehouse_url: str = "data/warehouse"
    catalog_url: str = "sqlite:///data/catalog.db"
    """The Iceberg catalog: an SQLAlchemy URL (`sqlite:////abs/catalog.db`, `postgresql://…`) or a REST catalog's."""
    ledger_url: str | None = None
    sqlite_on_shared_disk: _Names = ()
    catalog_transactions: bool = False
    """Whether the REST catalog commits several tables at once (`POST /v1/{prefix}/transactions/commit`)."""
    catalog_name: str = Field("lake", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The catalog's name in Spark and in SQL statements."""

    projects: _Names = ()
    sparse_projects: _Names = ()
    calendar_start: date = date(2026, 1, 1)
    """First day with a partition in Dagster; events of earlier days are loaded and only counted."""
    first_arrival: date | None = None
    owners: _Names = ("team:data-engineering",)
    notify_urls: _Names = ()
    """Webhooks that receive notices of changed and refused days: `https://…`, or `http://` on this machine."""
    extra_aggregates: _Names = ()

    reprocessing_window_days: int = Field(3, ge=0, le=400)
    tolerated_missed_share: float = Field(0.005, ge=0, lt=1)
    dedupe_window_days: int = Field(1, ge=0, le=30)
    redelivery_horizon_days: int = Field(30, ge=0)
    """How far back sensors look for changed deliveries."""
    final_after_hours: int = Field(48, ge=0)
    source_precedence: Annotated[tuple[Source, ...], NoDecode, BeforeValidator(_split_comma_list)] = (
        Source.BACKFILL,
        Source.REGULAR,
    )
    marker_pattern: str = "{prefix}_{date}_{hour}_complete"

    hours_complete_by: Completeness = Completeness.MARKERS
    quiet_minutes: int = Field(15, ge=0)
    load_open_days: bool = True
    sensors_running: bool = False

    max_unreadable_objects: int = Field(0, ge=0)
    max_quarantined_share: float = Field(0.001, ge=0, le=1)
    max_object_bytes: int = Field(default_factory=default_object_bytes, ge=1)
    max_line_bytes: int = Field(8 * 1024**2, ge=1)
    change_min_rows: int = Field(100, ge=0)
    change_max_shrink: float = Field(0.01, ge=0)
    change_max_growth: float = Field(0.20, ge=0)
    change_bounds: dict[str, ChangeBound] = {}
    publish_attempts: int = Field(3, ge=1)
    """How often a load rebuilds slices that another writer changed meanwhile."""

    rollback_days: int = Field(30, ge=1)
    quarantine_days: int = Field(90, ge=1)
    max_orphan_share: float = Field(0.25, ge=0, le=1)
    local_bytes: int = Field(256 * 1024, ge=0)

    revenue_properties: _Names = ("$revenue", "revenue")
    price_properties: _Names = ("$price", "price")
    quantity_properties: _Names = ("$quantity", "quantity")
    currency_properties: _Names = ("$currency", "currency")
    event_types_without_revenue: _Names = ("[Amplitude] Revenue (Verified)", "[Amplitude] Revenue (Unverified)")

    item_properties: _Names = ("item_id",)
    active_statuses: _Names = ("ACTIVE",)
    extra_dimensions: _Names = ()
    delivered_intervals: _Names = ()
    missing_snapshot: MissingSnapshot = MissingSnapshot.WAIT
    previous_snapshot_days: int = Field(7, ge=1, le=60)
    snapshot_max_shrink: float = Field(0.10, ge=0)
    snapshot_max_growth: float = Field(0.50, ge=0)
    max_snapshot_bytes: int = Field(64 * 1024**2, ge=1)

    export_api_url: str = "https://amplitude.com/api/2/export"
    """The vendor's Export API (EU: https://analytics.eu.amplitude.com); without a path, `/api/2/export` is added."""
    export_attempts: int = Field(6, ge=1)
    export_min_free_bytes: int = Field(1024**3, ge=0)

    golden_tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    golden_absolute_tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    golden_url: str | None = None
    golden_query: str | None = None
    """Returns day, project, measure and value for the days from :first_day to :last_day."""

    days_per_run: int = Field(30, ge=1)
    """Most days of one run of a range backfill."""
    spark_master: str = "local[*]"
    spark_driver_memory: str = "2g"
    spark_config: dict[str, str] = {}
    spark_ship_code: ShippedCode = ShippedCode.ARCHIVE
    spark_shared_disk: bool = False
    """Whether a cluster's workers see this machine's folders under the same paths; otherwise places are buckets."""
    jars_dir: Path | None = None
    jars_url: str = "https://repo1.maven.org/maven2"
    health_report: Path = Path("data/health_report.html")
    metrics_file: Path | None = None

    @field_validator("*")
    @classmethod
    def _checked(cls, value: Any, info: ValidationInfo) -> Any:
        rule = _RULES.get(info.field_name or "")
        if rule is not None and value is not None:
            rule(value)
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        unknown = sorted(set(self.sparse_projects) - set(self.projects))
        is_rest = places.is_rest_catalog(self.catalog_url)
        _require(not unknown, f"sparse_projects names {', '.join(unknown)[:30]}, which is not among projects")
        _require(
            self.ledger_url is not None or not is_rest,
            "ledger_url: a REST catalog holds no ledger; name a database of the ledger's own",
        )
        if self.ledger_url is None:
            object.__setattr__(self, "ledger_url", self.catalog_url)
        _require(
            is_rest or not self.catalog_transactions,
            "catalog_transactions is for a REST catalog; with a database, a load publishes in one transaction if the "
            "database holds the ledger too (ledger_url)",
        )
        _require(
            (self.golden_url is None) == (self.golden_query is None),
            "golden_url and golden_query are set together: where to ask, and what",
        )
        remember({name: getattr(self, name) for name in (*URL_SETTINGS, "spark_config", "notify_urls")})
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Mask secrets in logs and debuggers."""
        for name, value in super().__repr_args__():
            if name in URL_SETTINGS and value is not None:
                yield name, shown(value)
            elif name == "notify_urls":
                yield name, tuple(map(receiver_place, value))
            elif name == "spark_config":
                yield name, {key: MASK if is_secret_name(key) else text for key, text in value.items()}
            else:
                yield name, value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file that `load_settings` read."""
        return env_settings, init_settings

    def require_projects(self, asked: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The asked projects, or all configured ones; raises SettingsError for none or an unknown one."""
        if not self.projects:
            raise SettingsError(
                "TIDEMARK_PROJECTS", "no project is configured", "Set it to the vendor's project ids: 10001,10002"
            )
        unknown = [project for project in asked if project not in self.projects]
        if unknown:
            raise SettingsError(
                f"project {unknown[0]}",
                f"is not among the configured projects ({', '.join(self.projects)})",
                "Add it to TIDEMARK_PROJECTS or correct the name",
            )
        return tuple(dict.fromkeys(asked)) or self.projects

    def change_bound(self, table: str, measure: str) -> tuple[float, float]:
        """The shares by which a measure may shrink and grow; for a key measure, the share of keys."""
        own = self.change_bounds.get(f"{table}:{measure}", ChangeBound())
        of_keys = {KEYS_REMOVED: self.change_max_shrink, KEYS_CHANGED: min(self.change_max_growth, MOST_CHANGED_KEYS)}
        return (
            self.change_max_shrink if own.shrink is None else own.shrink,
            of_keys.get(measure, self.change_max_growth) if own.growth is None else own.growth,
        )

    def is_of_machine(self, name: str) -> bool:
        """Whether the value is derived from this machine, so that nothing on record may depend on it."""
        derived = type(self).model_fields[name].default_factory is default_object_bytes
        return derived and name not in self.model_fields_set

    @property
    def ledger_database_url(self) -> str:
        """The ledger's SQLAlchemy URL."""
        return self.ledger_url or self.catalog_url


def _require(is_good: bool, reason: str) -> None:
    if not is_good:
        raise ValueError(reason)


def _plain_projects(value: tuple[str, ...]) -> None:
    for project in value:
        # Events carry their project as a 64-bit number.
        is_good = re.fullmatch(r"[1-9][0-9]{0,18}", project) is not None and int(project) <= _LARGEST_PROJECT
        reason = "is not a vendor project id (a number from 1 to 2^63-1, without leading zeros)"
        _require(is_good, f"project {project[:30]!r} {reason}")
    _require(len(set(value)) == len(value), "a project is named twice")


def _reachable_owners(value: tuple[str, ...]) -> None:
    for owner in value:
        is_good = re.fullmatch(r"team:[\w.-]+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", owner) is not None
        _require(is_good, f"owner {owner!r} is neither an e-mail address nor team:name")


def _reachable_receivers(value: tuple[str, ...]) -> None:
    for number, url in enumerate(value, 1):
        # The messages omit addresses, which may hold a secret.
        refusal = places.refusal_of_web_address(url)
        _require(refusal is None, f"address {number} of {len(value)} {refusal}")
    _require(len(set(value)) == len(value), "an address is named twice")


def _ranged_query(value: str) -> None:
    is_ranged = ":first_day" in value and ":last_day" in value
    _require(is_ranged, "it does not name :first_day and :last_day, so that it would read all of a history each time")
    places.require_one_question(value)


def _plain_server(value: str) -> None:
    keys = "keys belong to TIDEMARK_EXPORT_KEY_{project} and TIDEMARK_EXPORT_SECRET_{project}"
    is_plain = re.fullmatch(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?", value) is not None
    _require(is_plain, f"it is not https://host[:port][/path]; {keys}")
    refusal = places.refusal_of_web_address(value)
    _require(refusal is None, f"it {refusal}")


def _usable_bounds(bounds: Mapping[str, ChangeBound]) -> None:
    for name, bound in bounds.items():
        is_of_keys = name.partition(":")[2] in (KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED)
        is_good = bound != ChangeBound() and (not is_of_keys or bound.shrink is None)
        _require(is_good, f"{name!r} needs {'growth' if is_of_keys else 'shrink, growth or both'}, as a share")


def _readable_properties(names: tuple[str, ...]) -> None:
    for name in names:
        property_path(name)


_RULES: Mapping[str, Callable[[Any], None]] = {
    **dict.fromkeys(("landing_url", "warehouse_url"), places.require_supported_place),
    "catalog_url": places.require_supported_catalog,
    **dict.fromkeys(("ledger_url", "golden_url"), places.require_supported_database),
    **dict.fromkeys(("projects", "sparse_projects"), _plain_projects),
    "owners": _reachable_owners,
    "notify_urls": _reachable_receivers,
    "source_precedence": lambda value: _require(
        sorted(value) == sorted(Source), "name each of regular and backfill once"
    ),
    "change_bounds": _usable_bounds,
    **dict.fromkeys(
        ("revenue_properties", "price_properties", "quantity_properties", "currency_properties", "item_properties"),
        _readable_properties,
    ),
    "export_api_url": _plain_server,
    "golden_query": _ranged_query,
    "jars_url": lambda value: _require(places.is_web_address(value), "is not http:// or https:// with a host"),
    "metrics_file": lambda value: _require(
        value.suffix == places.METRICS_SUFFIX,
        f"it does not end in {places.METRICS_SUFFIX}: the textfile collector of node_exporter reads no other files",
    ),
}
"""Setting -> check that raises ValueError."""


def require_cluster_settings(settings: Settings) -> None:
    """Raise SettingsError for places that a cluster's workers cannot see, and for secrets that its pages would show."""
    if is_on_this_machine(settings.spark_master):
        return
    for name in ("landing_url", "warehouse_url"):
        if places.local_path(getattr(settings, name)) is not None and not settings.spark_shared_disk:
            raise SettingsError(
                name,
                "is a folder of this machine, while spark_master names a cluster",
                "Write s3://bucket[/prefix]; where each worker has that folder under the same path, set spark_shared_disk = true",
            )
    for name in settings.spark_config:
        if name.startswith("spark.executorEnv.") and is_secret_name(name):
            # A standalone worker's page shows its executors' environment, and Kubernetes that of its pods.
            raise SettingsError(
                f"spark_config: {name}",
                "is a secret that the cluster's own pages show",
                "Give workers a role, or the variable in their own environment: docs/clusters.md",
            )
