"""Lines for machines are whole, tell their run and no secret, and never stop a run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from resources.json_log import JsonLog


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_every_line_names_its_run_and_keeps_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    JsonLog(path, print, run_id="r1", job="daily_load").write(
        "log", message="one\ntwo é", url="postgresql://ada:geheim@db/x", deep=[{"why": "postgresql://a:geheim@db/x"}]
    )
    (line,) = lines_of(path)
    assert (line["run_id"], line["job"], line["level"], line["message"]) == ("r1", "daily_load", "info", "one\ntwo é")
    assert "geheim" not in path.read_text()


def test_writers_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with ThreadPoolExecutor(8) as pool:
        for run in range(8):
            log = JsonLog(path, print, run_id=str(run))
            pool.map(lambda number, log=log: log.write("log", number=number, pad="x" * 2_000), range(50))
    assert sorted((line["run_id"], line["number"]) for line in lines_of(path)) == sorted(
        (str(run), number) for run in range(8) for number in range(50)
    )


def test_a_file_that_was_rotated_is_left(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    log = JsonLog(path, print)
    log.write("first")
    path.rename(tmp_path / "runs.1")
    log.write("second")
    assert [line["event"] for line in lines_of(path)] == ["second"]


def test_a_place_that_cannot_be_written_is_complained_of_once(tmp_path: Path) -> None:
    said: list[str] = []
    log = JsonLog(tmp_path / "none" / "runs.jsonl", said.append)
    log.write("one")
    log.write("two")
    assert len(said) == 1
    assert "No such file or directory; this run writes no more lines to it" in said[0]


def test_without_a_file_nothing_is_opened(tmp_path: Path) -> None:
    JsonLog(None, print).write("one")
    assert not list(tmp_path.iterdir())


def test_a_stream_is_written_to_without_being_opened(capfd: pytest.CaptureFixture[str]) -> None:
    JsonLog(Path("/dev/stderr"), print, run_id="r1").write("run_begun")
    assert json.loads(capfd.readouterr().err)["event"] == "run_begun"
