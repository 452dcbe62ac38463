"""List and read landing: a local folder and S3 through one code path.

Lives here: the object store, its listing and conditional reads. Put here: anything about reaching objects. Keep out: the
grammar of names (domain/object_keys.py) and what is done with bytes (domain/object_bodies.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from dagster_aws.s3 import S3Resource
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, S3Store

from pipeline_assets.domain.deliveries import Delivery, Listing, Marker, OddObject
from pipeline_assets.domain.errors import LandingAccessError, LandingUnavailableError, ObjectMovedError
from pipeline_assets.domain.object_keys import KeyGrammar
from pipeline_assets.domain.settings import Settings, local_path
from pipeline_assets.domain.slices import Source
from resources.crash_points import CrashPoint, crash_point

_RETRY: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_ACCESS_CURE = "Check TIDEMARK_LANDING_URL, the credentials and the rights to list and read"


@dataclass(frozen=True)
class LandingStore:
    """Where exports land. Picklable: Spark's workers each open a store of their own on first use."""

    url: str
    marker_pattern: str
    s3_options: tuple[tuple[str, str], ...] = ()
    _opened: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_settings(cls, settings: Settings, s3: S3Resource | None = None) -> LandingStore:
        """Build without I/O; S3 settings are the resource's fields where set, else the `AWS_*` variables."""
        return cls(settings.landing_url, settings.marker_pattern, _s3_options(s3) if s3 is not None else ())

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the open store."""
        return self.__dict__ | {"_opened": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore into a frozen instance."""
        self.__dict__.update(state)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, key: str, etag: str) -> bytes:
        """The bytes of exactly the listed version.

        Raises ObjectMovedError when it was overwritten or deleted since, LandingUnavailableError for trouble on the way
        after bounded retries, LandingAccessError without the right to read.
        """
        try:
            return bytes(obstore.get(self._store, key, options={"if_match": etag}).bytes())
        except (PreconditionError, NotFoundError, FileNotFoundError):
            raise ObjectMovedError(key, "was overwritten or deleted while the batch was read", "It is listed again") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise LandingAccessError(key, f"may not be read ({_first_line(error)})", _ACCESS_CURE) from None
        except (BaseError, OSError) as error:
            raise LandingUnavailableError(key, f"could not be read ({_first_line(error)})", "Run again later") from error

    # -- listing -----------------------------------------------------------------------------------------------

    def list(self, source: Source, projects: Sequence[str], first_day: date, last_day: date) -> Listing:
        """Deliveries and markers that arrived in the range, odd objects seen on the way, first arrivals per project.

        On S3 only the keys of the range are read, because names sort by date. Raises LandingAccessError for a landing
        that is not there or refuses us, LandingUnavailableError for trouble on the way.
        """
        self._require_root()
        grammar = KeyGrammar(self.marker_pattern)
        deliveries: set[Delivery] = set()
        markers: set[Marker] = set()
        odd: set[OddObject] = set()
        first_arrivals: dict[str, date] = {}
        for project in projects:
            for key, etag, size in self._keys(source, project, first_day, last_day):
                found = grammar.parse(source, project, key, etag, size)
                if isinstance(found, OddObject):
                    odd.add(found)
                    continue
                day = found.batch.arrival_date
                first_arrivals[project] = min(day, first_arrivals.get(project, day))
                if first_day <= day <= last_day:
                    (deliveries if isinstance(found, Delivery) else markers).add(found)  # type: ignore[arg-type] # the set of its own type
            crash_point(CrashPoint.DURING_LISTING)
        return Listing(tuple(sorted(deliveries)), tuple(sorted(markers)), tuple(sorted(odd)), first_arrivals)

    def _keys(self, source: Source, project: str, first: date, last: date) -> Iterator[tuple[str, str, int]]:
        folder = source.prefix(project)
        if self._local_root is not None:
            yield from self._scan(folder, None, None)
            return
        for stem in dict.fromkeys((folder, project)):
            start = f"{folder}/{stem}_"
            # The first key of the stem tells the first arrival, however early.
            yield from self._scan(folder, start, None, at_most=1)
            yield from self._scan(folder, f"{start}{first.isoformat()}", f"{start}{(last + timedelta(1)).isoformat()}")

    def _scan(self, folder: str, after: str | None, before: str | None, at_most: int | None = None) -> Iterator[tuple[str, str, int]]:
        count = 0
        try:
            for chunk in obstore.list(self._store, prefix=folder, offset=after, chunk_size=1000):
                for meta in chunk:
                    if before is not None and meta["path"] >= before:
                        return
                    yield meta["path"], meta["e_tag"] or "", meta["size"]
                    count += 1
                    if count == at_most:
                        return
        except InvalidPathError:
            # One key with `//` fails obstore's whole listing; boto3 names it, and the rest of the folder is kept.
            yield from self._scan_with_boto3(folder, after, before, at_most)
        except (NotFoundError, FileNotFoundError) as error:
            if self._local_root is None:
                raise LandingAccessError(self.url, f"does not exist ({_first_line(error)})", _ACCESS_CURE) from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise LandingAccessError(self.url, f"may not be listed ({_first_line(error)})", _ACCESS_CURE) from None
        except (BaseError, OSError) as error:
            if any(mark in str(error) for mark in ("NoSuchBucket", "status code: 404", "status code: 403")):
                raise LandingAccessError(self.url, f"cannot be listed ({_first_line(error)})", _ACCESS_CURE) from None
            raise LandingUnavailableError(self.url, f"could not be listed ({_first_line(error)})", "Run again later") from error

    def _scan_with_boto3(self, folder: str, after: str | None, before: str | None, at_most: int | None) -> Iterator[tuple[str, str, int]]:
        client = S3Resource(**dict(self.s3_options)).get_client()
        bucket, root = _bucket_and_prefix(self.url)
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=f"{root}{folder}/", **({"StartAfter": root + after} if after else {})
        )
        count = 0
        for page in pages:
            for item in page.get("Contents", ()):
                key = item["Key"].removeprefix(root)
                if before is not None and key >= before:
                    return
                yield key, item["ETag"], item["Size"]
                count += 1
                if count == at_most:
                    return

    # -- the store ---------------------------------------------------------------------------------------------

    @property
    def _local_root(self) -> Path | None:
        return local_path(self.url)

    def _require_root(self) -> None:
        root = self._local_root
        if root is not None and not root.is_dir():
            raise LandingAccessError(self.url, "is not a folder", "Correct TIDEMARK_LANDING_URL or create the folder")

    @property
    def _store(self) -> Any:
        if "store" not in self._opened:
            self._opened["store"] = self._open()
        return self._opened["store"]

    def _open(self) -> Any:
        root = self._local_root
        if root is not None:
            self._require_root()
            return LocalStore(prefix=root)
        bucket, prefix = _bucket_and_prefix(self.url)
        resource = dict(self.s3_options)
        options: dict[str, Any] = {}
        endpoint = resource.get("endpoint_url") or _variable("AWS_ENDPOINT_URL_S3") or _variable("AWS_ENDPOINT_URL")
        if endpoint:
            options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
        region = resource.get("region_name") or _variable("AWS_REGION") or _variable("AWS_DEFAULT_REGION")
        if region:
            options["region"] = region
        return S3Store(
            bucket,
            prefix=prefix.rstrip("/") or None,
            client_options={"allow_http": bool(endpoint and endpoint.startswith("http://"))},
            credential_provider=_credentials(resource),
            retry_config=_RETRY,
            **options,
        )


def _credentials(resource: dict[str, str]) -> Any:
    import boto3  # noqa: PLC0415 - a local landing needs no boto3 session
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415

    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "profile_name", "region_name")
    session = boto3.Session(**{name: resource[name] for name in names if name in resource})  # type: ignore[arg-type] # names are Session's own
    return Boto3CredentialProvider(session)


def _s3_options(s3: S3Resource) -> tuple[tuple[str, str], ...]:
    names = ("endpoint_url", "region_name", "profile_name", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    values = {name: getattr(s3, name, None) for name in names}
    return tuple((name, str(value)) for name, value in values.items() if value)


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
