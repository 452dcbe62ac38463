"""Failures of landing as ours: a person must act, or time may heal.

Contains: the reading of types, HTTP statuses and texts of obstore and boto3.
Add here: another failure seen in the wild.
Does not contain: what is done about it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from pipeline_assets.domain.errors import (
    LandingAccessError,
    LandingUnavailableError,
    TidemarkError,
    UnreadableObjectError,
)
from pipeline_assets.domain.masking import scrubbed


@contextmanager
def landing_errors(subject: str, *, is_object: bool = False) -> Iterator[None]:
    """Turn failures of obstore and boto3 into ours; that an object is missing or changed is for the caller."""
    try:
        yield
    except (BaseError, BotoCoreError, ClientError, OSError) as error:
        is_moved = isinstance(error, PreconditionError | FileNotFoundError) and "NoSuchBucket" not in str(error)
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        # The disk that is full is the worker's.
        if (is_object and is_moved) or is_full:
            raise
        raise _failure(subject, error, is_object=is_object) from error
    except ValueError as error:
        if "get_credentials" not in str(error):
            raise
        raise LandingAccessError(subject, "no AWS credentials were found", _ACCESS_HINT) from error


_ACCESS_HINT = "Check TIDEMARK_LANDING_URL, region, endpoint and credentials, and the rights to list and read"
_REFUSALS = (PermissionDeniedError, UnauthenticatedError, PermissionError, FileNotFoundError, BotoCoreError)
_PASSING = ("RequestTimeout<", "ThrottlingException<", "EndpointConnectionError:", "ConnectTimeoutError:",
            "ReadTimeoutError:")  # fmt: skip
"""Passing trouble that comes dressed as a refusal: S3 answers a slow client, or too many calls for KMS keys, with 400,
and a credential provider that could not reach its server looks like a bad credential."""


_OBJECT_HINT = "Restore the object, or the right to read it, or take it out of landing; every load tries again"
_OF_THE_CONNECTION = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed", "ExpiredToken",
                      "InvalidToken", "InvalidSecurity", "AccountProblem", "AuthorizationHeaderMalformed",
                      "AuthorizationQueryParametersError", "authorization mechanism", "TokenRefreshRequired", "RequestExpired",
                      "MissingSecurityHeader", "InvalidClientTokenId", "UnrecognizedClient", "MissingAuthenticationToken",
                      "InvalidBucketName", "InvalidRegion", "IllegalLocationConstraint", "NotSignedUp")  # fmt: skip
"""Refusals that no single object is to blame for, although some come with the status of those that are."""
_OF_THE_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG,
                errno.EIO, errno.ESTALE, errno.EBADMSG)  # fmt: skip
"""Where it is the whole disk instead, no other file can be read either, which the load finds out."""


def _failure(subject: str, error: Exception, *, is_object: bool) -> TidemarkError:
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
    # 400 is the answer to a key of the client's that is not given, and to a KMS key that is disabled or gone.
    is_of_object = code in (400, 403) or isinstance(error, PermissionDeniedError) or _is_of_the_file(error)
    if is_object and is_of_object and not is_passing and not any(sign in text for sign in _OF_THE_CONNECTION):
        return UnreadableObjectError(subject, f"landing refused: {_short(text)}", _OBJECT_HINT)
    if is_refused and not is_passing:
        return LandingAccessError(subject, f"landing refused: {_short(text)}", _ACCESS_HINT)
    return LandingUnavailableError(subject, f"landing is out of reach: {_short(text)}", "The next run tries again")


def _is_of_the_file(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _OF_THE_FILE


def _short(text: str) -> str:
    """One line without the XML around S3's own words."""
    said = re.search(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>", text)
    line = f"{said[1]}, {said[2]}" if said else text
    # Before it is cut: half of a key is none to whoever removes keys.
    return scrubbed(" ".join(line.split()))[:300].rstrip(". ")
