"""The warehouse's mark: which lake lies in it, in which place, and the one catalog and the one ledger that belong to it."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy.engine import URL, make_url

from pipeline_assets.domain.errors import NEWER_TIDEMARK, LakehouseError
from pipeline_assets.domain.places import is_rest_catalog
from resources.iceberg.lake_objects import LakeObjects

if TYPE_CHECKING:
    from pipeline_assets.domain.settings import Settings

MARKER = "warehouse.json"
"""The mark's name below `_tidemark/`."""
FORMAT = 3
"""Format of the tables and of `_tidemark/`; raised by a change after which an earlier Tidemark would misread or undo
what a later one wrote, or a later one what an earlier one wrote."""

_EARLIER_LAKE = "Load the exports into a new, empty warehouse, with a new catalog and a new ledger"


@dataclass(frozen=True)
class Mark:
    """What belongs to the lake in this warehouse."""

    id: str
    """The identity that the one permitted catalog carries as well; attaching changes it."""
    lake: str
    """The identity of the lake, which never changes; the ledger carries it as well."""
    catalog: str | None = None
    catalog_url: str | None = None
    """Without user, password and options, like `ledger_url`: for messages."""
    place: str | None = None
    """The URL of the warehouse, as the process spelt it that wrote the mark."""
    ledger: str | None = None
    """The identity of the one permitted ledger."""
    ledger_url: str | None = None
    made_at: str | None = None

    @property
    def owner(self) -> str:
        """The catalog, for messages."""
        return f"catalog {self.catalog or 'without a name'} ({self.catalog_url or 'its address is not on record'})"

    def here(self, settings: Settings) -> Mark:
        """The mark with the catalog and the place of these settings."""
        url, place = bare_url(settings.catalog_url), settings.warehouse_url
        return replace(self, catalog=settings.catalog_name, catalog_url=url, place=place)

    def of_ledger(self, identity: str, url: str) -> Mark:
        """The mark with this ledger."""
        return replace(self, ledger=identity, ledger_url=bare_url(url))

    def write(self, settings: Settings, *, is_first: bool = False) -> None:
        """Write the mark in one step; with `is_first` only where there is none, as another process may be creating the lake."""
        body = {"format": FORMAT, **asdict(self), "made_at": datetime.now(UTC).isoformat()}
        objects = LakeObjects.of(settings)
        (objects.put if is_first else objects.replace)(MARKER, json.dumps(body, indent=1).encode())


def bare_url(url: str) -> str:
    """A database's URL without user, password and options; the address of a REST catalog holds none."""
    if is_rest_catalog(url):
        return url
    parsed = make_url(url)
    bare = URL.create(parsed.drivername, host=parsed.host, port=parsed.port, database=parsed.database)
    return bare.render_as_string()


def read_mark(settings: Settings) -> Mark | None:
    """Return the warehouse's mark, None where it has none; raises LakehouseError for one that cannot be parsed."""
    objects = LakeObjects.of(settings)
    body, subject = objects.get(MARKER), f"{objects.url}/{MARKER}"
    if body is None:
        return None
    try:
        given = json.loads(body)
        written_in = int(given.get("format", 1))
        if written_in != FORMAT:
            age, remedy = ("a newer", NEWER_TIDEMARK) if written_in > FORMAT else ("an earlier", _EARLIER_LAKE)
            known = f"(format {written_in}; this one knows {FORMAT}), and nothing was touched"
            raise LakehouseError(subject, f"{age} Tidemark wrote this warehouse {known}", remedy)
        identities = {name: str(uuid.UUID(given[name])) for name in ("id", "lake")}
        texts = {field.name: str(given[field.name]) for field in fields(Mark) if given.get(field.name) is not None}
        return Mark(**{**texts, **identities})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        hint = "Restore it, or remove it: the next load writes it"
        raise LakehouseError(subject, "is no identity of a warehouse", hint) from None
