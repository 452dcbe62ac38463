"""Landing as the load path sees it: list arrivals, read and create objects, in a local folder or S3 alike."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import islice, takewhile
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

import obstore
from obstore.exceptions import InvalidPathError, PreconditionError

from pipeline_assets.domain import errors
from pipeline_assets.domain.days import ALONE, MOST_STRAYS, ends_of
from pipeline_assets.domain.deliveries import Delivery, Listing, Marker, Oddity, UnrecognizedObject
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import KeyStem, ObjectKeys
from pipeline_assets.formats.registry import EXPORT_FORMAT
from resources.failpoints import Failpoint, failpoint
from resources.landing.bucket import Bucket, Listed, landing_errors
from resources.landing.folder import Folder

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource


_AT_ONCE = 16
_T = TypeVar("_T")


def each_at_once(ask: Callable[[str], _T], names: Sequence[str]) -> Iterator[tuple[str, _T]]:
    """Yield name and answer in the order of the names; raises the first error."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            yield from zip(part, pool.map(ask, part), strict=True)


_MOST_ALONE = 20
_OPENING_KEYS = 1000


class LandingStore:
    """Lists and reads landing; cheap to create and to pickle; connects on first use in each process."""

    def __init__(self, place: Folder | Bucket, keys: ObjectKeys) -> None:
        self._place = place
        self._keys = keys
        self._store: Any = None
        self._store_pid = 0

    @classmethod
    def from_settings(cls, settings: Settings, s3: S3Resource | None = None) -> Self:
        """Create the store for `settings.landing_url`; fields of `s3` win over `AWS_*` and profiles; raises SettingsError."""
        keys = EXPORT_FORMAT.keys(settings.marker_pattern)
        folder = local_path(settings.landing_url)
        if folder is None:
            return cls(Bucket.from_url(settings.landing_url, s3), keys)
        if re.search(r"#(\{hour\}|[0-9]+)$", settings.marker_pattern):
            # Other users of the folder may use obstore, which keeps unfinished uploads under such names.
            reason = "ends in `#` and digits, which hides it from tools that list a folder"
            raise errors.SettingsError("TIDEMARK_MARKER_PATTERN", reason, "End it in a word")
        return cls(Folder(folder.absolute()), keys)

    @property
    def url(self) -> str:
        """A path or `s3://bucket[/prefix]`."""
        return self._place.url

    def list(
        self,
        source: Source,
        projects: Sequence[str],
        first_day: date,
        last_day: date,
        asked_for: tuple[date, date] | None = None,
    ) -> Listing:
        """Return these arrival days' objects (UTC, inclusive), sorted; raises LandingAccessError and LandingUnavailableError.

        A bucket lists only the keys of these days and one page before a project's first day; a folder is listed completely.
        `asked_for`: the days that loads ever request; deliveries outside of them are strays, the first and last of many.
        """
        deliveries, markers, strays = list[Delivery](), list[Marker](), list[Delivery]()
        odd_objects, met = list[UnrecognizedObject](), dict[str, set[date]]()

        def listed(project_id: str) -> Iterable[Listed]:
            with landing_errors(self.url):
                return self._listed(source, project_id, first_day, last_day, asked_for)

        if is_at_once := self._place.is_ordered and len(projects) > 1:
            with landing_errors(self.url):
                self._opened()
        found = each_at_once(listed, projects) if is_at_once else ((one, listed(one)) for one in projects)
        for project_id, entries in found:
            failpoint(Failpoint.DURING_LISTING, f"{source.value}/{project_id}")
            for entry in entries:
                if entry.oddity:
                    odd_objects.append(UnrecognizedObject(entry.key, entry.kind, entry.oddity))
                    continue
                parsed = self._keys.parse(source, project_id, entry.key, entry.etag, entry.size_bytes)
                if isinstance(parsed, UnrecognizedObject):
                    odd_objects.append(parsed)
                    continue
                arrival = parsed.batch.arrival_date
                met.setdefault(project_id, set()).add(arrival)
                is_asked_for = asked_for is None or asked_for[0] <= arrival <= asked_for[1]
                if isinstance(parsed, Delivery) and not is_asked_for:
                    strays.append(parsed)
                if not first_day <= arrival <= last_day:
                    continue
                if isinstance(parsed, Marker):
                    markers.append(parsed)
                elif self._place.is_ordered and entry.size_bytes == 0 and self._is_folder_placeholder(entry.key):
                    odd = UnrecognizedObject(f"{entry.key}/", Oddity.UNKNOWN_NAME, "a folder's placeholder")
                    odd_objects.append(odd)
                else:
                    deliveries.append(parsed)
        days = {project: frozenset(arrivals) for project, arrivals in met.items()}
        of_kind = (tuple(sorted(deliveries)), tuple(sorted(markers)), tuple(sorted(odd_objects)))
        return Listing(*of_kind, days, ends_of(strays))

    def list_folder(self, folder: str, first: str = "", last: str = "\U0010ffff") -> Sequence[Listed]:
        """Return the objects below a folder of landing between two keys, sorted; empty without a folder. Raises as `list` does.

        A bucket lists only the keys between; a folder is listed completely.
        """
        with landing_errors(self.url):
            self._place.require()
            found = self._place.list_plainly(folder, first[:-1])
            if self._place.is_ordered:
                found = takewhile(lambda entry: entry.key <= last, found)
            return sorted(entry for entry in found if first <= entry.key <= last)

    def open(self, key: str, etag: str) -> IO[bytes]:
        """Open the version listed with `etag`, a large one spooled to disk; the caller closes it.

        Raises ObjectMovedError, UnreadableObjectError (this object alone), LandingUnavailableError and LandingAccessError.
        """
        failpoint(Failpoint.MID_PARSE, key)
        try:
            with landing_errors(key, is_object=True):
                return self._place.read(self._opened(), key, etag)
        except (PreconditionError, FileNotFoundError):
            reason = "was overwritten or deleted since it was listed"
            raise errors.ObjectMovedError(key, reason, "The next run lists it anew") from None

    def create(self, key: str, content: IO[bytes]) -> bool:
        """Create an object; False where the key exists; raises LandingAccessError, LandingUnavailableError, DiskFullError."""
        try:
            with landing_errors(key, hint="This needs the right to create objects below the backfill prefix; grant it"):
                return self._place.create(self._opened(), key, content)
        except OSError as error:
            reason = f"cannot be written: {error.strerror}"
            raise errors.DiskFullError(
                key, reason, f"Make room in {self.url}, then run the same command again"
            ) from error

    def find(self, key: str) -> Listed | None:
        """Return the present version of an object, without following a link; None without any. Raises as `open` does."""
        try:
            with landing_errors(key, is_object=True):
                return self._place.find(self._opened(), key)
        except FileNotFoundError:
            return None

    def delete(self, listed: Listed) -> bool:
        """Delete this version; False where the key has another one; raises LandingAccessError, LandingUnavailableError."""
        # Compare here as well: a server that ignores the condition would delete any version.
        present = self.find(listed.key)
        if present is not None and (present.etag, present.is_link) != (listed.etag, False):
            return False
        with landing_errors(listed.key, hint="Check TIDEMARK_LANDING_URL and the rights to write and delete there"):
            is_deleted = present is None or self._place.delete(self._opened(), listed.key, listed.etag)
        return is_deleted or self.find(listed.key) is None

    def is_readable(self, delivery: Delivery) -> bool:
        """Whether a listed object can be read, unlike a refused connection; raises LandingUnavailableError."""
        try:
            with landing_errors(delivery.key, is_object=True):
                self._place.read(self._opened(), delivery.key, delivery.etag, is_glance=True).close()
        except (errors.LandingAccessError, errors.ObjectMovedError, PreconditionError, FileNotFoundError):
            return False
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the connection, which belongs to this process."""
        return self.__dict__ | {"_store": None, "_store_pid": 0}

    def _opened(self) -> Any:
        if self._store is None or self._store_pid != os.getpid():
            self._place.require()
            self._store, self._store_pid = self._place.open(), os.getpid()
        return self._store

    def _listed(
        self, source: Source, project_id: str, first_day: date, last_day: date, asked_for: tuple[date, date] | None
    ) -> Iterable[Listed]:
        self._place.require()
        folder = source.prefix(project_id)
        if not self._place.is_ordered:
            return list(self._place.list_plainly(folder, ""))
        stems = self._keys.stems(source, project_id)
        listed: dict[str, Listed] = {}
        scans = [self._scan(folder, *stem.window(first_day, last_day)) for stem in stems]
        scans += [islice(self._scan(folder, f"{folder}/", stems[0].text), _OPENING_KEYS)]
        scans += [self._first_arrivals(source, project_id, stem) for stem in stems]
        if asked_for is not None:
            outside = [bounds for stem in stems for bounds in stem.outside(*asked_for)]
            scans += [islice(self._scan(folder, *bounds), MOST_STRAYS) for bounds in outside]
        for scan in scans:
            for entry in scan:
                # The first entry wins: without its trailing slash, which obstore drops, a placeholder may have an object's key.
                listed.setdefault(entry.key, entry)
        return listed.values()

    def _first_arrivals(self, source: Source, project_id: str, stem: KeyStem) -> Iterator[Listed]:
        """Also of the following days until two are close together: an isolated day is not trusted."""
        (after, before), last = stem.whole, None
        for _ in range(_MOST_ALONE):
            arrival = None
            for entry in self._scan(source.prefix(project_id), after, before):
                parsed = self._keys.parse(source, project_id, entry.key, entry.etag, entry.size_bytes)
                if isinstance(parsed, UnrecognizedObject):
                    continue
                if not stem.is_dated:
                    yield entry
                elif entry.key.startswith(f"{stem.text}{parsed.batch.arrival_date.isoformat()}"):
                    yield entry
                    arrival = parsed.batch.arrival_date
                    break
            if arrival is None or (last is not None and arrival - last <= ALONE):
                return
            last, after = arrival, stem.window(arrival, arrival)[1]

    def _scan(self, folder: str, after: str = "", before: str = "") -> Iterator[Listed]:
        """Both bounds are exclusive; an empty one means unbounded."""
        last = after
        try:
            for chunk in obstore.list(self._opened(), prefix=folder, offset=after or None, chunk_size=1000):
                for meta in chunk:
                    key = meta["path"]
                    if before and key >= before:
                        return
                    if key > after:
                        last = key
                        yield Listed(key, meta["e_tag"] or "", meta["size"], uploaded_at=meta["last_modified"])
        except InvalidPathError:
            # A key that obstore cannot represent (`//`, `..`, control characters) aborts its whole listing.
            for entry in self._place.list_plainly(folder, last):
                if before and entry.key >= before:
                    return
                yield entry

    def _is_folder_placeholder(self, key: str) -> bool:
        try:
            return self.find(key) is None
        except errors.UnreadableObjectError:
            return False
