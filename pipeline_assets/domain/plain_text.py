"""Names, values and reasons as data: what others wrote is shown, and does nothing.

Contains: the form that text takes before it reaches a terminal, a log, a page or Dagster.
Add here: another form.
Does not contain: secrets (masking.py), drawing (cli/terminal.py, orchestration/event_text.py,
diff/page.py).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from pipeline_assets.domain.masking import scrubbed

LONGEST = 2_000
"""Characters of one value, one reason or one line; an object's name has 1,024 bytes at most."""
LONGEST_REASON = 1_000
"""Characters of a reason that an operator gives."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SQL_SAFE = re.compile(r"[A-Za-z0-9/_.#:@ +=-]*")


def shown(value: object, most: int = LONGEST) -> str:
    r"""One line of text: what is not seen or moves the cursor is spelled out, `\x1b`; what is too long is cut and counted.

    A text that is shown already stays as it is, so that every exit may ask for it.
    """
    text = bounded(scrubbed(str(value)), most)
    return text if text.isprintable() else bounded("".join(map(_visible, text)), most)


def _visible(character: str) -> str:
    # Not printable: control characters, breaks of lines, marks of direction, lone surrogates, blanks other than the space.
    if character.isprintable():
        return character
    code = ord(character)
    wide = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return _SHORT.get(character) or (wide if code < 0x10000 else f"\\U{code:08x}")


def bounded(text: str, most: int = LONGEST) -> str:
    """The text, or its beginning and how much is left out; never longer than `most`."""
    if len(text) <= most:
        return text
    kept = max(0, most - 32)
    return f"{text[:kept]}… ({len(text) - kept:,} more characters)"


def few(texts: Iterable[object], most: int = 3, separator: str = ", ") -> str:
    """The first few, and how many more."""
    listed = [shown(text) for text in texts]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return separator.join(listed[:most]) + more


def recordable(text: str, most: int = LONGEST) -> str:
    """A text as the ledger keeps it: what no database takes is spelled out, the rest is as it was given."""
    return bounded(
        "".join(_visible(c) if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in bounded(text, most)), most
    )


def as_html(value: object, most: int = LONGEST) -> str:
    """Text of a page, also inside of an attribute's quotes."""
    return html.escape(shown(value, most))


def as_markdown(value: object, most: int = LONGEST) -> str:
    """Text of a paragraph, a list or a cell of a table in Markdown: no markup, no HTML, no image, no link."""
    words = shown(value, most).split(" ")
    text = " ".join(_code(word) if _is_link(word) else _escaped(word) for word in words)
    # What begins a heading, a list or a line under a heading.
    return re.sub(r"^( *)(?:([#+=>-])|([0-9]{1,9})([.)]))", r"\1\3\\\2\4", text)


def _is_link(word: str) -> bool:
    # Markdown makes links of these by itself, and escapes do not hinder it.
    return "://" in word or "www." in word.lower() or "@" in word or "mailto:" in word.lower()


def _code(word: str) -> str:
    # A bar ends a cell inside of code as well: the code is ended before it.
    return "\\|".join(_span(part) if part else "" for part in word.split("|"))


def _span(part: str) -> str:
    fence = "`" * (max(map(len, re.findall("`+", part)), default=0) + 1)
    pad = " " if part.startswith("`") or part.endswith("`") else ""
    return f"{fence}{pad}{part}{pad}{fence}"


def _escaped(word: str) -> str:
    word = re.sub(r"([\\`*\[\]<|~&])", r"\\\1", word)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", word)


def fenced(lines: Iterable[object], most: int = 200) -> str:
    """Lines as a block of code that none of them ends."""
    listed = [shown(line) for line in lines]
    listed = listed[:most] + ([f"and {len(listed) - most:,} more lines"] if len(listed) > most else [])
    fence = "`" * max(3, max((len(run) for line in listed for run in re.findall("`+", line)), default=0) + 1)
    return "\n".join([fence, *listed, fence])


def sql_text(value: str) -> str:
    """A literal of Spark's SQL: whatever may end it, or be replaced in it, is spelled by its code."""
    if _SQL_SAFE.fullmatch(value):
        return f"'{value}'"
    parts = (
        c if _SQL_SAFE.fullmatch(c) else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in value
    )
    return f"'{''.join(parts)}'"
