"""Canary values for secrets, and the search for them in all output."""

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
"""Length by which a value's base64 is recognized; shorter ones may match by chance."""


@dataclass(frozen=True)
class Canary:
    """A secret of the product with a unique middle."""

    name: str
    """The setting or variable that holds it."""
    word: str
    """Letters and digits alone, so that no encoding of URLs, JSON or SQL changes it."""

    @property
    def value(self) -> str:
        """An awkward value; encodings change the characters around the word."""
        return f"p+/{self.word}%=@x"

    def forms(self) -> Iterator[bytes]:
        """Traces of it in a text: raw or in a URL, reversed, as hex, as base64."""
        word = self.word.encode()
        yield word
        yield word.hex().encode()
        yield self.word.encode("utf-16-le")
        # Within any text, it begins at one of three places in a group of base64.
        for shift in range(3):
            whole = base64.b64encode(b"\0" * shift + word)
            # Groups with bytes of the neighbours differ.
            yield whole[4 if shift else 0 : len(whole) - 4]


def canaries(names: Iterable[str]) -> dict[str, Canary]:
    return {
        name: Canary(name, f"C4n4ry{number:02d}Qx{zlib.crc32(name.encode()):08x}Zk")
        for number, name in enumerate(names)
    }


@dataclass(frozen=True)
class Find:
    place: str
    secret: str

    def __str__(self) -> str:
        return f"{self.place} holds {self.secret}"


def found_in(content: bytes, place: str, wanted: Mapping[str, Canary]) -> list[Find]:
    """The secrets in a text, in any encoding."""
    if content.startswith(_GZIP):
        with suppress(OSError, EOFError, zlib.error):
            content += gzip.decompress(content)
    return [Find(place, name) for name, one in wanted.items() if any(form in content for form in one.forms())]


def found_below(folder: Path, wanted: Mapping[str, Canary], apart: Iterable[Path] = ()) -> tuple[list[Find], int]:
    """The secrets in all files below a folder and in their names, without those apart; and the number of searched files."""
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
    """Observations of command lines while a block ran."""

    commands: set[str] = field(default_factory=set)
    """Names of the programs seen."""
    finds: set[Find] = field(default_factory=set)
    looks: int = 0


@contextmanager
def watched_command_lines(wanted: Mapping[str, Canary], seconds: float = 0.05) -> Iterator[Watched]:
    """Reads the command line of every process repeatedly, as any user of the machine may."""
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
