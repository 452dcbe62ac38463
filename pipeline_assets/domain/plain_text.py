"""Names, values and reasons as data: text from outside is shown, and has no effect."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterable

from pipeline_assets.domain.masking import scrubbed

LONGEST = 2_000
"""Characters of one value, reason or line; an object's name has at most 1,024 bytes."""
LONGEST_REASON = 1_000
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SQL_SAFE = re.compile(r"[A-Za-z0-9/_.#:@ +=-]*")


def shown(value: object, most: int = LONGEST) -> str:
    r"""One line of text: invisible and control characters as escapes (`\x1b`), long text cut; idempotent."""
    text = bounded(scrubbed(str(value)), most)
    return text if text.isprintable() else bounded("".join(map(_visible, text)), most)


def _visible(character: str) -> str:
    # Control characters, line breaks, direction marks, lone surrogates, blanks other than the space.
    if character.isprintable():
        return character
    code = ord(character)
    wide = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return _SHORT.get(character) or (wide if code < 0x10000 else f"\\U{code:08x}")


def bounded(text: str, most: int = LONGEST) -> str:
    """The text, or its beginning with the number of omitted characters; never longer than `most`."""
    if len(text) <= most:
        return text
    kept = max(0, most - 32)
    return f"{text[:kept]}… ({len(text) - kept:,} more characters)"


def few(texts: Iterable[object], most: int = 3, separator: str = ", ") -> str:
    """The first `most` texts, and how many more there are."""
    listed = [shown(text) for text in texts]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return separator.join(listed[:most]) + more


def recordable(text: str, most: int = LONGEST) -> str:
    """The text as records keep it: without secrets, with escapes for characters that databases refuse."""
    text = bounded(scrubbed(text), most)
    return bounded("".join(_visible(c) if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text), most)


def as_html(value: object, most: int = LONGEST) -> str:
    """The text escaped for HTML, also within the quotes of an attribute."""
    return html.escape(shown(value, most))


def as_markdown(value: object, most: int = LONGEST) -> str:
    """The text for a paragraph, list or table cell in Markdown, without effect: no markup, HTML, image or link."""
    words = shown(value, most).split(" ")
    text = " ".join(_code(word) if _is_link(word) else _escaped(word) for word in words)
    # These characters at the start begin a heading, a quote, a list or the underline of a heading.
    return re.sub(r"^( *)(?:([#+=>-])|([0-9]{1,9})([.)]))", r"\1\3\\\2\4", text)


def as_chat(text: str) -> str:
    """The text of a chat message, in which no markup, mention or link begins."""
    text = re.sub(r"@|:(?=//)|www(?=\.)|\](?=\()", "\\g<0>\u2060", text, flags=re.IGNORECASE)
    return html.escape(text, quote=False)


def _is_link(word: str) -> bool:
    # Markdown links these even if escaped.
    return "://" in word or "www." in word.lower() or "@" in word or "mailto:" in word.lower()


def _code(word: str) -> str:
    # A bar ends a table cell even inside of code.
    return "\\|".join(_span(part) if part else "" for part in word.split("|"))


def _span(part: str) -> str:
    fence = "`" * (max(map(len, re.findall("`+", part)), default=0) + 1)
    pad = " " if part.startswith("`") or part.endswith("`") else ""
    return f"{fence}{pad}{part}{pad}{fence}"


def _escaped(word: str) -> str:
    word = re.sub(r"([\\`*\[\]<|~&])", r"\\\1", word)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", word)


def fenced(lines: Iterable[object], most: int = 200) -> str:
    """The lines as a fenced code block, with a fence longer than any in the lines."""
    listed = [shown(line) for line in lines]
    listed = listed[:most] + ([f"and {len(listed) - most:,} more lines"] if len(listed) > most else [])
    fence = "`" * max(3, max((len(run) for line in listed for run in re.findall("`+", line)), default=0) + 1)
    return "\n".join([fence, *listed, fence])


def sql_text(value: str) -> str:
    """A string literal of Spark SQL; characters that may end or alter it are escapes."""
    if _SQL_SAFE.fullmatch(value):
        return f"'{value}'"
    parts = (
        c if _SQL_SAFE.fullmatch(c) else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in value
    )
    return f"'{''.join(parts)}'"


def csv_fields(line: str) -> list[str] | None:
    """The fields of one line of a CSV file; None for a line that is none."""
    try:
        (fields,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError):
        return None
    return fields
