"""An object as a listing of landing shows it, and the meaning of failures of obstore and boto3."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from pipeline_assets.domain import errors
from pipeline_assets.domain.deliveries import Oddity
from pipeline_assets.domain.masking import scrubbed

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
