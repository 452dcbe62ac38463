"""`tidemark` on the shell: tables, JSON, exit codes, no stack traces."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from resources.ledger.store import Ledger
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.shell import InThisProcess, Shell

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)


def load_words(first: date, last: date) -> tuple[str, ...]:
    return ("load", "--source", "regular", "--from", str(first), "--to", str(last))


def test_a_load_a_refusal_and_bad_usage(spark: Any, tmp_path: Path) -> None:
    """Outcome: exit 0, 1 and 2; object, reason and cure are printed, by a process of its own, never a stack trace."""
    shell = InThisProcess(tmp_path)
    shell.deliver(DAY, a_body(events_on(DAY, 12)))
    good = shell(*load_words(DAY, DAY), "--json")
    assert good.returncode == 0, good.stderr
    lines: list[dict[str, Any]] = json.loads(good.stdout)
    assert [(line["table"], line["verdict"]) for line in lines] == [
        ("raw/regular_events", "published"),
        ("refined/events", "published"),
        ("aggregates/daily_revenue", "published"),
        ("aggregates/event_counts", "published"),
        ("aggregates/active_users", "published"),
    ]
    assert lines[1]["rows"] == 12

    bad_day = date(2026, 2, 3)
    shell.deliver(bad_day, a_body(events_on(bad_day, 12), truncated=True))
    refused = Shell.__call__(shell, *load_words(DAY, bad_day))
    assert refused.returncode == 1
    assert "10001/10001_2026-02-03_10#1.json.gz: truncated_gzip" in refused.stdout
    assert "Have the vendor export that hour again" in " ".join(refused.stdout.split())
    assert "raw/regular_events: " in refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr

    status = shell("status", "--from", str(DAY), "--to", str(bad_day), "--json")
    assert status.returncode == 0
    verdicts = {(line["day"], line["table"]): line["verdict"] for line in json.loads(status.stdout)}
    assert verdicts["2026-02-02", "refined/events"] == "unchanged"
    assert verdicts["2026-02-03", "raw/regular_events"] == "refused"
    assert verdicts["2026-02-03", "aggregates/event_counts"] == "waiting"
    assert verdicts["2026-02-03", "raw/backfill_events"] == "not loaded"


def test_a_mistake_is_undone_and_the_result_proven(spark: Any, tmp_path: Path) -> None:
    """Outcome: each command names its change and exits as promised; decisions are listed."""
    shell = InThisProcess(tmp_path)
    shell.deliver(DAY, a_body(events_on(DAY, 12)))
    assert shell(*load_words(DAY, DAY)).returncode == 0
    key = f"{PROJECT}/{PROJECT}_{DAY}_10#1.json.gz"
    span = ("--from", str(DAY), "--to", str(DAY))

    excluded = shell("exclude", key, "--reason", "a test device")
    assert excluded.returncode == 0, excluded.stderr
    assert "1 excluded: a test device" in excluded.stdout
    (listed,) = json.loads(shell("exclusions", "--json").stdout)
    assert (listed["object_key"], listed["reason"], listed["lifted_at"]) == (key, "a test device", None)
    event = str(events_on(DAY, 12)[0]["$insert_id"])
    unknown = shell("explain", event)
    assert unknown.returncode == 1
    assert f"not searched, because it is excluded: {key}, a test device" in " ".join(unknown.stdout.split())
    lifted = shell("include", key, "--reason", "no test device")
    assert lifted.returncode == 0, lifted.stderr
    assert shell("explain", event).returncode == 0
    changes = json.loads(shell("history", "refined/events", str(DAY), "--json").stdout)
    assert [(change["rows_before"], change["rows_after"]) for change in changes] == [(0, 12), (12, 0), (0, 12)]

    back = ("rollback", *span, "--back-to", changes[1]["published_at"], "--reason", "a rehearsal")
    planned = shell(*back, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert shell("status", *span, "--json").stdout.count('"held"') == 0
    done = shell(*back)
    assert done.returncode == 0, done.stderr
    assert "rolled back" in planned.stdout
    assert done.stdout == planned.stdout
    asked = shell("release", *span, "--reason", "rehearsed")
    assert asked.returncode == 1
    assert "is built again" in asked.stdout
    assert "repeat the command with --yes" in asked.stdout
    released = shell("release", *span, "--reason", "rehearsed", "--yes")
    assert released.returncode == 0, released.stderr

    looked = shell("diff", "refined/events", str(DAY), "--html", str(tmp_path / "pages"))
    assert looked.returncode == 0, looked.stderr
    assert "keys that are equal: 12" in looked.stdout
    assert (tmp_path / "pages" / f"refined.events_{DAY}_{PROJECT}.html").read_text().startswith("<!doctype html>")
    proven = shell("verify", *span)
    assert proven.returncode == 0, proven.stderr
    assert "proven: all 5 slices are equal" in proven.stdout
    usage = shell("rollback", *span, "--back-to", "yesterday", "--reason", "why")
    assert usage.returncode == 2
    assert "neither a time nor the number of a publication" in usage.stderr


def test_what_is_accepted_is_accepted_for_its_project_alone(spark: Any, tmp_path: Path) -> None:
    """Outcome: a refused day stays refused, whatever is rolled back, released or excluded for another project."""
    shell = InThisProcess(tmp_path)
    shell.environment |= {"TIDEMARK_PROJECTS": "10001,10002", "TIDEMARK_CHANGE_MIN_ROWS": "5"}
    span = ("--from", str(DAY), "--to", str(DAY))
    for project in ("10001", "10002"):
        shell.deliver(DAY, a_body(events_on(DAY, 12, app=int(project))), project)
    assert shell(*load_words(DAY, DAY)).returncode == 0
    shell.deliver(DAY, a_body(events_on(DAY, 12, prefix="more", app=10002)), "10002", hour=11)
    assert shell(*load_words(DAY, DAY)).returncode == 1

    def refused() -> set[tuple[str, int]]:
        with closing(Ledger(shell.environment["TIDEMARK_CATALOG_URL"])) as ledger:
            (record,) = ledger.slices("refined/events", ["10002"], [DAY]).values()
        return {(record.verdict.value, record.digest.rows)}

    assert refused() == {("refused", 12)}
    back = ("rollback", *span, "--project", "10001", "--back-to", "2026-01-01", "--reason", "a rehearsal")
    assert shell(*back).returncode == 0
    words = ("--reason", "rehearsed", "--accept-changes", "rehearsed")
    released = shell("release", *span, "--project", "10001", *words, "--yes")
    assert released.returncode == 0, released.stdout + released.stderr
    assert refused() == {("refused", 12)}
    key = f"10001/10001_{DAY}_10#1.json.gz"
    excluded = shell("exclude", key, *words)
    assert excluded.returncode == 0, excluded.stdout + excluded.stderr
    assert refused() == {("refused", 12)}
    assert shell("include", key, "--reason", "it counts").returncode == 0


def test_hostile_names_and_values_are_data_to_every_command_and_page(spark: Any, tmp_path: Path, capfd: Any) -> None:
    """Scenario: names, ids, values and reasons hold markup, escapes, line breaks, links and images; every command runs.
    Outcome: exits as for plain names; all output shows them as bounded text; Dagster's log holds no id or type."""
    evil = "[/x]\x1b[31m\u202e\n12:00:00 forged: 7 published ![i](http://evil.example/i.png) <script>alert(1)</script> ``` '\"\\"
    shell = InThisProcess(tmp_path)
    shell.environment |= {"TIDEMARK_CHANGE_MIN_ROWS": "5", "TIDEMARK_FINAL_AFTER_HOURS": "0"}
    day, span = DAY, ("--from", str(DAY), "--to", str(DAY))
    changes = {"event_type": f"typ3 {evil}", "platform": f"plat {evil}"}
    events = [
        {
            **one,
            **changes,
            "$insert_id": f"inse7t-{n} {evil}{'y' * 5000}",
            "event_properties": {"$revenue": 2, "currency": f"cur {evil}", evil: evil},
        }
        for n, one in enumerate(events_on(day, 40))
    ]
    shell.deliver(day, a_body(events))
    folder = shell.landing / PROJECT
    for number in range(30):
        (folder / f"{number}[bold]\x1b[2J\u202e:bomb:").write_bytes(b"x")
    (folder / "[").mkdir()
    (folder / "[" / "x]y").write_bytes(b"x")
    outputs = []

    def ran(code: int, *words: str) -> str:
        done = shell(*words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        text = done.stdout + done.stderr + capfd.readouterr().err
        assert not set(text) & {"\x1b", "\u202e", "\x07", "\r"}, words
        assert not any(line.startswith("12:00:00 forged") for line in text.splitlines()), words
        outputs.append(text)
        return done.stdout

    ran(0, *load_words(day, day))
    assert "objects are not loaded: 11 unknown_name" in outputs[-1]
    ran(0, "explain", str(events[3]["$insert_id"]))
    assert "inse7t-3 [/x]\\x1b[31m" in outputs[-1]
    assert (
        json.loads(ran(0, "explain", str(events[3]["$insert_id"]), "--json"))["identifier"] == events[3]["$insert_id"]
    )
    key = f"{PROJECT}/{PROJECT}_{day}_10#1.json.gz"
    shell.deliver(day, a_body([{**one, "event_properties": {"n": evil}} for one in events[:20]]))
    ran(1, *load_words(day, day))
    ran(1, "diff", "refined/events", str(day), "--html", str(tmp_path / "pages"))
    assert "inse7t-" in outputs[-1]
    ran(1, "diff", "aggregates/event_counts", str(day), "--html", str(tmp_path / "pages"))
    pages = "".join(path.read_text("utf-8") for path in (tmp_path / "pages").iterdir())
    assert "inse7t-" in pages
    assert "<script" not in pages
    assert "\x1b" not in pages
    ran(0, *load_words(day, day), "--accept-changes", evil)
    ran(0, "history", "refined/events")
    (*_, last) = json.loads(ran(0, "history", "refined/events", "--json"))
    assert last["accepted_reason"] == evil
    ran(0, "exclude", key, "--reason", evil, "--accept-changes", evil)
    ran(0, "exclusions")
    ran(0, "status", *span)
    ran(0, "include", key, "--reason", evil, "--accept-changes", evil)
    back = ("rollback", *span, "--back-to", str(last["number"]), "--reason", evil)
    ran(0, *back, "--dry-run")
    ran(0, *back)
    ran(0, "status", *span)
    assert "held: [/x]\\x1b[31m" in "".join(outputs[-1])
    ran(0, "release", *span, "--reason", evil, "--yes", "--accept-changes", evil)
    ran(0, "verify", *span)
    ran(0, "maintenance", "--dry-run")
    ran(2, "exclude", key, "--reason", "z" * 100_000)
    assert "has a reason of 100,000 characters" in " ".join(outputs[-1].split())
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    for delivered in (b"inse7t-", b"typ3 ", b"cur [", b"plat "):
        assert delivered not in kept, delivered
    assert b"y" * 2_100 not in kept
