"""Writers to landing go on after a kill: every point x object x restart (`make crash-matrix`)."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.operations.recover import NO_DATA_MARKER
from resources.failpoints import VARIABLE, Failpoint
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.export_api import Vendor, a_vendor
from tests.support.points import OF_MOVES, OF_RECOVERY
from tests.support.shell import Shell

DAY = date(2026, 2, 2)
GRAMMAR = KeyGrammar(Settings().marker_pattern)
SHARDS = {4: 1, 5: 2, 6: 0}
"""Hour -> objects at the vendor."""
MIXED = ((8, 5), (8, 6), (9, 1))
"""Hour and number of the recovered objects among the regular ones."""
SAME, OTHER = "the same command", "another command"


def _key(hour: int, shard: int, source: Source = Source.BACKFILL) -> str:
    return GRAMMAR.format_delivery(BatchKey(source, PROJECT, DAY), hour, shard)


def _marker(hour: int) -> str:
    return GRAMMAR.format_marker(BatchKey(Source.BACKFILL, PROJECT, DAY), hour)


RECOVERY = (
    f"{Failpoint.AFTER_DOWNLOAD}:{DAY}T04",
    *(f"{Failpoint.AFTER_OBJECT}:{_key(hour, shard)}" for hour, count in SHARDS.items() for shard in range(count)),
    *(f"{Failpoint.BEFORE_MARKER}:{_marker(hour)}" for hour in SHARDS),
)
MOVES = (
    *(
        f"{point}:{_key(*place, Source.REGULAR)}"
        for point in (Failpoint.AFTER_COPY, Failpoint.AFTER_VERIFY, Failpoint.AFTER_DELETE)
        for place in MIXED
    ),
    *(f"{Failpoint.AFTER_MARKER}:{_marker(hour)}" for hour in (8, 9)),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Only with --full; unit tests kill at each point once."""
    is_full = metafunc.config.getoption("--full")
    if "recovery_point" in metafunc.fixturenames:
        rows = [(point, restart) for point in RECOVERY for restart in (SAME, OTHER)] if is_full else []
        metafunc.parametrize(("recovery_point", "restart"), rows)
    if "move_point" in metafunc.fixturenames:
        metafunc.parametrize(
            ("move_point", "restart"),
            [(point, restart) for point in MOVES for restart in (SAME, OTHER)] if is_full else [],
        )


@dataclass
class Place:
    shell: Shell
    vendor: Vendor

    def files(self) -> dict[str, bytes]:
        root = self.shell.landing
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.shell(*words, **self.vendor.environment(), TIDEMARK_EXPORT_MIN_FREE_BYTES="0", **environment)

    def kill(self, point: str, *words: str) -> None:
        killed = self.run(*words, **{VARIABLE: point})
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_vendor(PROJECT) as vendor:
        yield Place(Shell(tmp_path), vendor)


@pytest.fixture
def account(record_property: Any) -> Callable[[str, str, str], None]:
    started = time.monotonic()

    def told(what: str, point: str, restart: str) -> None:
        name, _, key = point.partition(":")
        record_property("kill", (name, f"{what} {key[-22:]}", "-", restart, f"{time.monotonic() - started:.0f}"))

    return told


def test_a_recovery_killed_and_started_again(
    place: Place, account: Callable[[str, str, str], None], recovery_point: str, restart: str
) -> None:
    """Scenario: SIGKILL in `tidemark recover` of three hours, then another run. Outcome: no marker over half an hour;
    each object once, whole, with its marker. An empty hour is marked only beside hours with data."""
    expected: dict[str, bytes] = {}
    for hour, count in SHARDS.items():
        expected[_marker(hour)] = b"" if count else NO_DATA_MARKER
        for shard in range(count):
            body = expected[_key(hour, shard)] = a_body(events_on(DAY, 3, prefix=f"{hour}-{shard}-"))
            place.vendor.add(PROJECT, Hour(DAY, hour), body, shard)
    words = ("recover", "--from", f"{DAY}T04", "--to", f"{DAY}T06")
    place.kill(recovery_point, *words)
    left = place.files()
    assert left.items() <= expected.items()
    for hour, count in SHARDS.items():
        assert _marker(hour) not in left or all(_key(hour, shard) in left for shard in range(count))
    if restart == OTHER:
        words = ("recover", "--from", f"{DAY}T03", "--to", f"{DAY}T07")
        expected |= {_marker(hour): NO_DATA_MARKER for hour in (3, 7)}
    done = place.run(*words)
    # Without an hour with data, nothing shows whose keys said "no data".
    is_proven = any(_marker(hour) not in left for hour, count in SHARDS.items() if count)
    assert done.returncode == (0 if is_proven else 1), done.stdout + done.stderr
    assert place.files() == {key: body for key, body in expected.items() if is_proven or body != NO_DATA_MARKER}
    asked = len(place.vendor.asked)
    if is_proven:
        assert place.run(*words).returncode == 0
        assert (len(place.vendor.asked), place.files()) == (asked, expected)
    account("recover", recovery_point, restart)


def test_a_move_killed_and_started_again(
    place: Place, tmp_path: Path, account: Callable[[str, str, str], None], move_point: str, restart: str
) -> None:
    """Scenario: SIGKILL in `tidemark split-landing --apply`, then another run.
    Outcome: no object is ever nowhere, or gone before its copy has a marker; in the end each lies in its place once."""
    stays = {_key(hour, 1, Source.REGULAR): a_body(events_on(DAY, 3, prefix=f"r{hour}-")) for hour in (8, 11)}
    mixed = {_key(*at, Source.REGULAR): a_body(events_on(DAY, 3, prefix=f"m{at[0]}-{at[1]}-")) for at in MIXED}
    for key, body in {**stays, **mixed}.items():
        (place.shell.landing / key).write_bytes(body)
    expected = (
        stays | {_key(*at): mixed[_key(*at, Source.REGULAR)] for at in MIXED} | {_marker(hour): b"" for hour in (8, 9)}
    )
    named = tmp_path / "keys"
    named.write_text("\n".join(mixed), "utf-8")
    words = ("split-landing", "--project", PROJECT, "--keys", str(named), "--apply")
    place.kill(move_point, *words)
    left = place.files()
    for at in MIXED:
        assert _key(*at, Source.REGULAR) in left or {_key(*at), _marker(at[0])} <= left.keys()
    assert {*stays.values(), *mixed.values()} <= {*left.values()}
    if restart == OTHER:
        # Reversed: the object moved last goes first.
        named.write_text("\n".join(reversed(mixed)), "utf-8")
    done = place.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.files() == expected
    account("split-landing", move_point, restart)


def test_every_point_of_both_is_in_the_matrix() -> None:
    for rows, points in ((RECOVERY, OF_RECOVERY), (MOVES, OF_MOVES)):
        assert {row.partition(":")[0] for row in rows} == {str(point) for point in points}
