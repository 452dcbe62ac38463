"""Whether a process that works on the lake is dead, by its record, this machine's view and observers' counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

BEAT_SECONDS = 10
LOOK_SECONDS = 15
"""Looks closer together count as one, so that a heartbeat is due between two counted looks."""
STILL_LOOKS = 4
"""Looks without a new heartbeat after which a process is dead: at least a minute."""
PATIENT_LOOKS = 12
"""The same where no heartbeat is due: before the run's op began, or after it ended."""


class Sight(StrEnum):
    """A machine's view of a process."""

    THERE = "there"
    GONE = "gone"
    HIDDEN = "hidden"
    """It may be running where this machine cannot see it."""


class Life(StrEnum):
    """The state of a run's process."""

    RUNNING = "running"
    ENDED = "ended"
    """Its work for the run is done; the process may do other work."""
    DEAD = "dead"


@dataclass(frozen=True)
class Identity:
    """The identity of a process among all machines."""

    host: str
    """For display only: two machines may have the same name."""
    place: str | None
    """Boot and namespaces in which `pid` is unique; None if unknown."""
    pid: int
    started: int | None
    """Ticks since boot, because the system reuses pids."""


@dataclass(frozen=True)
class Watch:
    """The latest heartbeat that observers saw, and their looks since without a new one."""

    beats: int = -1
    still: int = 0
    at: datetime | None = None
    """The last look that counted, by the database's clock."""

    def looked(self, beats: int, now: datetime) -> Watch:
        """The watch after another look. Looks count, not seconds, so a clock that jumps adds one look at most."""
        if self.at is None or beats != self.beats:
            return Watch(beats, 0, now)
        if now < self.at:
            return Watch(beats, self.still, now)
        if now - self.at < timedelta(seconds=LOOK_SECONDS):
            return self
        return Watch(beats, self.still + 1, now)


@dataclass(frozen=True)
class Process:
    """The ledger's record of a run's process."""

    run_id: str
    job: str
    identity: Identity | None
    steps: int = 0
    """Steps of the run, if this process executes all of them; otherwise 0."""
    beats: int = 0
    begun_at: str | None = None
    beat_at: str | None = None
    is_ended: bool = False
    is_lost: bool = False
    """Found dead, without a sign of life since."""
    watch: Watch = Watch()

    @property
    def carries_the_run(self) -> bool:
        """Whether the run dies with this process."""
        return self.steps > 0 or self.identity is None

    def life(self, sight: Sight) -> Life:
        """The state for a machine's view: certain if it can see the process, else by missing heartbeats."""
        if sight is Sight.GONE:
            return Life.ENDED if self.is_ended else Life.DEAD
        if self.is_ended:
            return Life.ENDED
        if sight is Sight.THERE:
            return Life.RUNNING
        return Life.DEAD if self.is_lost or self._is_still() else Life.RUNNING

    def has_died_with_its_run(self, sight: Sight) -> bool:
        """Whether a run that Dagster believes alive is dead: its process died, or disappeared after its op ended."""
        if not self.carries_the_run or sight is Sight.THERE:
            return False
        if not self.is_ended:
            return self.life(sight) is Life.DEAD
        # After the op that sends heartbeats, the run may work for hours without one.
        return sight is Sight.GONE or (self.steps == 1 and self._is_still())

    def _is_still(self) -> bool:
        expected = STILL_LOOKS if self.beats and not self.is_ended else PATIENT_LOOKS
        return self.watch.beats == self.beats and self.watch.still >= expected
