"""Decisions of operators, stored in the warehouse as small objects, so that they survive the loss of the ledger."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from pipeline_assets.domain.errors import LakehouseError
from resources.iceberg.lake_objects import LakeObjects
from resources.ledger.acts import Act

FOLDER = "decisions"
"""The folder of decisions, below `_tidemark/` in the warehouse."""
_VERSION = 1
_HINT = "Install the version that wrote it, or restore the object; without it a decision of a person would be lost"
_HINT_FOR_EMPTY = "Restore it where a copy of the warehouse holds it with content; else remove it and decide once more"
_TIME = "%Y%m%dT%H%M%S.%fZ"
_BEFORE = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{32}\.json")


class DecisionObjects:
    """Stores acts as objects that are written once, never changed, and read in the order of their names."""

    def __init__(self, place: LakeObjects) -> None:
        """Wrap the folder; opens nothing before first use."""
        self._place = place

    def names(self) -> list[str]:
        """Return the names of all decision objects, oldest first; other objects in the folder are ignored."""
        return sorted(entry.name for entry in self._place.list() if _NAME.fullmatch(entry.name))

    def last_at(self) -> datetime:
        """Return the time of the last stored decision; 1970 where there is none."""
        return max((_time_of(name) for name in self.names()[-1:]), default=_BEFORE)

    def write(self, acts: Sequence[Act], at: datetime) -> str:
        """Store acts that belong together as one object named after the time; returns its name."""
        body = json.dumps({"version": _VERSION, "acts": [act.to_json() for act in acts]}, indent=1).encode()
        while True:
            name = f"{at.strftime(_TIME)}-{uuid.uuid4().hex}.json"
            if self._place.put(name, body):
                return name

    def read(self, name: str) -> list[Act]:
        """Return the acts of an object; raises LakehouseError where it cannot be read."""
        body = self._place.get(name)
        if body is None:
            raise self._unreadable(name, "is gone since it was listed")
        if not body:
            raise self._unreadable(name, "is empty: the machine stopped while it was written", _HINT_FOR_EMPTY)
        try:
            kept = json.loads(body)
            if kept["version"] != _VERSION:
                raise self._unreadable(name, f"is of version {kept['version']}, which this Tidemark does not know")
            return [Act.from_json(act) for act in kept["acts"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._unreadable(name, f"holds no decision that can be read ({error!r})") from error

    def _unreadable(self, name: str, reason: str, hint: str = _HINT) -> LakehouseError:
        return LakehouseError(f"{self._place.url}/{name}", reason[:300], hint)


def _time_of(name: str) -> datetime:
    try:
        return datetime.strptime(name.partition("-")[0], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return _BEFORE
