"""A process is dead by sight on this machine, by counted looks elsewhere, and never by a clock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.processes import LOOK_SECONDS, PATIENT_LOOKS, STILL_LOOKS, Life, Process, Sight, Watch
from resources.ledger import processes as this_process
from resources.ledger.processes import heartbeat
from resources.ledger.schema import PROCESSES
from resources.ledger.store import Ledger

NOON = datetime(2026, 2, 2, 12, tzinfo=UTC)
RUN = "7d7fe6a4-0000-4000-8000-000000000001"
A_PROCESS = Process(RUN, "daily_load", this_process.Identity("other", "another boot", 4711, 99), steps=1, beats=7)


def watched(*looks: tuple[int, float]) -> Watch:
    """After looks: (beat, seconds after noon)."""
    watch = Watch()
    for beats, seconds in looks:
        watch = watch.looked(beats, NOON + timedelta(seconds=seconds))
    return watch


def still(process: Process, looks: int) -> Process:
    """After the look that found its beat, and so many more that found the same."""
    return replace(process, watch=watched(*((process.beats, LOOK_SECONDS * number) for number in range(looks + 1))))


def test_a_process_elsewhere_is_dead_when_its_beat_stands_still_and_not_before() -> None:
    """Scenario: looks find the same beat. Outcome: it runs until enough looks have, and again with its next beat."""
    lives = [still(A_PROCESS, looks).life(Sight.HIDDEN) for looks in range(STILL_LOOKS + 1)]
    assert lives == [Life.RUNNING] * STILL_LOOKS + [Life.DEAD]
    dead = still(A_PROCESS, STILL_LOOKS)
    assert (dead.life(Sight.HIDDEN), replace(dead, beats=8).life(Sight.HIDDEN)) == (Life.DEAD, Life.RUNNING)
    assert replace(A_PROCESS, is_lost=True).life(Sight.HIDDEN) is Life.DEAD


def test_no_clock_kills_and_none_keeps_alive() -> None:
    """Scenario: clocks leap, go back or stop; many look at once. Outcome: a leap counts as one look, the others as none."""
    assert (watched((7, 0), (7, 86_400)).still, watched((7, 86_400), (7, 0), (7, 1), (7, 2)).still) == (1, 0)
    set_back = watched((7, 86_400), *((7, LOOK_SECONDS * number) for number in range(STILL_LOOKS + 1)))
    assert (set_back.still, watched(*((7, 0.1 * number) for number in range(100))).still) == (STILL_LOOKS, 0)
    assert watched(*((7, 0),) * 100).still == 0


def test_what_this_machine_sees_is_certain_at_once() -> None:
    assert (still(A_PROCESS, 99).life(Sight.THERE), A_PROCESS.life(Sight.GONE)) == (Life.RUNNING, Life.DEAD)
    assert replace(A_PROCESS, is_ended=True).life(Sight.GONE) is Life.ENDED


def test_a_run_dies_with_its_process_and_not_with_its_op() -> None:
    """Outcome: a run is dead where none of its processes can live; other work is left alone."""
    ended = replace(A_PROCESS, is_ended=True)
    assert (ended.has_died_with_its_run(Sight.THERE), ended.has_died_with_its_run(Sight.GONE)) == (False, True)
    for hidden in (ended, Process(RUN, "daily_load", None)):
        looks = [still(hidden, number).has_died_with_its_run(Sight.HIDDEN) for number in (STILL_LOOKS, PATIENT_LOOKS)]
        assert looks == [False, True]
    assert not replace(still(ended, PATIENT_LOOKS), steps=2).has_died_with_its_run(Sight.HIDDEN)
    assert not replace(A_PROCESS, steps=0).has_died_with_its_run(Sight.GONE)


@pytest.mark.skipif(this_process.place() is None, reason="the system does not tell of processes in /proc")
def test_a_process_is_known_by_boot_namespaces_number_and_start() -> None:
    """Scenario: a child lives, is a zombie, is gone; other numbers, other boots. Outcome: seen, gone, or hidden."""
    own, sight = this_process.identity(), this_process.sight
    assert sight(own) is Sight.THERE
    assert own.started is not None
    assert sight(replace(own, started=own.started + 1)) is Sight.GONE
    assert sight(replace(own, place="another boot")) is Sight.HIDDEN
    assert (sight(replace(own, place=None)), sight(None)) == (Sight.HIDDEN, Sight.HIDDEN)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    of_child = replace(own, pid=child.pid, started=int(fields[19]))
    assert sight(of_child) is Sight.THERE
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert sight(of_child) is Sight.GONE
    child.communicate()
    assert sight(of_child) is Sight.GONE


def wait_until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def execute(ledger: Ledger, *statements: sa.Executable) -> None:
    with ledger.engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)


def url_of(ledger: Ledger) -> str:
    return ledger.engine.url.render_as_string(hide_password=False)


def test_an_op_is_on_record_for_as_long_as_it_works(any_ledger: Ledger) -> None:
    """Scenario: an op works, its ledger forgets it, it ends; another try; a missing process.
    Outcome: it beats on both databases until its end; the database's clock counts looks."""
    processes, url = any_ledger.processes, url_of(any_ledger)

    def of_run() -> Process:
        found = processes.find(RUN.replace("-", ""))
        assert found is not None
        return found

    with heartbeat(url, RUN, "daily_load", 1, seconds=0.05):
        wait_until(lambda: of_run().beats > 3)
        assert of_run().identity == this_process.identity()
        processes.lose([RUN])
        wait_until(lambda: not of_run().is_lost)
        before, long_ago = of_run(), datetime.now(UTC) - timedelta(hours=30)
        execute(any_ledger, PROCESSES.delete())
        wait_until(lambda: processes.find(RUN) is not None)
        assert of_run().begun_at == before.begun_at
        processes.begin("long", "drill", this_process.identity(), 0, long_ago.isoformat())
        dead = replace(this_process.identity(), started=0)
        processes.begin("dead", "drill", dead, 0, (long_ago - timedelta(days=9)).isoformat())
        assert timedelta(hours=31) > max(processes.live_ages()) > timedelta(hours=29)
        # Of another machine, and missed: it may have lost only its way to the ledger.
        elsewhere, begun_at = replace(dead, place="elsewhere"), long_ago - timedelta(days=1)
        processes.begin("dead", "drill", elsewhere, 0, begun_at.isoformat())
        processes.lose(["dead"])
        assert max(processes.live_ages()) > timedelta(hours=53)
        silent = (datetime.now(UTC) - timedelta(hours=25)).isoformat()
        execute(any_ledger, PROCESSES.update().where(PROCESSES.c.run_id == "dead").values(beat_at=silent))
        assert max(processes.live_ages()) < timedelta(hours=31)
        processes.end("long")
        assert list(processes.look([], {})) == [RUN]
    assert of_run().is_ended
    assert not [one for one in threading.enumerate() if "heartbeat" in one.name]
    assert processes.look([], {}) == {}
    beats = of_run().beats
    with heartbeat(url, RUN, "daily_load", 1):
        assert (of_run().is_ended, of_run().beats) == (False, beats + 1)

    other = RUN.replace("1", "2")
    missed = processes.look([other], {other: "daily_load"})[other]
    assert (missed.identity, missed.job, missed.beats, missed.watch.still) == (None, "daily_load", 0, 0)
    for expected in (1, 2):
        earlier = (missed.watch.at or NOON) - timedelta(seconds=LOOK_SECONDS + 5)
        execute(any_ledger, PROCESSES.update().values(looked_at=earlier.isoformat()))
        missed = processes.look([other], {other: "daily_load"})[other]
        assert missed.watch.still == expected


def test_a_beat_survives_a_ledger_that_is_away(ledger: Ledger) -> None:
    """Scenario: the ledger's table is away while an op works. Outcome: it beats on."""
    with heartbeat(url_of(ledger), RUN, "daily_load", 1, seconds=0.05):
        execute(ledger, sa.text(f"ALTER TABLE {PROCESSES.name} RENAME TO away"))
        time.sleep(0.3)
        execute(ledger, sa.text(f"ALTER TABLE away RENAME TO {PROCESSES.name}"))
        before = ledger.processes.find(RUN)
        assert before is not None
        wait_until(lambda: (ledger.processes.find(RUN) or before).beats > before.beats)
