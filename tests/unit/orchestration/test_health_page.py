"""The page of health is one well-formed file without loads or scripts, and with every red day."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest
from jinja2 import UndefinedError

from pipeline_assets.domain.changes import Cause
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.plain_text import as_html, shown
from pipeline_assets.domain.records import BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.inspection.health import HealthReport, read_health
from pipeline_assets.inspection.pages import PAGES, command
from pipeline_assets.orchestration.assets import REPORT_KEY, Clock, health_asset
from pipeline_assets.orchestration.health_page import page_of, write_page
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from resources.publishing import Promise
from tests.support.recorded_history import Incidents, record_history
from tests.support.shell import commands
from tests.unit.domain.test_hostile_text import HOSTILE

PROJECTS = ("10001", "10002", "10003")
LAST = date(2026, 3, 31)
NOW = datetime(2026, 4, 1, 8, tzinfo=UTC)
_VOID = {"meta", "br", "path", "use"}


@dataclass
class Page(HTMLParser):
    """A browser's view of a page; an unclosed tag fails."""

    tags: set[str] = field(default_factory=set)
    attributes: list[tuple[str, str]] = field(default_factory=list)
    windows: dict[str, str] = field(default_factory=dict)
    text: str = ""
    _open: list[tuple[str, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            named = dict(attrs)
            self._open.append((tag, named.get("id") if "popover" in named else None))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            opened, _ = self._open.pop()
            assert opened == tag, f"</{tag}> closes <{opened}>"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] != "style":
            self.text += data
        for _, window in self._open:
            if window is not None:
                self.windows[window] = self.windows.get(window, "") + data

    def all(self, name: str) -> list[str]:
        return [value for attribute, value in self.attributes if attribute == name]


def parsed(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page._open == []
    return page


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> HealthReport:
    """More days than are shown singly, with incidents among the old ones."""
    old = {"unreadable": (3, 170), "shrinks": (12, 150, 151), "gone": (21, 20, 160)}
    incidents = Incidents(**old, held=(36, 35, 171), revised=(50, 100))
    with closing(Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db")) as ledger:
        record_history(ledger, PROJECTS, LAST, 190, objects=1, incidents=incidents)
        return read_health(ledger, Settings(projects=PROJECTS), NOW)


def test_it_is_well_formed_and_needs_nothing_from_elsewhere(history: HealthReport) -> None:
    html = page_of(history)
    page = parsed(html)
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    assert set(page.all("popovertarget")) == set(page.windows) <= set(ids)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "image", "object", "base", "form"})
    references = [*page.all("href"), *page.all("src"), *page.all("xlink:href"), *re.findall(r"url\(([^)]*)\)", html)]
    assert references
    assert all(reference.removeprefix("#") in ids for reference in references)
    assert not re.search(r"https?:|//[a-z]|@import|xmlns", html)
    assert "default-src 'none'" in html
    assert history.promise.sentence in page.text
    assert Promise.TABLE_BY_TABLE.sentence in parsed(page_of(replace(history, promise=Promise.TABLE_BY_TABLE))).text


def test_charts_take_all_colours_from_the_page_so_that_both_schemes_are_read(history: HealthReport) -> None:
    html = page_of(history)
    charts = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(charts) == 8
    assert len({re.search(r'aria-label="([^"]+)"', chart)[1] for chart in charts}) == 8  # type: ignore[index]
    for chart in charts:
        assert not re.search(r"#[0-9a-fA-F]{3,8}[;\"]", chart), chart[:300]
        assert set(re.findall(r"var\((--[a-z0-9-]+)\)", chart)) <= set(re.findall(r"(--[a-z0-9-]+):", html))
    light, dark = (
        set(re.findall(r"(--[a-z0-9-]+): #", block)) for block in re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    )
    assert light == dark
    assert "color-scheme: light dark" in html


def test_every_red_day_is_there_with_its_reason_and_its_command(history: HealthReport) -> None:
    page = parsed(page_of(history))
    windows = [" ".join(text.split()) for text in page.windows.values()]
    assert history.calendar is not None
    red = history.calendar.red
    assert len(red) == 3 + 5 + 4 * 3
    for state in red:
        (fault,) = state.faults
        told = [text for text in windows if text.startswith(f"{state.day} {state.table}:")]
        command = f"--from {state.day} --to {state.day} --project {fault.project_id}"
        assert any(command in text and fault.reason[:60] in text for text in told), (state.table, state.day)
    assert all(command in page.text for question in history.questions for command in question.commands)
    assert "truncated_gzip" in page.text
    assert f"Earlier months, with {len({one.day for one in red if one.day < date(2025, 12, 1)})} red days" in page.text
    assert "the vendor exported hour 17 again" in page.text


def test_a_disaster_has_a_page_that_a_browser_opens_and_no_day_is_left_out(tmp_path: Path) -> None:
    """Scenario: every day is red for a long reason of its own. Outcome: a small page with each day and command."""
    days = [LAST - timedelta(days=shift) for shift in range(300)]
    keys = [BatchKey(Source.REGULAR, project, day) for day in days for project in PROJECTS]
    long = {key: (f"{key.project_id} {key.arrival_date} {'x' * 1900}", "y" * 1900) for key in keys}
    batches = [BatchRecord(key, BatchVerdict.REFUSED, *why, deliveries=1) for key, why in long.items()]
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.record(Changes(batches=batches), "run")
        html = page_of(read_health(ledger, Settings(projects=PROJECTS), NOW))
    assert len(html) < 900_000
    windows = " ".join(parsed(html).windows.values())
    projects = " ".join(f"--project {project}" for project in PROJECTS)
    for day in days:
        assert f"tidemark load --source regular --from {day} --to {day} {projects}" in windows
    assert "300 refused or held" in html


def test_text_of_others_is_text_of_the_page(tmp_path: Path) -> None:
    """Scenario: texts hold markup, line breaks, directions. Outcome: no new tag or attribute; shown as elsewhere."""
    told = [text.encode("utf-8", "backslashreplace").decode() for text in HOSTILE]
    words = [f"word{number}" for number in range(len(HOSTILE))]
    plain, hostile = (parsed(_page_with(of, tmp_path / name)) for name, of in (("plain", words), ("hostile", told)))
    assert hostile.tags == plain.tags
    assert {name for name, _ in hostile.attributes} == {name for name, _ in plain.attributes}
    assert not {chr(code) for code in (*range(9), 0x1B, 0x9B, 0x202E, 0x200B)} & set(hostile.text)
    for text in told:
        assert shown(text)[:100] in hostile.text


def _page_with(texts: Sequence[str], folder: Path) -> str:
    changes = Changes()
    for number, text in enumerate(texts):
        day = LAST - timedelta(days=number)
        key, batch = Slice(day, "10001"), BatchKey(Source.REGULAR, "10001", day)
        refused = Evaluation(Check.DELIVERY_RECONCILES, False, text, text, {"mismatch_count": 3})
        final = {"is_final": True, "final_at": "2026-03-01T00:00:00+00:00", "refused_evaluations": (refused,)}
        record = SliceRecord("refined/events", key, Verdict.REFUSED, text, text, digest=Digest(2, 2, 2), **final)
        changes.slices += [record, replace(record, table=text[:50])]
        why = (BatchVerdict.REFUSED, text, text)
        changes.batches.append(BatchRecord(batch, *why, deliveries=1, evaluations=(refused,)))
        changes.deliveries.append(DeliveryRecord(batch, text, "e", 1, None, 1, 1, 1, 0, text, is_accepted=False))
        for step, digests in enumerate(pairwise((EMPTY, Digest(1, 1, 1), Digest(2, 2, 2)))):
            place, cause = ("refined/events", key, step, step - 1), Cause.parse(text)
            told = {"accepted_reason": text, "figures": {text: step}}
            changes.publications.append(PublicationRecord(*place, *digests, cause, text, **told))
    folder.mkdir()
    with closing(Ledger(f"sqlite:///{folder}/ledger.db")) as ledger:
        ledger.record(changes, texts[0])
        return page_of(read_health(ledger, Settings(projects=("10001",)), NOW))


def test_a_page_that_cannot_be_written_leaves_the_old_one_and_says_why(history: HealthReport, tmp_path: Path) -> None:
    page = write_page(history, tmp_path / "new" / "health.html")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert [path.name for path in page.parent.iterdir()] == ["health.html"]
    report = commands("report", TIDEMARK_CATALOG_URL=f"sqlite:///{tmp_path}/catalog.db", TIDEMARK_PROJECTS="10001")
    done = report("--out", str(page / "inside.html"))
    assert (done.exit_code, "cannot be written there" in done.output) == (2, True)
    assert report("--out", str(tmp_path)).exit_code == 2
    assert [path.name for path in page.parent.iterdir()] == ["health.html"]


def test_the_command_needs_the_ledger_alone(tmp_path: Path) -> None:
    """Outcome: without Java, warehouse and landing the page is written; a ledger that knows no lake is refused."""
    environment = {
        "PATH": "", "PYTHONPATH": str(PROJECT_ROOT), "HOME": str(tmp_path), "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", ""),
        "TIDEMARK_PROJECTS": "10001", "TIDEMARK_CATALOG_URL": f"sqlite:///{tmp_path}/ledger.db",
        "TIDEMARK_WAREHOUSE_URL": "s3://nowhere", "TIDEMARK_LANDING_URL": "s3://nowhere",
    }  # fmt: skip
    command = [sys.executable, "-c", "from pipeline_assets.cli import main; main()", "report", "--out", "page.html"]
    refused = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (refused.returncode, "s3://nowhere/_tidemark/warehouse.json" in refused.stderr) == (1, True)
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.lake.bind("L")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing waits for an operator" in done.stdout
    assert "Nothing is on record yet" in (tmp_path / "page.html").read_text()


def test_the_asset_draws_the_page_and_links_to_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    settings = Settings(projects=PROJECTS, catalog_url=url, health_report=tmp_path / "data" / "health.html")
    with closing(Ledger(url)) as ledger:
        record_history(ledger, PROJECTS, LAST, 30, objects=1)
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([health_asset(settings)], instance=instance, resources={"clock": Clock(NOW)})
    (event,) = done.asset_materializations_for_node("ops__health_report")
    assert (event.asset_key, event.metadata["page"].value) == (REPORT_KEY, (tmp_path / "data" / "health.html").as_uri())
    assert (event.metadata["red_days"].value, event.metadata["waits_for_a_person"].value) == (4, 3)
    assert "--accept-missing" in str(event.metadata["what waits"].value)
    assert "as of 2026-04-01 08:00 UTC" in (tmp_path / "data" / "health.html").read_text("utf-8")


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
