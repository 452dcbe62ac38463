"""Settings: every value with its type, default, meaning and what makes it wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.json_members import property_path
from pipeline_assets.domain.machine import default_object_bytes, is_on_this_machine
from pipeline_assets.domain.masking import MASK, URL_SETTINGS, is_secret_name, receiver_place, remember, shown
from pipeline_assets.domain.places import (
    METRICS_SUFFIX,
    is_private_address,
    is_rest_catalog,
    is_web_address,
    local_path,
    refusal_of_web_address,
    require_one_question,
    require_supported_catalog,
    require_supported_database,
    require_supported_place,
)
from pipeline_assets.domain.slices import Source

ENV_PREFIX = "TIDEMARK_"
PROJECT_ROOT = Path(__file__).resolve().parents[2]
PROJECT_NAME = "tidemark-pipeline"


@cache
def is_clone(root: Path = PROJECT_ROOT) -> bool:
    """Whether Tidemark runs from a clone of its repository; reads `pyproject.toml`, so an import does not ask."""
    # Other packages may leave a file of that name beside the installed ones.
    project = root / "pyproject.toml"
    return project.is_file() and f'\nname = "{PROJECT_NAME}"\n' in project.read_text("utf-8", errors="replace")


_LARGEST_PROJECT = (1 << 63) - 1


class Completeness(StrEnum):
    """How an hour of a regular export is known to be all there."""

    MARKERS = "markers"
    """The exporter writes a marker."""
    QUIET = "quiet"
    """It writes none: nothing new came for `quiet_minutes`."""


class ShippedCode(StrEnum):
    """How the workers of a cluster get our code."""

    ARCHIVE = "archive"
    """Each session sends it; workers need Python and the locked packages."""
    INSTALLED = "installed"
    """It is installed on every worker, as on the driver."""


class MissingSnapshot(StrEnum):
    """What happens to a day's events if its snapshot misses the deadline; none joins them with today's items."""

    WAIT = "wait"
    """They wait for the snapshot."""
    PREVIOUS = "previous"
    """They are joined with the latest earlier snapshot, and the day's check names it."""
    REFUSE = "refuse"
    """Their day is refused, so that an operator looks into it."""


class ChangeBound(BaseModel):
    """How far one measure of a table's final slices may change, as a share; a missing side uses the default bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shrink: float | None = Field(default=None, ge=0)
    growth: float | None = Field(default=None, ge=0)


KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED = "keys_added", "keys_removed", "keys_changed"
"""Measures of a slice's key changes, as shares of the keys it had before."""


def require_named_bounds(bounds: Mapping[str, ChangeBound]) -> None:
    """Raise ValueError for a name that is not `table:measure`, or a bound that sets no usable limit."""
    for name, bound in bounds.items():
        if not re.fullmatch(r"[a-z_]+/[a-z_]+:[a-z_]+", name):
            msg = f"{name!r} is not `table:measure`, such as refined/events:rows"
            raise ValueError(msg)
        is_of_keys = name.partition(":")[2] in (KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED)
        if bound == ChangeBound() or (is_of_keys and bound.shrink is not None):
            msg = f"{name!r} needs {'growth' if is_of_keys else 'shrink, growth or both'}, as a share"
            raise ValueError(msg)


def _split_comma_list(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


_Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_comma_list)]


def _keeping(rule: Callable[[Any], object], *names: str) -> Any:
    """A validator of these settings, which a rule refuses by a ValueError."""

    def checked(value: Any) -> Any:
        if value is not None:
            rule(value)
        return value

    return field_validator(*names)(checked)


def _require_plain_projects(value: tuple[str, ...]) -> None:
    for project in value:
        if not re.fullmatch(r"[1-9][0-9]{0,18}", project) or int(project) > _LARGEST_PROJECT:
            # Events carry their project as a 64-bit number, which no other text would ever equal in one way only.
            msg = f"project {project[:30]!r} is not a vendor project id (a number from 1 to 2^63-1, without leading zeros)"
            raise ValueError(msg)
    if len(set(value)) != len(value):
        msg = "a project is named twice"
        raise ValueError(msg)


def _require_reachable_owners(value: tuple[str, ...]) -> None:
    for owner in value:
        if not re.fullmatch(r"team:[\w.-]+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", owner):
            msg = f"owner {owner!r} is neither an e-mail address nor team:name"
            raise ValueError(msg)


def _require_collected_file(value: Path) -> None:
    if value.suffix != METRICS_SUFFIX:
        msg = f"it does not end in {METRICS_SUFFIX}: the textfile collector of node_exporter reads no other files"
        raise ValueError(msg)


def _require_every_source_once(value: tuple[Source, ...]) -> None:
    if sorted(value) != sorted(Source):
        msg = "name each of regular and backfill once"
        raise ValueError(msg)


def _require_ranged_query(value: str) -> None:
    if not (":first_day" in value and ":last_day" in value):
        msg = "it does not name :first_day and :last_day, so that it would read all of a history each time"
        raise ValueError(msg)
    require_one_question(value)


def _require_reachable_repository(value: str) -> None:
    if not is_web_address(value):
        # It is not repeated: a mirror may ask for a password.
        msg = "is not http:// or https:// with a host"
        raise ValueError(msg)


def _require_plain_server(value: str) -> None:
    # What is wrong is not repeated: it may hold a key.
    if not re.fullmatch(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?", value):
        msg = (
            "it is not https://host[:port][/path]; keys belong to TIDEMARK_EXPORT_KEY_{project} and "
            "TIDEMARK_EXPORT_SECRET_{project}"
        )
        raise ValueError(msg)
    if not is_private_address(value):
        msg = "it is http:// and not of this machine, so that keys would travel in the clear; write https://"
        raise ValueError(msg)
    refusal = refusal_of_web_address(value)
    if refusal is not None:
        msg = f"it {refusal}"
        raise ValueError(msg)


class Settings(BaseSettings):
    """All that a deployment may change; the defaults run on one machine with no server, below `./data`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True)

    landing_url: str = "data/landing"
    """Where the vendor drops exports: a path, `file://` or `s3://bucket[/prefix]`."""
    warehouse_url: str = "data/warehouse"
    """Where table files live: a path, `file://` or `s3://bucket[/prefix]`."""
    catalog_url: str = "sqlite:///data/catalog.db"
    """SQLAlchemy URL of the Iceberg catalog: `sqlite:////abs/catalog.db` or `postgresql://…`."""
    ledger_url: str | None = None
    """SQLAlchemy URL of the ledger; the catalog's unless set."""
    sqlite_on_shared_disk: _Names = ()
    """Types of shared file systems (nfs4, virtiofs, …) on which SQLite files may lie, as no other machine opens them."""
    catalog_transactions: bool = False
    """Whether a REST catalog commits several tables at once, all or none: what its own documentation says of
    `POST /v1/{prefix}/transactions/commit`."""
    catalog_name: str = Field("lake", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """How Spark and PyIceberg call the catalog; part of statements."""

    projects: _Names = ()
    """The vendor's project ids, a comma list in the environment."""
    sparse_projects: _Names = ()
    """Those of them that are often silent: a day whose deadline passes without any delivery is empty, not refused."""
    calendar_start: date = date(2026, 1, 1)
    """First day Dagster has a partition for; earlier event days are loaded, and only counted there."""

    first_arrival: date | None = None
    """From which arrival day on deliveries are awaited; unless set, the earliest that does not lie alone before the others."""

    owners: _Names = ("team:data-engineering",)
    """Whom Dagster names for every asset: e-mail addresses or `team:name`, a comma list in the environment."""

    notify_urls: _Names = ()
    """Webhooks that are told of changed final days and of refused ones, `https://…`, a comma list in the environment; `http://`
    of this machine alone."""

    extra_aggregates: _Names = ()
    """Aggregates of your own, as `package.module:NAME`, a comma list in the environment (docs/extending.md)."""

    reprocessing_window_days: int = Field(3, ge=0, le=400)
    tolerated_missed_share: float = Field(0.005, ge=0, lt=1)
    """Of the rows of recent arrival days, the share that may arrive after the reprocessing window of their day."""
    dedupe_window_days: int = Field(1, ge=0, le=30)
    redelivery_horizon_days: int = Field(30, ge=0)
    final_after_hours: int = Field(48, ge=0)
    source_precedence: Annotated[tuple[Source, ...], NoDecode, BeforeValidator(_split_comma_list)] = (
        Source.BACKFILL,
        Source.REGULAR,
    )
    """Which source wins a tie on both vendor times, first wins; a recovery is made on purpose."""
    marker_pattern: str = "{prefix}_{date}_{hour}_complete"
    """The marker's name; the vendor does not document it."""

    hours_complete_by: Completeness = Completeness.MARKERS
    quiet_minutes: int = Field(15, ge=0)
    """How long a recovery, a changed hour, or any hour without markers must rest before a sensor loads it."""
    load_open_days: bool = True
    """Whether sensors load the complete hours of a day that is not closed yet."""
    sensors_running: bool = False
    """Whether sensors run from the start; else an operator switches each on in the UI, once."""

    max_unreadable_objects: int = Field(0, ge=0)
    max_quarantined_share: float = Field(0.001, ge=0, le=1)
    max_object_bytes: int = Field(default_factory=default_object_bytes, ge=1)
    """An object that decompresses to more is quarantined whole; one that is listed with more is not even read."""
    max_line_bytes: int = Field(8 * 1024**2, ge=1)
    change_min_rows: int = Field(100, ge=0)
    change_max_shrink: float = Field(0.01, ge=0)
    change_max_growth: float = Field(0.20, ge=0)
    change_bounds: dict[str, ChangeBound] = {}
    """`table:measure` -> bounds of its own: `refined/events:keys_removed`, `aggregates/daily_revenue:revenue`."""
    publish_attempts: int = Field(3, ge=1)
    """How often a load rebuilds slices that another writer changed meanwhile."""

    rollback_days: int = Field(30, ge=1)
    """How far back tables can be rolled back, and read as they were; older snapshots are expired, raw rows are not."""
    quarantine_days: int = Field(90, ge=1)
    """How long refused lines are kept, from their arrival."""
    local_bytes: int = Field(256 * 1024, ge=0)
    """A load of new objects of at most so many stored bytes in all runs its steps in its own process where Spark's master is this
    machine and they read little else; 0: all steps are tasks of Spark."""
    max_orphan_share: float = Field(0.25, ge=0, le=1)
    """Where more of a table's files than this share (and more than ten) are known to no snapshot, maintenance removes none."""

    revenue_properties: _Names = ("$revenue", "revenue")
    price_properties: _Names = ("$price", "price")
    quantity_properties: _Names = ("$quantity", "quantity")
    currency_properties: _Names = ("$currency", "currency")
    event_types_without_revenue: _Names = (
        "[Amplitude] Revenue (Verified)",
        "[Amplitude] Revenue (Unverified)",
    )
    """Event types that repeat the revenue of another event; by default those that the vendor computes beside a sale."""

    item_properties: _Names = ("item_id",)
    """Event properties that name the item of an event; the first that is there does."""
    active_statuses: _Names = ("ACTIVE",)
    """Statuses of an item that count as active, as snapshots spell them."""
    extra_dimensions: _Names = ()
    """Dimensions of your own, as `package.module:NAME`, a comma list in the environment (docs/extending.md)."""
    delivered_intervals: _Names = ()
    """Dimensions whose intervals are delivered below `dimensions/{name}_validity/` and not derived from snapshots; a comma list
    in the environment."""
    missing_snapshot: MissingSnapshot = MissingSnapshot.WAIT
    """What becomes of a day's events when no snapshot of the day came by its deadline: wait, previous or refuse."""
    previous_snapshot_days: int = Field(7, ge=1, le=60)
    """With `previous`: how many days older than the events a snapshot may be."""
    snapshot_max_shrink: float = Field(0.10, ge=0)
    snapshot_max_growth: float = Field(0.50, ge=0)
    """Share of its items by which a snapshot may differ from the one before it."""
    max_snapshot_bytes: int = Field(64 * 1024**2, ge=1)
    """A snapshot of more bytes is refused unread; of one that is read a worker holds a block of items at a time."""

    export_api_url: str = "https://amplitude.com/api/2/export"
    """The vendor's Export API, from which hours are recovered; a URL without a path gets the vendor's, `/api/2/export`.
    Projects in the EU: https://analytics.eu.amplitude.com/api/2/export; `http://` of this machine alone, since keys are sent."""
    export_attempts: int = Field(6, ge=1)
    """How often a range of hours is asked for that the Export API cannot answer now."""
    export_min_free_bytes: int = Field(1024**3, ge=0)
    """A download stops where the disk would be left with less."""

    golden_tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    """By which share of a golden total a published figure may differ from it."""
    golden_absolute_tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    """By how much at least, in units of the measure."""
    golden_url: str | None = None
    """SQLAlchemy URL of a database that holds golden totals, asked `golden_query`; with a password, set the variable."""
    golden_query: str | None = None
    """Gives day, project, measure and value of the days from :first_day to :last_day."""

    days_per_run: int = Field(30, ge=1)
    """Largest number of days one run of a range backfill loads."""
    spark_master: str = "local[*]"
    spark_driver_memory: str = "2g"
    spark_config: dict[str, str] = {}
    """Further Spark settings, winning over Tidemark's own, but for the zone: UTC."""
    spark_ship_code: ShippedCode = ShippedCode.ARCHIVE
    """How the workers of a cluster get Tidemark's code and that of extra tables: archive (sent) or installed."""
    spark_shared_disk: bool = False
    """Whether the workers of a cluster see this machine's folders under the same paths: else both places are buckets."""
    jars_dir: Path | None = None
    """Where the jars of Spark lie; unset: in a clone `.jars` beside the code, else a cache of the user's."""
    jars_url: str = "https://repo1.maven.org/maven2"
    """The Maven repository that jars are fetched from; whatever it sends has to have the pinned sha256."""
    health_report: Path = Path("data/health_report.html")
    """Where the asset `ops/health_report` writes its page."""
    metrics_file: Path | None = None
    """Where every run writes figures for Prometheus at its end, `*.prom`; None: nowhere."""

    _plain_projects = _keeping(_require_plain_projects, "projects", "sparse_projects")
    _reachable_owners = _keeping(_require_reachable_owners, "owners")
    _collected_file = _keeping(_require_collected_file, "metrics_file")
    _every_source_once = _keeping(_require_every_source_once, "source_precedence")
    _ranged_query = _keeping(_require_ranged_query, "golden_query")
    _reachable_repository = _keeping(_require_reachable_repository, "jars_url")
    _plain_server = _keeping(_require_plain_server, "export_api_url")
    _readable_properties = _keeping(
        lambda names: [property_path(name) for name in names],
        *("revenue_properties", "price_properties", "quantity_properties", "currency_properties", "item_properties"),
    )
    _named_bounds = _keeping(require_named_bounds, "change_bounds")
    _supported_scheme = _keeping(require_supported_place, "landing_url", "warehouse_url")
    _supported_catalog = _keeping(require_supported_catalog, "catalog_url")
    _supported_database = _keeping(require_supported_database, "ledger_url", "golden_url")

    @field_validator("notify_urls")
    @classmethod
    def _reachable_receivers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for number, url in enumerate(value, 1):
            refusal = refusal_of_web_address(url)
            if refusal is not None:
                # The address is not repeated: its path opens the webhook.
                msg = f"address {number} of {len(value)} {refusal}"
                raise ValueError(msg)
        return tuple(dict.fromkeys(value))

    @model_validator(mode="after")
    def _whole(self) -> Self:
        unknown = sorted(set(self.sparse_projects) - set(self.projects))
        if unknown:
            msg = f"sparse_projects names {unknown[0]}, which is not among projects"
            raise ValueError(msg)
        if self.ledger_url is None and is_rest_catalog(self.catalog_url):
            msg = "ledger_url: a REST catalog holds no ledger; name a database of the ledger's own"
            raise ValueError(msg)
        if self.ledger_url is None:
            object.__setattr__(self, "ledger_url", self.catalog_url)
        if self.catalog_transactions and not is_rest_catalog(self.catalog_url):
            msg = (
                "catalog_transactions is of a REST catalog; into a database a load publishes in one transaction where it holds "
                "the ledger too (ledger_url)"
            )
            raise ValueError(msg)
        if (self.golden_url is None) != (self.golden_query is None):
            msg = "golden_url and golden_query are set together: where to ask, and what"
            raise ValueError(msg)
        remember({name: getattr(self, name) for name in (*URL_SETTINGS, "spark_config", "notify_urls")})
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What a log or a debugger shows."""
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
        """Environment over what `load_settings` read from the file."""
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
        """The share by which a measure may shrink, and grow; of keys the share that may be added, removed, changed."""
        own = self.change_bounds.get(f"{table}:{measure}", ChangeBound())
        return (
            self.change_max_shrink if own.shrink is None else own.shrink,
            own.growth
            if own.growth is not None
            else self.change_max_shrink
            if measure == KEYS_REMOVED
            else self.change_max_growth,
        )

    def is_of_machine(self, name: str) -> bool:
        """Whether nobody set a value that differs between machines: nothing on record may depend on it."""
        derived = type(self).model_fields[name].default_factory is default_object_bytes
        return derived and name not in self.model_fields_set

    @property
    def ledger_database_url(self) -> str:
        """The ledger's SQLAlchemy URL."""
        return self.ledger_url or self.catalog_url


_OF_EXECUTORS = "spark.executorEnv."


def require_cluster_settings(settings: Settings) -> None:
    """Raise SettingsError for places that a cluster's workers cannot see, and for secrets that its pages would show."""
    if is_on_this_machine(settings.spark_master):
        return
    for name in ("landing_url", "warehouse_url"):
        if local_path(getattr(settings, name)) is not None and not settings.spark_shared_disk:
            raise SettingsError(
                name,
                "is a folder of this machine, while spark_master names a cluster",
                "Write s3://bucket[/prefix]; where each worker has that folder under the same path, set spark_shared_disk = true",
            )
    for name in settings.spark_config:
        if name.startswith(_OF_EXECUTORS) and is_secret_name(name):
            # A standalone worker's page shows the environment of its executors, and Kubernetes that of its pods.
            raise SettingsError(
                f"spark_config: {name}",
                "is a secret that the cluster's own pages show",
                "Give workers a role, or the variable in their own environment: docs/clusters.md",
            )
