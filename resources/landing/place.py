"""What landing asks of the place it lies in.

Contains: the protocol, and an object as it is listed.
Add here: another question to a place.
Does not contain: kinds of places (folder.py, backends.py).
"""

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
    """Why it is no object at all, whatever its name."""
    kind: Oddity = Oddity.LINK
    """Of the oddity, where there is one."""


class Place(Protocol):
    """What differs between kinds of places: opening, order of keys, reading, and a listing that takes any key."""

    @property
    def url(self) -> str:
        """Where it is, for people."""

    @property
    def is_ordered(self) -> bool:
        """Whether a listing is in the order of keys."""

    def open(self) -> LocalStore | S3Store:
        """A connection, which belongs to the process."""

    def require(self) -> None:
        """Raise LandingAccessError where an absent place would list as empty."""

    def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:
        """Objects of a folder behind a key, any key whatever; where not ordered, all of them."""

    def read(self, store: Any, key: str, etag: str, *, is_glance: bool = False) -> IO[bytes]:
        """The version that was listed with `etag`, of which a glance is the first byte.

        Fails as obstore does, or with ObjectMovedError, UnreadableObjectError.
        """

    def create(self, store: Any, key: str, content: IO[bytes]) -> bool:
        """Put what follows in `content` under a key, whole or not at all; False, and nothing changed, where anything is there."""
