"""Landing as the load path sees it: list arrivals and read objects, from a local folder or S3 alike.

Lives here: where landing is, how it is opened, listed, read, and which failure means what. Put here: another
kind of place. Keep out: the grammar of keys (domain/object_keys.py) and of content (transforms/parse.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import boto3
import obstore
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, S3Store
from pipeline_assets.domain.deliveries import Delivery, Listing, Marker, Oddity, OddObject
from pipeline_assets.domain.errors import (
    LandingAccessError,
    LandingUnavailableError,
    ObjectMovedError,
    SettingsError,
    TidemarkError,
)
from pipeline_assets.domain.object_keys import KeyGrammar, KeyStem
from pipeline_assets.domain.settings import Settings, local_path
from pipeline_assets.domain.slices import Source

from resources.crash_points import CrashPoint, crash_point

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource
    from obstore.store import ClientConfig

_OPENING_KEYS = 1000
"""How many keys before a folder's first day are looked at for odd objects: a page, so it is one request."""
_RETRIES_END = timedelta(seconds=60)
# obstore asks the provider again 5 minutes before the end of life it was told, boto3 renews a credential 10
# minutes before its real end: told to live 10 minutes, none is used past its real end.
_CREDENTIAL_LIFE = timedelta(minutes=10)
_READ_TIMEOUT = timedelta(seconds=60)
_REQUEST_TIMEOUT = timedelta(minutes=10)
"""For a whole object; a stalled connection ends earlier, by the read timeout."""


class _Listed(NamedTuple):
    key: str
    etag: str
    size_bytes: int


class _Place(Protocol):
    """What differs between kinds of places: opening, order of keys, and a listing that takes any key."""

    @property
    def url(self) -> str: ...

    @property
    def is_ordered(self) -> bool: ...

    def open(self) -> LocalStore | S3Store: ...

    def require(self) -> None: ...

    def list_plainly(self, folder: str, after: str) -> Iterator[_Listed]: ...


class LandingStore:
    """Lists and reads landing; cheap to build and to pickle, connects on first use in each process."""

    def __init__(self, place: _Place, grammar: KeyGrammar) -> None:
        """Use `from_settings`; no I/O happens here."""
        self._place = place
        self._grammar = grammar
        self._store: LocalStore | S3Store | None = None
        self._store_pid = 0

    @classmethod
    def from_settings(cls, settings: Settings, s3: S3Resource | None = None) -> Self:
        """Landing at `settings.landing_url`; fields of `s3` win over `AWS_*` variables and AWS profiles.

        Raises SettingsError for a URL without bucket or a marker pattern that cannot work.
        """
        grammar = KeyGrammar(settings.marker_pattern)
        folder = local_path(settings.landing_url)
        if folder is None:
            return cls(_Bucket.from_url(settings.landing_url, s3), grammar)
        if re.search(r"#(\{hour\}|[0-9]+)$", settings.marker_pattern):
            # obstore keeps unfinished uploads under such names and therefore hides them in a local folder.
            reason = "ends in `#` and digits, which a local landing hides"
            raise SettingsError("TIDEMARK_MARKER_PATTERN", reason, "End it in a word")
        return cls(_Folder(folder.absolute()), grammar)

    @property
    def url(self) -> str:
        """Where landing is: a path or `s3://bucket[/prefix]`."""
        return self._place.url

    def list(self, source: Source, projects: Sequence[str], first_day: date, last_day: date) -> Listing:
        """What arrived from `first_day` to `last_day` (arrival days, UTC, both inclusive), sorted.

        In a bucket only the keys of these days are read, and one page of what lies before a project's first
        day: odd objects elsewhere stay unseen there. A local folder shows all of them, but for names that end in
        `#` and digits, which obstore hides. A project without a folder has nothing. Raises LandingAccessError
        (no such place, no rights) and LandingUnavailableError (network, server).
        """
        deliveries: list[Delivery] = []
        markers: list[Marker] = []
        odd_objects: list[OddObject] = []
        first_arrivals: dict[str, date] = {}
        for project_id in projects:
            with _landing_errors(self.url):
                found = self._look(source, project_id, first_day, last_day)
            crash_point(CrashPoint.DURING_LISTING, f"{source.value}/{project_id}")
            for one in found:
                parsed = self._grammar.parse(source, project_id, *one)
                if isinstance(parsed, OddObject):
                    odd_objects.append(parsed)
                    continue
                arrival = parsed.batch.arrival_date
                first_arrivals[project_id] = min(arrival, first_arrivals.get(project_id, arrival))
                if not first_day <= arrival <= last_day:
                    continue
                if isinstance(parsed, Marker):
                    markers.append(parsed)
                elif one.size_bytes == 0 and self._is_folder_placeholder(one.key):
                    odd_objects.append(OddObject(f"{one.key}/", Oddity.UNKNOWN_NAME, "a folder's placeholder"))
                else:
                    deliveries.append(parsed)
        return Listing(tuple(sorted(deliveries)), tuple(sorted(markers)), tuple(sorted(odd_objects)), first_arrivals)

    def read(self, key: str, etag: str) -> bytes:
        """The bytes of the object version that was listed with `etag`, whole.

        Raises ObjectMovedError when that version is gone (overwritten, deleted), LandingUnavailableError when
        network or server fail beyond the retries, LandingAccessError when rights are missing.
        """
        crash_point(CrashPoint.MID_PARSE, key)
        try:
            with _landing_errors(key, is_object=True):
                store = self._opened()
                content = obstore.get(store, key, options={"if_match": etag}).bytes().to_bytes()
                # A bucket hands out versions; a local file may be rewritten in place while it is read.
                is_same = self._place.is_ordered or obstore.head(store, key)["e_tag"] == etag
        except (PreconditionError, FileNotFoundError):
            is_same = False
        if not is_same:
            reason = "was overwritten or deleted since it was listed"
            raise ObjectMovedError(key, reason, "The next run lists it anew")
        return content

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind: it belongs to a process."""
        return self.__dict__ | {"_store": None, "_store_pid": 0}

    def _opened(self) -> LocalStore | S3Store:
        if self._store is None or self._store_pid != os.getpid():
            self._place.require()
            self._store, self._store_pid = self._place.open(), os.getpid()
        return self._store

    def _look(self, source: Source, project_id: str, first_day: date, last_day: date) -> Iterable[_Listed]:
        """The objects of the days asked for, the first arrivals and odd objects met on the way, each once."""
        self._place.require()
        folder = source.prefix(project_id)
        if not self._place.is_ordered:
            return {one.key: one for one in self._scan(folder)}.values()
        stems = self._grammar.stems(source, project_id)
        found: dict[str, _Listed] = {}
        scans = [self._scan(folder, *stem.window(first_day, last_day)) for stem in stems]
        scans += [islice(self._scan(folder, f"{folder}/", stems[0].text), _OPENING_KEYS)]
        scans += [self._first_arrivals(source, project_id, stem) for stem in stems]
        for scan in scans:
            for one in scan:
                # The first wins: obstore drops the closing slash of a folder's placeholder, which then goes by
                # the name of the object it sorts behind.
                found.setdefault(one.key, one)
        return found.values()

    def _first_arrivals(self, source: Source, project_id: str, stem: KeyStem) -> Iterator[_Listed]:
        for one in self._scan(source.prefix(project_id), *stem.whole):
            parsed = self._grammar.parse(source, project_id, *one)
            if isinstance(parsed, OddObject):
                continue
            if not stem.is_dated:
                yield one
            elif one.key.startswith(f"{stem.text}{parsed.batch.arrival_date.isoformat()}"):
                yield one
                return

    def _scan(self, folder: str, after: str = "", before: str = "") -> Iterator[_Listed]:
        """Objects of a folder with keys between the bounds, both exclusive; an empty bound is none."""
        last = after
        try:
            for chunk in obstore.list(self._opened(), prefix=folder, offset=after or None, chunk_size=1000):
                for meta in chunk:
                    key = meta["path"]
                    if before and key >= before:
                        return
                    if key > after:
                        last = key
                        yield _Listed(key, meta["e_tag"] or "", meta["size"])
        except InvalidPathError:
            # One key that obstore cannot express (`//`, `..`, control characters) ends its whole listing.
            for one in self._place.list_plainly(folder, last):
                if before and one.key >= before:
                    return
                yield one

    def _is_folder_placeholder(self, key: str) -> bool:
        with _landing_errors(key, is_object=True):
            try:
                obstore.head(self._opened(), key)
            except FileNotFoundError:
                return True
        return False


@dataclass(frozen=True)
class _Folder:
    root: Path
    is_ordered: ClassVar[bool] = False

    @property
    def url(self) -> str:
        return str(self.root)

    def require(self) -> None:
        # An absent root lists as empty in obstore, which would read as "nothing was delivered".
        if not self.root.is_dir():
            raise LandingAccessError(self.url, "is not a folder", "Correct TIDEMARK_LANDING_URL or create it")

    def open(self) -> LocalStore:
        return LocalStore(prefix=self.root)

    def list_plainly(self, folder: str, after: str) -> Iterator[_Listed]:  # noqa: ARG002 - no order, so no start
        store = self.open()
        for parent, _, names in os.walk(self.root / folder, followlinks=True):
            for name in names:
                path = Path(parent, name)
                key = os.fsencode(path.relative_to(self.root)).decode("utf-8", "backslashreplace")
                try:
                    meta = obstore.head(store, key)
                except (ValueError, BaseError, OSError):
                    yield _Listed(key, "", 0)
                else:
                    yield _Listed(key, meta["e_tag"] or "", meta["size"])


@dataclass(frozen=True)
class _Bucket:
    """A bucket and how to reach it: the fields of dagster-aws' S3Resource, as plain values for workers."""

    bucket: str
    prefix: str = ""
    region_name: str | None = None
    endpoint_url: str | None = None
    profile_name: str | None = None
    max_attempts: int = 5
    use_unsigned_session: bool = False
    use_ssl: bool = True
    verify: bool | None = None
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    is_ordered: ClassVar[bool] = True

    @classmethod
    def from_url(cls, url: str, s3: S3Resource | None) -> Self:
        # Not urlsplit: `#` and `?` are ordinary characters of a prefix.
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise SettingsError("TIDEMARK_LANDING_URL", f"{url!r} names no bucket", "Write s3://bucket[/prefix]")
        if s3 is None:
            return cls(bucket, prefix.strip("/"))
        resolved = s3.process_config_and_initialize()
        shared = {one.name for one in fields(cls)} - {"bucket", "prefix"}
        return cls(bucket, prefix.strip("/"), **{name: getattr(resolved, name) for name in shared})

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def require(self) -> None:
        """Listing a bucket that is not there fails by itself."""

    def open(self) -> S3Store:
        session = self._session()
        client = self._client(session)
        endpoint = client.meta.endpoint_url
        is_signed = not self.use_unsigned_session
        provider = Boto3CredentialProvider(session, ttl=_CREDENTIAL_LIFE) if is_signed else None
        return S3Store(
            self.bucket,
            prefix=self.prefix or None,
            credential_provider=provider,
            config={
                # boto3 has settled variables, profile and fields; said in full, obstore's own look at the
                # environment changes nothing. Path style is what the endpoint without bucket asks for.
                "aws_endpoint_url_s3": endpoint,
                "region": client.meta.region_name,
                "skip_signature": self.use_unsigned_session,
                "virtual_hosted_style_request": False,
            },
            client_options=_http_options()
            | {
                "allow_http": endpoint.startswith("http://"),
                "allow_invalid_certificates": self.verify is False,
            },
            retry_config={"max_retries": self.max_attempts - 1, "retry_timeout": _RETRIES_END},
        )

    def list_plainly(self, folder: str, after: str) -> Iterator[_Listed]:
        root = f"{self.prefix}/" if self.prefix else ""
        pages = self._client(self._session()).get_paginator("list_objects_v2")
        asked = {"Bucket": self.bucket, "Prefix": f"{root}{folder}/", "StartAfter": f"{root}{after}"}
        for page in pages.paginate(**asked):
            for item in page.get("Contents", ()):
                yield _Listed(item["Key"].removeprefix(root), item["ETag"], item["Size"])

    def _session(self) -> boto3.Session:
        return boto3.Session(
            profile_name=self.profile_name,
            aws_access_key_id=self.aws_access_key_id,
            aws_secret_access_key=self.aws_secret_access_key,
            aws_session_token=self.aws_session_token,
        )

    def _client(self, session: boto3.Session) -> Any:
        return session.client(
            "s3",
            # boto3 itself does not read AWS_REGION, which other AWS libraries, and Iceberg's, do.
            region_name=self.region_name or session.region_name or os.environ.get("AWS_REGION"),
            endpoint_url=self.endpoint_url,
            use_ssl=self.use_ssl,
            verify=self.verify,
            config=Config(retries={"total_max_attempts": self.max_attempts, "mode": "standard"}),
        )


def _http_options() -> ClientConfig:
    options: ClientConfig = {"read_timeout": _READ_TIMEOUT, "timeout": _REQUEST_TIMEOUT}
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle:
        # boto3 trusts these certificates by itself, obstore does not.
        try:
            options["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise SettingsError("AWS_CA_BUNDLE", f"cannot be read ({error})", "Correct the path") from None
    return options


@contextmanager
def _landing_errors(subject: str, *, is_object: bool = False) -> Iterator[None]:
    """Turn failures of obstore and boto3 into ours; that an object is missing or changed is for the caller."""
    try:
        yield
    except (BaseError, BotoCoreError, ClientError, OSError) as error:
        is_moved = isinstance(error, PreconditionError | FileNotFoundError) and "NoSuchBucket" not in str(error)
        if is_object and is_moved:
            raise
        raise _failure(subject, error) from error
    except ValueError as error:
        if "get_credentials" not in str(error):
            raise
        raise LandingAccessError(subject, "no AWS credentials were found", _ACCESS_CURE) from error


_ACCESS_CURE = "Check TIDEMARK_LANDING_URL, region, endpoint and credentials, and the rights to list and read"
_REFUSALS = (PermissionDeniedError, UnauthenticatedError, PermissionError, FileNotFoundError, BotoCoreError)
_PASSING = ("RequestTimeout<", "EndpointConnectionError:", "ConnectTimeoutError:", "ReadTimeoutError:")
"""Passing trouble that comes dressed as a refusal: S3 answers a slow client with 400, and a credential provider
that could not reach its server looks like a bad credential."""


def _failure(subject: str, error: Exception) -> TidemarkError:
    """Access (a person must act) or unavailable (time may heal), by type of error, HTTP status and text."""
    text = str(error).split("\n\nDebug source")[0]
    status = re.search(r"status code: (\d{3})", text)
    code = int(status[1]) if status else 0
    if isinstance(error, ClientError):
        code = error.response["ResponseMetadata"]["HTTPStatusCode"]
    is_passing = isinstance(error, BotoConnectionError | HTTPClientError) or any(sign in text for sign in _PASSING)
    is_refused = (
        isinstance(error, _REFUSALS)
        or (300 <= code < 500 and code not in (408, 429))
        or "(os error 13)" in text
        or "incorrectly configured region" in text
    )
    if is_refused and not is_passing:
        return LandingAccessError(subject, f"landing refused: {_short(text)}", _ACCESS_CURE)
    return LandingUnavailableError(subject, f"landing is out of reach: {_short(text)}", "The next run tries again")


def _short(text: str) -> str:
    """One line without the XML around S3's own words."""
    said = re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", text, re.DOTALL)
    line = f"{said[1]}, {said[2]}" if said else text
    return " ".join(line.split())[:300].rstrip(". ")
