"""Landing as an S3 bucket: how it is opened, listed, read and written; what a listing shows, and what its failures mean."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import boto3
import obstore
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from pipeline_assets.domain import errors
from pipeline_assets.domain.deliveries import Oddity
from pipeline_assets.domain.machine import IN_MEMORY_BYTES, a_spool_on_disk
from pipeline_assets.domain.masking import scrubbed

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource
    from obstore import GetOptions
    from obstore.store import ClientConfig


_ACCESS_HINT = "Check TIDEMARK_LANDING_URL, region, endpoint and credentials, and the rights to list and read"


@contextmanager
def landing_errors(subject: str, *, is_object: bool = False, hint: str = _ACCESS_HINT) -> Iterator[None]:
    """Turn failures of obstore and boto3 into ours, a refusal with this hint; a missing or changed object is the caller's."""
    try:
        yield
    except (BaseError, BotoCoreError, ClientError, OSError) as error:
        is_moved = isinstance(error, PreconditionError | FileNotFoundError) and "NoSuchBucket" not in str(error)
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if (is_object and is_moved) or is_full:
            raise
        raise _failure(subject, error, hint, is_object=is_object) from error
    except ValueError as error:
        if "get_credentials" not in str(error):
            raise
        raise errors.LandingAccessError(subject, "no AWS credentials were found", _ACCESS_HINT) from error


_REFUSALS = (PermissionDeniedError, UnauthenticatedError, PermissionError, FileNotFoundError, BotoCoreError)
_PASSING = ("RequestTimeout<", "ThrottlingException<", "EndpointConnectionError:", "ConnectTimeoutError:",
            "ReadTimeoutError:")  # fmt: skip
"""Transient failures that look like refusals, for example an unreachable credential provider."""


_OBJECT_HINT = "Restore the object, or the right to read it, or take it out of landing; every load tries again"
_OF_THE_CONNECTION = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed", "ExpiredToken",
                      "InvalidToken", "InvalidSecurity", "AccountProblem", "AuthorizationHeaderMalformed",
                      "AuthorizationQueryParametersError", "authorization mechanism", "TokenRefreshRequired", "RequestExpired",
                      "MissingSecurityHeader", "InvalidClientTokenId", "UnrecognizedClient", "MissingAuthenticationToken",
                      "InvalidBucketName", "InvalidRegion", "IllegalLocationConstraint", "NotSignedUp")  # fmt: skip
"""Refusals of the connection, some with the HTTP status of a refused object."""
_OF_THE_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG,
                errno.EIO, errno.ESTALE, errno.EBADMSG)  # fmt: skip


def _failure(subject: str, error: Exception, hint: str, *, is_object: bool) -> errors.TidemarkError:
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
    # S3 answers 400 for a missing customer-provided key and for a disabled or deleted KMS key.
    is_of_file = isinstance(error, OSError) and error.errno in _OF_THE_FILE
    is_of_object = code in (400, 403) or isinstance(error, PermissionDeniedError) or is_of_file
    if is_object and is_of_object and not is_passing and not any(sign in text for sign in _OF_THE_CONNECTION):
        return errors.UnreadableObjectError(subject, f"landing refused: {_short(text)}", _OBJECT_HINT)
    if is_refused and not is_passing:
        return errors.LandingAccessError(subject, f"landing refused: {_short(text)}", hint)
    return errors.LandingUnavailableError(
        subject, f"landing is out of reach: {_short(text)}", "The next run tries again"
    )


def _short(text: str) -> str:
    said = re.search(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>", text)
    line = f"{said[1]}, {said[2]}" if said else text
    # Scrub before cutting: the scrubber does not recognise half of a secret key.
    return scrubbed(" ".join(line.split()))[:300].rstrip(". ")


class Listed(NamedTuple):
    """An object as a listing shows it."""

    key: str
    etag: str
    size_bytes: int
    oddity: str = ""
    kind: Oddity = Oddity.LINK
    uploaded_at: datetime = datetime(1, 1, 1, tzinfo=UTC)
    """Aware: S3's last-modified time, or the file's modification time."""
    is_link: bool = False
    """Whether it is a link in a folder: deleting the link would not delete its target."""


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
            raise errors.SettingsError("TIDEMARK_LANDING_URL", f"{url!r} names no bucket", "Write s3://bucket[/prefix]")
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
            raise errors.SettingsError("AWS_CA_BUNDLE", f"cannot be read ({error})", "Correct the path") from None
    return options
