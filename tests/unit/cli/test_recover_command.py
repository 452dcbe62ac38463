"""`tidemark recover` on the shell: output, exit codes, hidden keys; no Spark."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchRecord
from pipeline_assets.domain.slices import BatchVerdict, Source
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.scenarios.test_shell import InThisProcess
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.export_api import Answer, Vendor, a_vendor

DAY = date(2026, 2, 2)
OTHER = "10002"
PREFIX = f"{PROJECT}-backfill"


class Recovering(InThisProcess):
    vendor: Vendor

    def recover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self("recover", *words, **self.vendor.environment())

    def of_hours(self, first: int, last: int, *more: str) -> subprocess.CompletedProcess[str]:
        return self.recover("--from", f"{DAY}T{first:02}", "--to", f"{DAY}T{last:02}", "--project", PROJECT, *more)

    def hours(self, *words: str) -> dict[str, str]:
        done = self.recover(*words, "--json")
        return {f"{one['project']}/{one['hour']}": one["outcome"] for one in json.loads(done.stdout)}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Recovering]:
    with a_vendor(PROJECT, OTHER) as vendor:
        found = Recovering(tmp_path)
        found.environment |= {
            "TIDEMARK_PROJECTS": f"{PROJECT},{OTHER}", "TIDEMARK_EXPORT_MIN_FREE_BYTES": "0", "TIDEMARK_EXPORT_ATTEMPTS": "1",
            "TIDEMARK_CATALOG_URL": f"sqlite:///{tmp_path}/catalog.db",
        }  # fmt: skip
        found.vendor = vendor
        for hour in range(24):
            vendor.add(PROJECT, Hour(DAY, hour), a_body(events_on(DAY, 2, prefix=str(hour))))
        yield found


def _refuse(shell: Recovering, day: date) -> None:
    batch = BatchKey(Source.REGULAR, PROJECT, day)
    with closing(Ledger(shell.environment["TIDEMARK_CATALOG_URL"])) as ledger:
        why = (BatchVerdict.REFUSED, "regular/10001: 1 unreadable objects")
        record = BatchRecord(batch, *why, deliveries=1, hours=(9,))
        ledger.record(Changes(batches=[record]), "run")


def test_what_is_missing_is_told_and_nothing_is_fetched(shell: Recovering) -> None:
    _refuse(shell, DAY)
    shell.deliver(DAY, b"cut", hour=9)
    told = shell.of_hours(8, 10, "--dry-run")
    assert told.returncode == 0, told.stderr
    assert re.search(r"10001 +2026-02-02 +8, 10 +missing +fetches them", told.stdout)
    assert re.search(r"10001 +2026-02-02 +9 +refused +fetches them +regular/10001: 1 unreadable objects", told.stdout)
    assert "3 of 3 hours are missing or refused; 3 would be fetched" in told.stdout
    assert "hours 0–7, 11–23 are not in raw either and not asked for" in told.stdout
    as_json = shell.recover("--from", str(DAY), "--to", str(DAY), "--project", PROJECT, "--dry-run", "--json")
    hours: list[dict[str, Any]] = json.loads(as_json.stdout)
    missing = {"state": "missing", "is_fetched": True, "is_exported": True, "reason": None}
    assert (len(hours), hours[5]) == (24, {"project": PROJECT, "hour": "2026-02-02T05", **missing})
    assert not shell.vendor.asked
    assert not (shell.landing / PREFIX).exists()


def test_hours_are_recovered_and_a_second_call_has_nothing_to_do(
    shell: Recovering, capfd: pytest.CaptureFixture[str]
) -> None:
    done = shell.recover("--from", f"{DAY}T22", "--to", str(DAY), "--project", PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"10001 +2026-02-02 +22–23 +recovered +2 +[0-9.]+ ", done.stdout)
    assert "2 of 2 hours are whole below the backfill prefix" in done.stdout
    meanwhile = capfd.readouterr().err
    assert "10001 2026-02-02: 2 of 2 hours are there (2 of 2 hours settled, 1.4 kB received)" in meanwhile
    assert {path.name for path in (shell.landing / PREFIX).iterdir()} == {
        f"{PREFIX}_{DAY}_{hour}{end}" for hour in (22, 23) for end in ("#0.json.gz", "_complete")
    }
    again = shell.recover("--from", f"{DAY}T22", "--to", str(DAY), "--project", PROJECT)
    assert (again.returncode, len(shell.vendor.asked)) == (0, 1)
    assert "already there" in again.stdout


def test_what_status_calls_refused_is_recovered_without_naming_it(shell: Recovering) -> None:
    _refuse(shell, DAY)
    assert shell.hours("--refused") == {f"{PROJECT}/{Hour(DAY, hour)}": "recovered" for hour in range(24)}
    # Another day is not refused, and a range limits the days.
    assert shell.hours("--refused", "--from", "2026-02-03", "--to", "2026-02-05") == {}


def test_what_is_not_recovered_exits_1_with_a_sentence_and_the_rest_goes_on(
    shell: Recovering, capfd: pytest.CaptureFixture[str]
) -> None:
    shell.vendor.always(Answer(403, b"nothing for you"), lambda asked: asked.project_id == OTHER)
    done = shell.recover("--from", f"{DAY}T22", "--to", str(DAY))
    assert done.returncode == 1
    for said in (
        "not recovered: export of 10002, 2026-02-02T22 to 2026-02-02T23: the vendor answered 403 Forbidden",
        "Check TIDEMARK_EXPORT_KEY_10002 and TIDEMARK_EXPORT_SECRET_10002",
        "2 of 4 hours are whole",
    ):
        assert said in done.stdout
    assert capfd.readouterr().err.count("403 Forbidden") == 1
    assert "Traceback" not in done.stdout + done.stderr
    newest = datetime.now(UTC) - timedelta(hours=1)
    young = shell.recover("--from", f"{newest:%Y-%m-%dT%H}", "--to", f"{newest:%Y-%m-%dT%H}", "--project", PROJECT)
    assert (young.returncode, "not exported yet" in young.stdout) == (1, True)


def test_a_project_without_keys_exits_2_and_names_the_fix(shell: Recovering) -> None:
    shell.vendor.keys.clear()
    done = shell.recover("--from", str(DAY), "--to", str(DAY))
    assert (done.returncode, "TIDEMARK_EXPORT_KEY_10001: is not set" in done.stderr) == (2, True)
    assert "fix: Set TIDEMARK_EXPORT_KEY_10001 and TIDEMARK_EXPORT_SECRET_10001" in done.stderr


def test_keys_are_shown_nowhere(shell: Recovering, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Scenario: the vendor repeats the keys in its answers. Outcome: they are in no output, log or file."""
    secrets = [value for pair in shell.vendor.keys.values() for value in pair]
    shell.vendor.always(Answer(403, " ".join(secrets).encode()))
    forms = ((), ("--json",), ("--verbose",), ("--dry-run",))
    outputs = [shell.recover("--from", str(DAY), "--to", str(DAY), *more) for more in forms]
    texts = [*(done.stdout + done.stderr for done in outputs), *capfd.readouterr()]
    texts += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert "Forbidden" in texts[0]
    assert not [secret for secret in secrets for text in texts if secret in text]


class _Full(io.BytesIO):
    """A disk with room for so many bytes."""

    def __init__(self, folder: Path, room: int, code: int) -> None:
        super().__init__()
        self._file, self._room, self._code = (folder / "disk").open("wb"), room, code

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, part: Any) -> int:
        self._room -= memoryview(part).nbytes
        if self._room < 0:
            raise OSError(self._code, os.strerror(self._code))
        return super().write(part)


@pytest.mark.parametrize(
    ("at", "room", "code", "said"),
    [
        ("resources.export_api.a_spool_on_disk", 0, errno.ENOSPC, "is full (No space left on device)"),
        ("resources.export_api.a_spool_on_disk", 0, errno.EIO, "cannot be used (Input/output error)"),
        ("pipeline_assets.operations.recover.a_spool", 0, errno.EDQUOT, "is full (Disk quota exceeded)"),
        ("pipeline_assets.operations.recover.a_spool", 200, errno.ENOSPC, "is full (No space left on device)"),
    ],
)
def test_a_disk_that_fills_is_named_in_one_sentence_and_leaves_nothing_half(
    shell: Recovering, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str, room: int, code: int, said: str
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    with monkeypatch.context() as full:
        full.setattr(at, lambda: _Full(tmp_path, room, code))
        done = shell.of_hours(5, 6)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    place = tempfile.gettempdir()
    assert f"{place}: {said}: downloads are kept there meanwhile\n  fix: Make room, or set TMPDIR" in done.stderr
    left = [path for path in shell.landing.rglob("*") if path.is_file()]
    assert not any(path.name.endswith("_complete") for path in left)
    assert all(gzip.decompress(path.read_bytes()) for path in left)
    assert shell.hours("--from", f"{DAY}T05", "--to", f"{DAY}T06", "--project", PROJECT) == {
        f"{PROJECT}/{DAY}T{hour:02}": "recovered" for hour in (5, 6)
    }


def test_a_machine_without_a_folder_for_downloads_says_so(
    shell: Recovering, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    done = shell.of_hours(5, 6)
    assert done.returncode == 1
    assert f"{tmp_path / 'gone'}: cannot be used (No such file or directory)" in done.stderr
