"""What landing needs from a folder or a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from pipeline_assets.domain.deliveries import Oddity

if TYPE_CHECKING:
    from obstore.store import LocalStore, S3Store


class Listed(NamedTuple):
    """An object as a listing shows it."""

    key: str
    etag: str
    size_bytes: int
    oddity: str = ""
    """Why this entry is not an object, whatever its name; empty for an object."""
    kind: Oddity = Oddity.LINK
    """The kind of oddity, where there is one."""


class Place(Protocol):
    """What differs between the kinds of landing: opening, order of keys, reading, and a listing that accepts any key."""

    @property
    def url(self) -> str:
        """The path or URL, for messages."""

    @property
    def is_ordered(self) -> bool:
        """Whether listings are ordered by key."""

    def open(self) -> LocalStore | S3Store:
        """Open a connection, which this process must not share."""

    def require(self) -> None:
        """Raise LandingAccessError where a missing landing would be listed as empty."""

    def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:
        """Yield the objects of a folder after a key, which may be any string; all objects where listings are unordered."""

    def read(self, store: Any, key: str, etag: str, *, is_glance: bool = False) -> IO[bytes]:
        """Return the bytes of the version that was listed with `etag`; with `is_glance` only the first byte.

        Raises obstore's errors, ObjectMovedError and UnreadableObjectError.
        """

    def create(self, store: Any, key: str, content: IO[bytes]) -> bool:
        """Write the rest of `content` under a key atomically; False, with nothing changed, where the key exists."""
