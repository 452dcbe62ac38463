"""The kinds of places landing may be: a local folder, an S3 bucket; how each is opened and listed.

Lives here: what differs between them. Put here: another kind of place. Keep out: what is listed and read (landing_store.py) and
what a failure means (landing_errors.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import boto3
import obstore
from botocore.config import Config
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store
from pipeline_assets.domain.errors import LandingAccessError, SettingsError

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource
    from obstore.store import ClientConfig

_RETRIES_END = timedelta(seconds=60)
# obstore asks the provider again 5 minutes before the end of life it was told, boto3 renews a credential 10
# minutes before its real end: told to live 10 minutes, none is used past its real end.
_CREDENTIAL_LIFE = timedelta(minutes=10)
_READ_TIMEOUT = timedelta(seconds=60)
_REQUEST_TIMEOUT = timedelta(minutes=10)
"""For a whole object; a stalled connection ends earlier, by the read timeout."""


class Listed(NamedTuple):
    """An object as a listing shows it."""

    key: str
    etag: str
    size_bytes: int


class Place(Protocol):
    """What differs between kinds of places: opening, order of keys, and a listing that takes any key."""

    @property
    def url(self) -> str:
        """Where it is, for people."""

    @property
    def is_ordered(self) -> bool:
        """Whether a listing is in the order of keys; and whether what is read is the version that was listed."""

    def open(self) -> LocalStore | S3Store:
        """A connection, which belongs to the process."""

    def require(self) -> None:
        """Raise LandingAccessError where an absent place would list as empty."""

    def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:
        """Objects of a folder behind a key, any key whatever; where not ordered, all of them."""


@dataclass(frozen=True)
class Folder:
    """A local folder."""

    root: Path
    is_ordered: ClassVar[bool] = False

    @property
    def url(self) -> str:
        """The path."""
        return str(self.root)

    def require(self) -> None:
        """The folder must be there."""
        # An absent root lists as empty in obstore, which would read as "nothing was delivered".
        if not self.root.is_dir():
            raise LandingAccessError(self.url, "is not a folder", "Correct TIDEMARK_LANDING_URL or create it")

    def open(self) -> LocalStore:
        """A store rooted in the folder."""
        return LocalStore(prefix=self.root)

    def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:  # noqa: ARG002 - no order, so no start
        """By the operating system's own walk."""
        store = self.open()
        for parent, _, names in os.walk(self.root / folder, followlinks=True):
            for name in names:
                path = Path(parent, name)
                key = os.fsencode(path.relative_to(self.root)).decode("utf-8", "backslashreplace")
                try:
                    meta = obstore.head(store, key)
                except (ValueError, BaseError, OSError):
                    yield Listed(key, "", 0)
                else:
                    yield Listed(key, meta["e_tag"] or "", meta["size"])


@dataclass(frozen=True)
class Bucket:
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
        """Of `s3://bucket[/prefix]`; raises SettingsError where no bucket is named."""
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
        """`s3://bucket[/prefix]`."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def require(self) -> None:
        """Listing a bucket that is not there fails by itself."""

    def open(self) -> S3Store:
        """A store with credentials and endpoint as boto3 finds them."""
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

    def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:
        """By boto3, page by page."""
        root = f"{self.prefix}/" if self.prefix else ""
        pages = self._client(self._session()).get_paginator("list_objects_v2")
        asked = {"Bucket": self.bucket, "Prefix": f"{root}{folder}/", "StartAfter": f"{root}{after}"}
        for page in pages.paginate(**asked):
            for item in page.get("Contents", ()):
                yield Listed(item["Key"].removeprefix(root), item["ETag"], item["Size"])

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
