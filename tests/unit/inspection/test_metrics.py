"""Prometheus figures equal the page of health; dashboard and rules name only existing figures."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import promql_parser as promql
import pytest
import yaml
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from pipeline_assets.config import load_settings
from pipeline_assets.domain.machine import write_whole
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.inspection.health import read_health
from pipeline_assets.inspection.metrics import read_samples, text_of, write_textfile
from pipeline_assets.orchestration.live_runs import run_queue
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.recorded_history import record_history, record_run
from tests.support.shell import commands

PROJECTS = ("10001", "10002", "10003")
LAST, NOW = date(2026, 3, 31), datetime(2026, 4, 1, 8, tzinfo=UTC)
QUEUE = {"queued": 2, "working": 1}
OF_SCRAPES = {"instance", "job"}
Figures = dict[tuple[str, tuple[str, ...]], float]


@cache
def families() -> dict[str, Metric]:
    """Name, for a counter with `_total` -> its family in an empty ledger."""
    with closing(Ledger("sqlite://")) as ledger:
        found = read_samples(ledger, Settings(projects=PROJECTS), NOW, {})
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in found}


def labels_of_family(name: str) -> tuple[str, ...]:
    return tuple(families()[name]._labelnames)  # type: ignore[attr-defined]  # it has no public name


def figures_in(text: str) -> Figures:
    """Name and label values -> value, by Prometheus' own parser; labels are the family's."""
    found: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = labels_of_family(sample.name)
            assert sorted(sample.labels) == sorted(names), sample
            assert family.type == families()[sample.name].type
            found[sample.name, tuple(sample.labels[name] for name in names)] = sample.value
    return found


def a_history(folder: Path, days: int) -> Iterator[Ledger]:
    with closing(Ledger(f"sqlite:///{folder}/ledger.db")) as ledger:
        record_history(ledger, PROJECTS, LAST, days, objects=2)
        run = {"tables": ["refined/events"], "first_day": LAST, "last_day": LAST, "snapshots": {}}
        ended = datetime(2026, 4, 1, 7, tzinfo=UTC)
        record_run(
            ledger, "heals", **run, started_at=(ended - timedelta(seconds=90)).isoformat(), finished_at=ended.isoformat(),
            verdicts={"refined/events published": 2, "refined/events refused": 1},
        )  # fmt: skip
        yield ledger


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    for _ in a_history(folder, 60):
        pass
    return folder / "ledger.db"


@pytest.fixture
def ledger(recorded: Path, tmp_path: Path) -> Iterator[Ledger]:
    shutil.copy(recorded, tmp_path / "ledger.db")
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as opened:
        yield opened


def told(ledger: Ledger, queue: dict[str, int] | None = QUEUE) -> Figures:
    return figures_in(text_of(read_samples(ledger, Settings(projects=PROJECTS), NOW, queue)))


def test_the_figures_are_those_of_the_page_of_health(ledger: Ledger) -> None:
    figures, report = told(ledger), read_health(ledger, Settings(projects=PROJECTS), NOW)
    assert {name for name, _ in figures} == set(families())
    assert (figures["tidemark_up", ()], figures["tidemark_metrics_timestamp_seconds", ()]) == (1, NOW.timestamp())
    assert report.calendar is not None
    refused = {(one.table, one.day) for one in report.calendar.states.values() if one.verdict.value == "refused"}
    shown = {labels: value for (name, labels), value in figures.items() if name == "tidemark_days"}
    assert sum(shown.values()) == len(report.calendar.states)
    assert sum(value for (_, verdict), value in shown.items() if verdict == "refused") == len(refused) == 4
    by_project = {labels: value for (name, labels), value in figures.items() if name == "tidemark_refused_days"}
    assert {labels: value for labels, value in by_project.items() if value} == {
        ("raw/regular_events", "10001"): 2, ("raw/regular_events", "10002"): 1, ("refined/events", "10001"): 1,
    }  # fmt: skip
    questions = {labels: value for (name, labels), value in figures.items() if name == "tidemark_questions"}
    assert sum(questions.values()) - questions["follow",] == len(report.for_a_person) > 0
    assert figures["tidemark_newest_day_timestamp_seconds", ("10001",)] == datetime(2026, 3, 31, tzinfo=UTC).timestamp()
    total = sum(one.rows for one in report.volumes.values())
    assert sum(figures["tidemark_rows", (project,)] for project in PROJECTS) == total > 0
    assert figures["tidemark_revisions", ()] == len(report.revisions) > 0
    assert figures["tidemark_quarantined_objects", ("truncated_gzip",)] == 1
    lines = sum(value for (name, _), value in figures.items() if name == "tidemark_quarantined_lines")
    assert lines == sum(one.lines for one in report.refused_by_reason if not one.is_whole) > 0


def test_loads_count_by_what_they_left_open(ledger: Ledger) -> None:
    figures = told(ledger)
    heal = "derived_tables_only"
    ends = (("regular", "complete"), (heal, "incomplete"), (heal, "complete"))
    assert [figures["tidemark_runs_total", end] for end in ends] == [60, 1, 0]
    assert figures["tidemark_reported_slices_total", ("refined/events", "refused")] == 1
    assert figures["tidemark_last_run_seconds", (heal,)] == 90
    ended = datetime(2026, 4, 1, 7, tzinfo=UTC).timestamp()
    assert figures["tidemark_last_run_timestamp_seconds", (heal,)] == ended


def test_a_table_takes_what_its_newest_publication_says(ledger: Ledger) -> None:
    known = ledger.publications("refined/events")[-1]
    newest = replace(known, key=Slice(LAST, "10001"), digest_before=EMPTY)
    for number, seconds in enumerate((30.0, 12.5), 1):
        made = replace(newest, snapshot_id=9_000 + number, seconds=seconds, digest_after=Digest(number, 1, 1))
        ledger.record(Changes(publications=[made]), "newest")
    assert told(ledger)["tidemark_table_seconds", ("refined/events",)] == 12.5


def test_more_days_make_no_more_series(tmp_path: Path, ledger: Ledger) -> None:
    folder = tmp_path / "longer"
    folder.mkdir()
    (longer,) = [told(one) for one in a_history(folder, 75)]
    assert set(longer) == set(told(ledger))
    assert not any(re.search(r"\d{4}-\d\d-\d\d", "".join(labels)) for _, labels in longer)


def test_text_of_others_is_no_label(ledger: Ledger) -> None:
    of_others = text("UPDATE tidemark_deliveries SET error = 'a \"text\" of others' WHERE error IS NOT NULL")
    with ledger.engine.begin() as connection:
        connection.execute(of_others)
    figures = told(ledger)
    assert figures["tidemark_quarantined_objects", ("other",)] == 1
    assert figures["tidemark_quarantined_objects", ("truncated_gzip",)] == 0


def test_a_queue_that_cannot_be_read_takes_no_figure_of_the_ledger_with_it(ledger: Ledger) -> None:
    figures = told(ledger, None)
    assert figures["tidemark_dagster_up", ()] == 0
    assert not any(name == "tidemark_dagster_runs" for name, _ in figures)
    assert figures["tidemark_rows", ("10001",)] > 0


def test_the_queue_counts_runs_that_wait_and_runs_that_work() -> None:
    states = [dg.DagsterRunStatus.NOT_STARTED] * 2 + [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS]
    with dg.DagsterInstance.ephemeral() as instance:
        for number, status in enumerate(states):
            instance.run_storage.add_run(dg.DagsterRun(job_name="load", run_id=f"0000000{number}", status=status))
        assert run_queue(instance) == QUEUE


@pytest.fixture
def metrics(ledger: Ledger, tmp_path: Path) -> Callable[..., Any]:
    """`tidemark metrics` of this ledger."""
    (tmp_path / "home").mkdir()
    own = {"TIDEMARK_PROJECTS": ",".join(PROJECTS), "DAGSTER_HOME": f"{tmp_path}/home"}
    return commands("metrics", TIDEMARK_CATALOG_URL=f"sqlite:///{tmp_path}/ledger.db", **own)


def test_the_command_prints_or_writes_the_same_figures(tmp_path: Path, metrics: Callable[..., Any]) -> None:
    printed = metrics()
    assert printed.exit_code == 0, printed.output
    file = tmp_path / "tidemark.prom"
    for _ in range(2):  # the second overwrites the first
        assert metrics("--output", str(file)).exit_code == 0
    of_now = {("tidemark_metrics_timestamp_seconds", ())}
    written, shown = figures_in(file.read_text()), figures_in(printed.stdout)
    assert {key: written[key] for key in written.keys() - of_now} == {key: shown[key] for key in shown.keys() - of_now}
    assert written["tidemark_dagster_up", ()] == 1
    assert [path.name for path in tmp_path.iterdir() if "prom" in path.name] == ["tidemark.prom"]


@pytest.mark.parametrize(("umask", "rights"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_figures_and_page_have_the_rights_that_the_umask_leaves(umask: int, rights: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        figures = write_textfile("# HELP tidemark_up x", tmp_path / "a.prom")
        written = [figures, write_whole(tmp_path / "a.html", "page")]
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in written] == [rights, rights]


def test_a_ledger_that_is_away_is_told_in_place_of_old_figures(
    tmp_path: Path, ledger: Ledger, metrics: Callable[..., Any]
) -> None:
    file = tmp_path / "tidemark.prom"
    write_textfile(text_of(read_samples(ledger, Settings(projects=PROJECTS), NOW, None)), file)
    (tmp_path / "broken.db").write_bytes(b"this is no database " * 100)
    done = metrics("--output", str(file), TIDEMARK_LEDGER_URL=f"sqlite:///{tmp_path}/broken.db")
    assert (done.exit_code, "fix:" in done.output) == (1, True)
    figures = figures_in(file.read_text())
    assert {name for name, _ in figures} == {"tidemark_up", "tidemark_metrics_timestamp_seconds", "tidemark_build_info"}
    assert figures["tidemark_up", ()] == 0
    assert figures["tidemark_metrics_timestamp_seconds", ()] > NOW.timestamp()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, metrics: Callable[..., Any]) -> None:
    other = tmp_path / "other.prom"
    other.write_text("node_load1 3\n")
    done = metrics("--output", str(other))
    assert (done.exit_code, "is no file of figures that Tidemark wrote" in done.output) == (2, True)
    assert other.read_text() == "node_load1 3\n"
    for wrong, reason in (("figures.txt", "does not end in .prom"), ("none/a.prom", "cannot be written there")):
        done = metrics("--output", str(tmp_path / wrong))
        assert (done.exit_code, reason in done.output) == (2, True), done.output


def test_a_setting_that_no_collector_reads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"does not end in \.prom"):
        Settings(metrics_file=Path("figures.txt"))


def test_the_file_is_relative_to_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tidemark.toml").write_text('metrics_file = "out/a.prom"\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "tidemark.toml"))
    assert load_settings().metrics_file == tmp_path / "out/a.prom"


def test_a_home_that_is_not_there_takes_no_figure_of_the_ledger_with_it(metrics: Callable[..., Any]) -> None:
    done = metrics(DAGSTER_HOME="/nowhere/none")
    assert done.exit_code == 0, done.output
    assert figures_in(done.stdout)["tidemark_dagster_up", ()] == 0


DASHBOARD = json.loads((PROJECT_ROOT / "deploy/grafana/tidemark.json").read_text("utf-8"))
RULES_FILE = PROJECT_ROOT / "deploy/prometheus/tidemark.rules.yml"
RULES = [rule for group in yaml.safe_load(RULES_FILE.read_text("utf-8"))["groups"] for rule in group["rules"]]
OF_COUNTERS = {"rate", "increase", "irate"}


def labels_of(node: Any, used: set[str], within: str = "") -> set[str]:
    """An expression's labels; fails for an unexported figure or label. `used` collects names."""
    kind = type(node).__name__
    if kind == "MatrixSelector":
        return labels_of(node.vector_selector, used, within)
    if kind == "VectorSelector":
        assert node.name in families(), f"{node.name} is not exported"
        assert (families()[node.name].type == "counter") == (within in OF_COUNTERS), f"{within}() of {node.name}"
        used.add(node.name)
        known = {*labels_of_family(node.name), *OF_SCRAPES}
        assert {matcher.name for matcher in node.matchers.matchers} <= known, node
        return known
    if kind == "Call":
        parts = [labels_of(argument, used, node.func.name) for argument in node.args]
        return set().union(*parts) if parts else set()
    if kind == "AggregateExpr":
        inner = labels_of(node.expr, used)
        kept = set(node.modifier.labels) if node.modifier is not None else set()
        assert kept <= inner, f"by {kept - inner}"
        return kept
    if kind == "BinaryExpr":
        left, right = labels_of(node.lhs, used), labels_of(node.rhs, used)
        matching = node.modifier.matching if node.modifier is not None else None
        assert matching is None or set(matching.labels) <= left & right
        return left or right
    if kind in ("ParenExpr", "UnaryExpr"):
        return labels_of(node.expr, used, within)
    assert kind in ("NumberLiteral", "StringLiteral"), kind
    return set()


def shown_labels(text: str) -> set[str]:
    return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))


def test_the_dashboard_shows_every_figure_by_labels_that_it_has() -> None:
    used: set[str] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            labels = labels_of(promql.parse(target["expr"]), used)
            assert shown_labels(target["legendFormat"]) <= labels, target
    assert used == set(families())
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
    assert label in labels_of_family(name)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_a_rule_asks_for_figures_that_there_are_and_names_what_to_do(rule: dict[str, Any]) -> None:
    labels = labels_of(promql.parse(rule["expr"]), set())
    texts = " ".join(rule["annotations"].values())
    assert shown_labels(texts) <= labels
    assert rule["labels"]["severity"] in ("page", "ticket")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (PROJECT_ROOT / page).read_text("utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert anchor in anchors, anchor


_WRONG = ("sum(tidemark_nothing)", "sum by (day) (tidemark_days)", 'tidemark_days{project="1"}')


@pytest.mark.parametrize("wrong", [*_WRONG, "rate(tidemark_days[5m])", "tidemark_runs_total"])
def test_an_expression_that_shows_nothing_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        labels_of(promql.parse(wrong), set())
