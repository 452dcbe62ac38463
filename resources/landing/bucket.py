"""Landing as an S3 bucket: how it is opened, listed, read and written."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import boto3
import obstore
from botocore.config import Config
from botocore.exceptions import ClientError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.machine import IN_MEMORY_BYTES, a_spool_on_disk
from resources.landing.place import Listed

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource
    from obstore import GetOptions
    from obstore.store import ClientConfig

_RETRIES_END = timedelta(seconds=60)
# obstore renews a credential 5 minutes before its stated expiry, boto3 10 minutes before the real one: with a stated life of
# 10 minutes none is used after its real expiry.
_CREDENTIAL_LIFE = timedelta(minutes=10)
_READ_TIMEOUT = timedelta(seconds=60)
_REQUEST_TIMEOUT = timedelta(minutes=10)
"""For a whole object; a stalled connection ends at the read timeout."""
_STEP_BYTES = 4 * 1024**2
_VARIABLES = {
    "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region_name": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_TAKEN = (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT)


@dataclass(frozen=True)
class Bucket:
    """A bucket and its connection: the fields of dagster-aws' S3Resource, as plain values for workers."""

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
        """Parse `s3://bucket[/prefix]`; raises SettingsError for a URL without a bucket."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise SettingsError("TIDEMARK_LANDING_URL", f"{url!r} names no bucket", "Write s3://bucket[/prefix]")
        named: dict[str, Any] = {}
        if s3 is not None:
            resolved = s3.process_config_and_initialize()
            shared = {setting.name for setting in fields(cls)} - {"bucket", "prefix"}
            named = {name: getattr(resolved, name) for name in shared}
        # The driver reads these and pickles them for workers, which have another environment and find their own credentials.
        for name, variables in _VARIABLES.items():
            named[name] = named.get(name) or next(filter(None, map(os.environ.get, variables)), None)
        return cls(bucket, prefix.strip("/"), **named)

    @property
    def url(self) -> str:
        """`s3://bucket[/prefix]`."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def require(self) -> None:
        """Do nothing: listing a missing bucket fails by itself."""

    def open(self) -> S3Store:
        """Open a store with credentials and endpoint as boto3 finds them."""
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
                # With every value given, obstore ignores the environment; an endpoint without the bucket requires path style.
                "aws_endpoint_url_s3": endpoint,
                "region": client.meta.region_name,
                "skip_signature": self.use_unsigned_session,
                "virtual_hosted_style_request": False,
            },
            client_options=_http_options()
            | {"allow_http": endpoint.startswith("http://"), "allow_invalid_certificates": self.verify is False},
            retry_config={"max_retries": self.max_attempts - 1, "retry_timeout": _RETRIES_END},
        )

    def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:
        """List with boto3, page by page."""
        root = f"{self.prefix}/" if self.prefix else ""
        pages = self._client(self._session()).get_paginator("list_objects_v2")
        asked = {"Bucket": self.bucket, "Prefix": f"{root}{folder}/", "StartAfter": f"{root}{after}"}
        for page in pages.paginate(**asked):
            for item in page.get("Contents", ()):
                key = item["Key"].removeprefix(root)
                yield Listed(key, item["ETag"], item["Size"], uploaded_at=item["LastModified"])

    def read(self, store: S3Store, key: str, etag: str, *, is_glance: bool = False) -> IO[bytes]:
        """Read with obstore; a large object is streamed to a file."""
        wanted: GetOptions = {"if_match": etag, "range": (0, 1)} if is_glance else {"if_match": etag}
        response = obstore.get(store, key, options=wanted)
        if is_glance or response.meta["size"] <= IN_MEMORY_BYTES:
            return io.BytesIO(response.bytes().to_bytes())
        content = a_spool_on_disk()
        try:
            for part in response.stream(min_chunk_size=_STEP_BYTES):
                content.write(part)
        except BaseException:
            content.close()
            raise
        content.seek(0)
        return content

    def create(self, store: S3Store, key: str, content: IO[bytes]) -> bool:
        """Write an object unless its key exists, a large one with boto3; False where it exists."""
        start = content.tell()
        size = content.seek(0, io.SEEK_END) - start
        content.seek(start)
        try:
            if size <= IN_MEMORY_BYTES:
                obstore.put(store, key, content.read(), mode="create")
            else:
                return self._happens("put_object", key, Body=content, IfNoneMatch="*")
        except AlreadyExistsError:
            return False
        return True

    def find(self, store: S3Store, key: str) -> Listed:
        """Return the present version of an object; raises obstore's errors."""
        found = obstore.head(store, key)
        return Listed(key, found["e_tag"] or "", found["size"], uploaded_at=found["last_modified"])

    def delete(self, _: object, key: str, etag: str) -> bool:
        """Delete this version; False, with nothing deleted, where the key has another one."""
        return self._happens("delete_object", key, IfMatch=etag)

    def _happens(self, call: str, key: str, **condition: Any) -> bool:
        name = f"{self.prefix}/{key}" if self.prefix else key
        try:
            getattr(self._client(self._session()), call)(Bucket=self.bucket, Key=name, **condition)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] not in _TAKEN:
                raise
            return False
        return True

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
        # obstore does not trust these certificates by itself.
        try:
            options["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise SettingsError("AWS_CA_BUNDLE", f"cannot be read ({error})", "Correct the path") from None
    return options
