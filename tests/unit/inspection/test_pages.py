"""A template's values are text of the page."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.inspection.pages import PAGES, command
from tests.unit.domain.test_hostile_text import HOSTILE


@pytest.mark.parametrize("text", HOSTILE)
def test_a_template_prints_values_as_text_in_every_place(text: str) -> None:
    page = PAGES.from_string(
        '<b title="{{ value }}">{{ value }}</b>{% macro of(one) %}{{ one }}{% endmacro %}{{ of(value) }}{{ [value] | join }}'
    )
    assert page.render(value=text) == f'<b title="{as_html(text)}">{as_html(text)}</b>{as_html(text)}{as_html(text)}'


def test_a_command_is_one_element_whose_options_are_not_broken() -> None:
    assert command("tidemark load --from <b> --to x") == (
        '<code class="command">tidemark load <span>--from</span> &lt;b&gt; <span>--to</span> x</code>'
    )
    assert PAGES.from_string("{{ words | command }}").render(words="a --b") == command("a --b")


def test_a_name_that_a_template_does_not_know_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        PAGES.from_string("{{ nothing }}").render()
