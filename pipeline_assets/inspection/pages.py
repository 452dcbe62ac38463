"""HTML pages from the templates beside this module; printed values have no effect as markup."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline_assets.domain.plain_text import as_html

TEMPLATES = Path(__file__).with_name("templates")
_OPTION = re.compile(r"(?<= )(--[a-z-]+)")
"""Options are wrapped in spans, because a browser breaks lines at hyphens."""


def text(value: object, most: int = 2_000) -> Markup:
    """The value escaped, with invisible characters spelled out, cut at `most` characters; markup stays."""
    if isinstance(value, date | int):
        return Markup(value)  # noqa: S704 - a page of ten years prints 25,000 days, which hold nothing to escape
    return value if isinstance(value, Markup) else Markup(as_html(value, most))  # noqa: S704 - it is escaped


def command(words: str) -> Markup:
    """A command that one click selects completely."""
    return Markup('<code class="command">%s</code>') % Markup(_OPTION.sub(r"<span>\1</span>", str(text(words))))  # noqa: S704 - it is escaped


PAGES = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    finalize=text,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters.update(text=text, command=command)


def render(template: str, **values: Any) -> str:
    """The page of a template in `templates/`."""
    return PAGES.get_template(template).render(values)
