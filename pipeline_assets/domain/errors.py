"""Errors as types: a sentence each, and whether a retry can succeed; pauses of retries; commands that hints name."""

from __future__ import annotations

import json
import random
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice


class TidemarkError(Exception):
    """Base of all errors that Tidemark raises: object, reason and fix."""

    def __init__(self, subject: str, reason: str, hint: str) -> None:
        """`subject`: a key, setting or slice; `reason`: why it failed; `hint`: the operator's remedy."""
        # Logs, terminals and Dagster show these texts: names are data, and secrets are never passed in.
        self.subject, self.reason, self.hint = shown(subject), shown(reason), shown(hint)
        super().__init__(f"{self.subject}: {self.reason}. {self.hint}")

    def as_line(self) -> str:
        """The error as text for `error_in`: Spark's workers pass errors on only as text."""
        return _MARK + json.dumps([type(self).__name__, self.subject, self.reason, self.hint])


_MARK = "tidemark-error "


class PermanentError(TidemarkError):
    """A retry fails the same way until inputs, settings or code change."""


class TransientError(TidemarkError):
    """A later retry can succeed although nobody changes anything."""


class SettingsError(PermanentError):
    """A setting is missing, unknown or has a bad value."""


class UsageError(PermanentError):
    """A request names days, projects or tables that cannot be served."""


class LandingUnavailableError(TransientError):
    """Landing could not be listed or read: network, server or throttling."""


class LandingAccessError(PermanentError):
    """Landing refused access or does not exist: wrong URL, bucket, credentials or rights."""


class UnreadableObjectError(LandingAccessError):
    """Landing refused one object, perhaps only that one: archived, encrypted, rights, a link out of landing."""


class ObjectMovedError(TransientError):
    """An object was overwritten or deleted between listing and reading."""


class LandingConflictError(PermanentError):
    """Landing already holds another object under the name to be written; nothing was overwritten."""


class ExportAccessError(PermanentError):
    """The vendor's Export API refused the credentials of a project, or none are configured."""


class ExportAnswerError(PermanentError):
    """Something other than the Export API answered: a page, a redirect, a proxy."""


class ExportContentError(PermanentError):
    """The Export API's answer cannot be used: a bad archive, or a member that must not be in it."""


class ExportRefusedError(PermanentError):
    """The Export API refuses a range of hours, in words or by a timeout; another range may work."""


class ExportUnavailableError(TransientError):
    """The Export API stayed unreachable, overloaded or asked to wait until the retries were used up."""


class DiskFullError(PermanentError):
    """A disk of this machine is full, is below the free space that must remain, or cannot be used."""


class PublishConflictError(TransientError):
    """Another writer changed a slice after this run pinned its base snapshot; nothing was published."""


class SliceConflictError(PublishConflictError):
    """A publish conflict whose slices are known."""

    def __init__(self, subject: str, reason: str, hint: str, slices: Collection[tuple[str, Slice]] = ()) -> None:
        """`slices`: the (table, slice) pairs that the other writer changed."""
        super().__init__(subject, reason, hint)
        self.slices = frozenset(slices)


class TakenOverError(PublishConflictError):
    """Another run took over this run's work; nothing was published, and a retry does not help."""


class ReadTwiceError(PublishConflictError):
    """An object that had to be read twice changed in between; neither reading was used."""


class LakehouseError(PermanentError):
    """A table is in a state that Tidemark cannot work with, such as foreign delete files, or its storage is full."""


class LakehouseAccessError(LakehouseError):
    """The warehouse's store refuses access, so that its content is unknown."""


class LakehouseUnavailableError(TransientError):
    """The catalog or warehouse stayed unreachable or busy until the retries were used up."""


class WorkerLostError(TransientError):
    """A Spark worker process died, and its task with it; a retry starts a new one."""


class EngineError(PermanentError):
    """Spark's JVM died or ran out of memory: this process, or another of its size, cannot go on."""


class WorkerError(PermanentError):
    """A worker of the cluster cannot run the tasks: another Python, a missing package, or other code."""


class GoldenQueryError(PermanentError):
    """The golden query failed, or its result cannot be read as totals."""


class LedgerError(PermanentError):
    """The ledger cannot be opened or was written by a newer Tidemark."""


class LedgerUnavailableError(TransientError):
    """The ledger's database stayed unreachable or locked until the retries were used up."""


def error_in(text: str) -> TidemarkError | None:
    """The first error that `as_line` wrote into a text, or None."""
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    name, subject, reason, hint = json.JSONDecoder().raw_decode(rest)[0]
    kinds = {kind.__name__: kind for kind in _kinds_of(TidemarkError)}
    return kinds.get(name, PermanentError)(subject, reason, hint)


def _kinds_of(kind: type[TidemarkError]) -> list[type[TidemarkError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _kinds_of(child))]


NEWER_TIDEMARK = "Install that version of Tidemark or a later one: pip install --upgrade tidemark-pipeline"

BRING_BACK = "tidemark load --source SOURCE --from DAY --to DAY --read-again"
"""Brings a day back of which a data file is gone, where only the file's place is known."""


def read_again(table: str, key: Slice) -> str:
    """The command that brings a slice back of which a data file is gone."""
    source = "dimensions" if key.project_id == ALL_PROJECTS else "backfill" if "/backfill" in table else "regular"
    words = ["tidemark", "load", "--source", source, "--from", str(key.event_date), "--to", str(key.event_date)]
    return shlex.join([*words, *(() if source == "dimensions" else ("--project", key.project_id)), "--read-again"])


def recover_refused(first: date, last: date, projects: Sequence[str]) -> str:
    """The command that recovers and loads the missing or refused deliveries of refused days."""
    named = [word for project in projects for word in ("--project", project)]
    return shlex.join(["tidemark", "recover", "--from", str(first), "--to", str(last), *named, "--refused", "--load"])


def tries(count: int, first_pause_seconds: float) -> Iterator[bool]:
    """Yield for each try whether it is the last; sleep before each further try, twice as long each time."""
    for number in range(count - 1):
        yield False
        time.sleep(first_pause_seconds * 2**number)
    yield True


@dataclass(frozen=True)
class Backoff:
    """Doubling pauses with jitter, so that clients that failed together do not retry together."""

    attempts: int
    """Including the first."""
    first_seconds: float = 1.0
    longest_seconds: float = 60.0
    longest_asked_seconds: float = 900.0
    """A server that requests a longer pause ends the retries."""

    def pause_seconds(
        self, attempt: int, asked_seconds: float | None = None, chance: Callable[[], float] = random.random
    ) -> float:
        """Seconds to pause after attempt 1, 2, ...: 50 to 100 % of its share, or slightly more than requested."""
        share = min(self.longest_seconds, self.first_seconds * 2.0 ** (attempt - 1))
        jittered = share * (0.5 + chance() / 2)
        return jittered if asked_seconds is None else asked_seconds + min(jittered, self.first_seconds)
