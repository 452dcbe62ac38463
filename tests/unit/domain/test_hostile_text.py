"""Names, values and reasons are bounded data in every output: terminal, log, JSON, HTML, Markdown, SQL."""

from __future__ import annotations

import ast
import html
import json
import re
from datetime import date
from pathlib import Path

import pytest
import sqlalchemy as sa
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.domain import plain_text
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.records import BatchRecord, Exclusion, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import PROJECT_ROOT
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from resources.ledger.changes import Changes
from resources.ledger.schema import PUBLICATIONS
from resources.ledger.store import Ledger

DAY = date(2026, 2, 2)
HOSTILE = (
    "10001/[/x]y",
    "[bold red]alarm[/JIRA-1] :bomb:",
    "a\x1b[31mred\x1b]0;title\x07\x9b2J",
    "one\n12:00:00 refined/events: 7 published\r\u2028two\x85",
    "\u202egnp.exe\u2066\u200b",
    "lone \ud83d surrogate",
    "![i](http://evil.example/x.png) [l](http://evil.example) <img src=x onerror=alert(1)> <script>alert(1)</script>",
    "| cell | `code` ``` ~~~ _a_ **b** # c",
    "'; DROP TABLE x; -- ${env:HOME} \\' \\",
    "www.evil.example me@evil.example http://evil.example/|x",
    "x" * 10_000,
)
UNSEEN = [chr(code) for code in (*range(32), *range(127, 160), 0x200B, 0x2028, 0x202E, 0x2066, 0xD83D) if code != 10]


def _is_plain(text: str) -> bool:
    return not any(one in text for one in UNSEEN)


@pytest.mark.parametrize(
    "text",
    ["<!channel> & <@U1> <https://evil.example|ours>", "@here @channel", "[ours](//evil.example) ![x](/y)",
     "see https://evil.example/login or HTTP://evil.example", "WWW.evil.example", "me@evil.example"],
)  # fmt: skip
def test_a_chat_gets_no_mention_link_or_markup_and_the_same_to_read(text: str) -> None:
    """Slack reads `<…>` and `&`; others read `@name`, URLs and Markdown links in plain text."""
    sent = plain_text.as_chat(text)
    assert not re.search(r"[<>]|@\w|://|www\.|\]\(|&(?!amp;|lt;|gt;)", sent, re.IGNORECASE)
    assert html.unescape(sent).replace("\u2060", "") == text
    assert (
        plain_text.as_chat("refined/events 2026-02-02/10001: rows 1_0 → 2")
        == "refined/events 2026-02-02/10001: rows 1_0 → 2"
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_one_visible_line_whatever_it_is(text: str) -> None:
    assert plain_text.shown(text).isprintable()
    assert len(plain_text.shown(text)) <= plain_text.LONGEST
    assert plain_text.shown(plain_text.shown(text)) == plain_text.shown(text)
    plain_text.shown(text).encode()


def test_what_is_not_seen_is_spelled_out() -> None:
    assert plain_text.shown("a\x1b[0m\n\u202e\ud83d\U000e0041") == "a\\x1b[0m\\n\\u202e\\ud83d\\U000e0041"
    assert (
        plain_text.shown("Zürich 東京 10001/10001_2026-02-02_10#1.json.gz")
        == "Zürich 東京 10001/10001_2026-02-02_10#1.json.gz"
    )
    assert plain_text.bounded("y" * 100, 50) == f"{'y' * 18}… (82 more characters)"
    assert plain_text.few(map(str, range(9))) == "0, 1, 2 and 6 more"


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_it_and_makes_nothing_of_it(text: str) -> None:
    """Outcome: a list item, a table cell and a code block hold the shown text, without link, image, HTML or emphasis."""
    parser = MarkdownIt("gfm-like", {"linkify": False})
    told = plain_text.as_markdown(text)
    item = parser.parse(f"- {told}")
    cells = [t for t in parser.parse(f"| a | b |\n|---|---|\n| {told} | x |") if t.type == "inline"]
    assert (len([token for token in item if token.type == "inline"]), len(cells)) == (1, 4)
    inner = next(token for token in item if token.type == "inline")
    for inline in (inner, cells[2]):
        children = inline.children or ()
        assert {child.type for child in children} <= {"text", "code_inline", "text_special"}, children
        assert "".join(child.content for child in children).split() == plain_text.shown(text).split()
    (block,) = parser.parse(plain_text.fenced([text, "end"]))
    assert (block.type, block.content) == ("fence", f"{plain_text.shown(text)}\nend\n")


@pytest.mark.parametrize("text", HOSTILE)
def test_html_and_sql_hold_it_as_text(text: str) -> None:
    assert not set(plain_text.as_html(text)) & set("<>\"'")
    assert _is_plain(plain_text.as_html(text))
    literal = plain_text.sql_text(text)
    assert literal[0] == literal[-1] == "'"
    assert not set(literal[1:-1]) & set("'\"$;\n")


@pytest.fixture
def shell(tmp_path: Path) -> CliRunner:
    catalog = f"sqlite:///{tmp_path}/ledger.db"
    return CliRunner(env={"TIDEMARK_CATALOG_URL": catalog, "TIDEMARK_PROJECTS": "10001", "DAGSTER_HOME": str(tmp_path)})


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_on_record_is_data_to_every_command_that_reads_it(text: str, shell: CliRunner, ledger: Ledger) -> None:
    """Scenario: hostile texts in the ledger. Outcome: each command prints them in its own lines, exits 0, valid JSON."""
    recordable = text.encode("utf-8", "backslashreplace").decode()
    key, batch = Slice(DAY, "10001"), BatchKey(Source.REGULAR, "10001", DAY)
    refused = Evaluation(Check.DELIVERY_RECONCILES, False, recordable, recordable)
    published = PublicationRecord(
        "refined/events", key, 1, 0, Digest(0, 0, 0), Digest(1, 1, 1), Cause(CauseKind.OTHER, recordable), "r",
        accepted_reason=recordable,
    )  # fmt: skip
    batches = [BatchRecord(batch, BatchVerdict.REFUSED, recordable, recordable, evaluations=(refused,))]
    slices = [SliceRecord("refined/events", key, Verdict.REFUSED, recordable, recordable)]
    ledger.record(Changes(batches=batches, slices=slices, publications=[published]), "run")
    ledger.interventions.exclude([Exclusion(batch, recordable, recordable, None, recordable)], "run")
    span = ("--from", str(DAY), "--to", str(DAY))
    for words in (("status", *span), ("exclusions",), ("history", "refined/events")):
        done = shell.invoke(app, words)
        assert done.exit_code == 0, (words, done.exception)
        assert _is_plain(done.output), words
        assert "12:00:00 refined/events" not in [line[:23] for line in done.output.splitlines()]
        as_json = shell.invoke(app, [*words, "--json"])
        assert json.loads(as_json.stdout)
        assert _is_plain(as_json.stdout), words
    with ledger.engine.begin() as connection:
        connection.execute(sa.update(PUBLICATIONS).values(id=1234))
    # Rollback and replay take the number as it is printed.
    assert "1234" in shell.invoke(app, ["history", "refined/events"]).output
    listed = "".join(shell.invoke(app, ["status", *span]).output.split())
    assert "".join(plain_text.shown(text)[:40].split()) in listed


@pytest.mark.parametrize("text", HOSTILE)
def test_an_error_is_plain_from_its_birth_and_a_hostile_key_is_refused_by_one(text: str, shell: CliRunner) -> None:
    said = str(UsageError(text, text, text))
    assert said.isprintable()
    assert len(said) < 7_000
    if not text.startswith("'") and "\ud83d" not in text:
        done = shell.invoke(app, ["exclude", text, "--reason", "why"])
        assert done.exit_code == 2, done.output
        assert "is not the key of a delivery" in done.output
        assert _is_plain(done.output)


def test_nothing_is_printed_past_the_one_place() -> None:
    """Outcome: only the escaping modules make consoles, rich's Text and markup, and Dagster's Markdown."""
    homes = {
        "Console(": {"pipeline_assets/cli/terminal.py"},
        "Text(": {"pipeline_assets/cli/terminal.py"},
        "MetadataValue.md(": {"pipeline_assets/orchestration/events.py"},
        "rich.markup": set(),
        "html.escape(": {"pipeline_assets/domain/plain_text.py"},
        "print_exc(": set(),
        "json.dumps(rows": set(),
    }
    found = []
    for path in [*PROJECT_ROOT.glob("pipeline_assets/**/*.py"), *PROJECT_ROOT.glob("sample_export/*.py")]:
        name, code = path.relative_to(PROJECT_ROOT).as_posix(), path.read_text("utf-8")
        signs = {sign for sign in homes if re.search(rf"(?<![A-Za-z]){re.escape(sign)}", code)}
        found += [f"{name}: {sign}" for sign in signs if name not in homes[sign]]
        nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
        found += [f"{name}:{node.lineno}: markup" for node in nodes if "[/]" in str(node.value)]
    assert found == []
