"""Secrets that can be found again: canary values, and the search for them in whatever was written."""

from __future__ import annotations

import base64
import gzip
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_GZIP = b"\x1f\x8b"
_SHORTEST = 12
"""Of the beginning of a value by which its base64 is recognized: a shorter one might be met by chance."""


@dataclass(frozen=True)
class Canary:
    """A secret of the product, whose middle is met nowhere else."""

    name: str
    """Which secret it is: the setting or variable that holds it."""
    word: str
    """Letters and digits alone, so that no encoding of URLs, JSON or SQL changes it."""

    @property
    def value(self) -> str:
        """As awkward as a secret may be; what stands around the word is encoded in other ways in other places."""
        return f"p+/{self.word}%=@x"

    def forms(self) -> Iterator[bytes]:
        """What of it is left in a text that holds it raw, in a URL, reversed as nobody does, as hex and as base64."""
        word = self.word.encode()
        yield word
        yield word.hex().encode()
        yield self.word.encode("utf-16-le")
        # Of whatever it is a part, it begins at one of three places in a group of base64.
        for shift in range(3):
            whole = base64.b64encode(b"\0" * shift + word)
            # The groups that hold bytes of the neighbours differ.
            yield whole[4 if shift else 0 : len(whole) - 4]


def canaries(names: Iterable[str]) -> dict[str, Canary]:
    """A canary for each secret."""
    return {
        name: Canary(name, f"C4n4ry{number:02d}Qx{zlib.crc32(name.encode()):08x}Zk")
        for number, name in enumerate(names)
    }


@dataclass(frozen=True)
class Find:
    """A secret where none may be."""

    place: str
    secret: str

    def __str__(self) -> str:
        return f"{self.place} holds {self.secret}"


def found_in(content: bytes, place: str, wanted: Mapping[str, Canary]) -> list[Find]:
    """The secrets in a text, however it is encoded."""
    if content.startswith(_GZIP):
        with suppress(OSError, EOFError, zlib.error):
            content += gzip.decompress(content)
    return [Find(place, name) for name, one in wanted.items() if any(form in content for form in one.forms())]


def found_below(folder: Path, wanted: Mapping[str, Canary], apart: Iterable[Path] = ()) -> tuple[list[Find], int]:
    """The secrets in all files below a folder, their names included, but for those apart; and how many were looked through."""
    left_out = set(apart)
    finds, files = [], 0
    for path in sorted(folder.rglob("*")):
        place = str(path.relative_to(folder))
        finds += found_in(path.name.encode(), f"the name {place}", wanted)
        if path.is_file() and not path.is_symlink() and path not in left_out:
            with suppress(FileNotFoundError):
                finds += found_in(path.read_bytes(), place, wanted)
                files += 1
    return finds, files


@dataclass
class Watched:
    """What was seen of command lines while a block ran."""

    commands: set[str] = field(default_factory=set)
    """Programs that were looked at, by their names."""
    finds: set[Find] = field(default_factory=set)
    looks: int = 0


@contextmanager
def watched_command_lines(wanted: Mapping[str, Canary], seconds: float = 0.05) -> Iterator[Watched]:
    """Looks at the command line of every process again and again, as any user of the machine may."""
    seen, ended = Watched(), threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            seen.looks += 1
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    line = entry.read_bytes()
                    if line:
                        name = Path(line.split(b"\0")[0].decode("utf-8", "replace")).name
                        seen.commands.add(name)
                        seen.finds.update(found_in(line, f"the command line of {name}", wanted))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
