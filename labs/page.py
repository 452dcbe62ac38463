"""The labs' page: one HTML file with every story and chart, in the style of the health page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from labs.story import Story
from pipeline_assets.inspection.pages import PAGES, text

_CODE = re.compile(r"`([^`]+)`")
_PAGE = """{% extends "page.html" %}
{% block title %}Tidemark: labs{% endblock %}
{% block body %}
<header><h1>Learn by doing: {{ stories | length }} labs</h1>
<p class="quiet small">Each chart is of loads that this run made, with the real pipeline, in a scratch folder.
<code>make labs</code></p></header>
<main>
{% for story in stories %}
<section id="{{ story.name }}"><h2>{{ story.title }}</h2><div class="charts">
<ol>{% for sentence in story.told %}<li>{{ with_code(sentence) }}</li>{% endfor %}</ol>
<figure><figcaption class="small quiet">
{% for told in story.legend %}
<span class="key s{{ loop.index }}"></span>{{ told }}
{% endfor %}
</figcaption>{{ story.chart }}</figure></div></section>
{% endfor %}
</main>
{% endblock %}
"""


def page_of(stories: Sequence[Story]) -> str:
    """Return the whole page, including style sheet and charts."""
    return PAGES.from_string(_PAGE).render(stories=stories, with_code=_with_code)


def _with_code(sentence: str) -> Markup:
    return Markup(_CODE.sub(r"<code>\1</code>", str(text(sentence))))  # noqa: S704 - it is escaped
