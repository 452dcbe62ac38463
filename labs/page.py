"""The labs' page: one HTML file with every story and chart, in the style of the health page.

Contains: the page's HTML.
Add here: another part of a story's figure.
Does not contain: the stories, the style sheet (pipeline_assets/orchestration/health_page/style.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from labs.story import Story
from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.orchestration.health_page.style import POLICY, STYLE

_HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
_CODE = re.compile(r"`([^`]+)`")


def page_of(stories: Sequence[Story]) -> str:
    """Return the whole page, including style sheet and charts."""
    head = f"{_HEAD}{POLICY}<title>Tidemark: labs</title><style>{STYLE}</style>"
    said = (
        "Each chart is of loads that this run made, with the real pipeline, in a scratch folder. <code>make labs</code>"
    )
    title = f'<header><h1>Learn by doing: {len(stories)} labs</h1><p class="quiet small">{said}</p></header>'
    body = "".join(map(_section, stories))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{title}<main>{body}</main></body></html>\n'


def _section(story: Story) -> str:
    sentences = (_CODE.sub(r"<code>\1</code>", as_html(sentence)) for sentence in story.told)
    told = "".join(f"<li>{sentence}</li>" for sentence in sentences)
    legend = "".join(f'<span class="key s{n}"></span>{as_html(text)} ' for n, text in enumerate(story.legend, 1))
    figure = f'<figure><figcaption class="small quiet">{legend}</figcaption>{story.chart}</figure>'
    beside = f'<div class="charts"><ol>{told}</ol>{figure}</div>'
    return f'<section id="{story.name}"><h2>{as_html(story.title)}</h2>{beside}</section>'
