"""Whether a process that works on the lake is dead: what is on record of it, what this machine sees, what observers counted.

Contains: the rule and its values.
Add here: another sign of life.
Does not contain: looking (resources/this_process.py), what is on record
(resources/ledger/processes.py), what follows (orchestration/dead_runs.py,
orchestration/live_runs.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

BEAT_SECONDS = 10
LOOK_SECONDS = 15
"""Looks that are closer together count as one: a beat lies between two looks that count."""
STILL_LOOKS = 4
"""After so many looks that found the same beat a process is dead: at the earliest a minute after the first of them."""
PATIENT_LOOKS = 12
"""The same where no beat is to be expected: before its op began, or after it ended."""


class Sight(StrEnum):
    """What this machine sees of a process."""

    THERE = "there"
    GONE = "gone"
    HIDDEN = "hidden"
    """It may run where this machine cannot see it."""


class Life(StrEnum):
    """What is known of the process of a run."""

    RUNNING = "running"
    ENDED = "ended"
    """Its work is done; the process may do other work."""
    DEAD = "dead"


@dataclass(frozen=True)
class Identity:
    """What tells a process from every other one."""

    host: str
    """For people alone: two machines may have one name."""
    place: str | None
    """Boot and namespaces in which the number means something; None where the system does not tell."""
    pid: int
    started: int | None
    """In ticks since the boot: numbers are given again."""


@dataclass(frozen=True)
class Watch:
    """What observers noticed: a beat, and in how many looks since it stood still."""

    beats: int = -1
    still: int = 0
    at: datetime | None = None
    """The last look that counted, by the clock of the database."""

    def looked(self, beats: int, now: datetime) -> Watch:
        """After another look.

        Looks are counted, not seconds: a clock that jumps is worth one look at most, and one that was set back none.
        """
        if self.at is None or beats != self.beats:
            return Watch(beats, 0, now)
        if now < self.at:
            return Watch(beats, self.still, now)
        if now - self.at < timedelta(seconds=LOOK_SECONDS):
            return self
        return Watch(beats, self.still + 1, now)


@dataclass(frozen=True)
class Process:
    """The process of a run, as it is on record."""

    run_id: str
    job: str
    identity: Identity | None
    """None where no op of the run has begun."""
    steps: int = 0
    """Steps of the run, all of which this process carries out; 0 where others carry out some."""
    beats: int = 0
    begun_at: str | None = None
    beat_at: str | None = None
    is_ended: bool = False
    is_lost: bool = False
    """Found dead, and not heard of since."""
    watch: Watch = Watch()

    @property
    def carries_the_run(self) -> bool:
        """Whether the run dies with it."""
        return self.steps > 0 or self.identity is None

    def life(self, sight: Sight) -> Life:
        """What a machine knows that sees this of it; certain where it sees anything, patient elsewhere."""
        if sight is Sight.GONE:
            return Life.ENDED if self.is_ended else Life.DEAD
        if self.is_ended:
            return Life.ENDED
        if sight is Sight.THERE:
            return Life.RUNNING
        return Life.DEAD if self.is_lost or self._is_still() else Life.RUNNING

    def has_died_with_its_run(self, sight: Sight) -> bool:
        """Whether a run that Dagster takes for a living one cannot live: its process is dead, or is gone since its op ended."""
        if not self.carries_the_run or sight is Sight.THERE:
            return False
        if not self.is_ended:
            return self.life(sight) is Life.DEAD
        # What else the run does after our op may take hours, and nothing beats meanwhile.
        return sight is Sight.GONE or (self.steps == 1 and self._is_still())

    def _is_still(self) -> bool:
        expected = STILL_LOOKS if self.beats and not self.is_ended else PATIENT_LOOKS
        return self.watch.beats == self.beats and self.watch.still >= expected
