"""Errors as types: one sentence each, and whether a retry can help.

Contains: every exception Tidemark raises on purpose.
Add here: a failure that a caller or the retry policy tells apart by type.
Does not contain: wrapping of library errors (done where the library is called).
"""

import json
from collections.abc import Collection

from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.slices import Slice


class TidemarkError(Exception):
    """A failure that names the object, the reason and the fix; base of all that Tidemark raises."""

    def __init__(self, subject: str, reason: str, hint: str) -> None:
        """Say what failed (`subject`: a key, setting or slice), why (`reason`) and what the operator can do (`hint`)."""
        # Whatever shows it, a log, a terminal, Dagster: names in it are data, and secrets were never part of it.
        self.subject, self.reason, self.hint = shown(subject), shown(reason), shown(hint)
        super().__init__(f"{self.subject}: {self.reason}. {self.hint}")

    def as_line(self) -> str:
        """Text that `error_in` finds again: errors cross from Spark's workers as text alone."""
        return _MARK + json.dumps([type(self).__name__, self.subject, self.reason, self.hint])


_MARK = "tidemark-error "


class PermanentError(TidemarkError):
    """Trying again without a change of input, settings or code gives the same failure."""


class TransientError(TidemarkError):
    """Trying again later can succeed without anybody changing anything."""


class SettingsError(PermanentError):
    """A setting is missing, unknown or has a bad value."""


class UsageError(PermanentError):
    """A request names days, projects or tables that cannot be served."""


class LandingUnavailableError(TransientError):
    """Landing could not be listed or read: network, server or throttling."""


class LandingAccessError(PermanentError):
    """Landing refused us or does not exist: wrong URL, bucket, credentials or rights."""


class UnreadableObjectError(LandingAccessError):
    """Landing refused one object, for reasons that may be its own: archived, another key, rights, a link out of landing."""


class ObjectMovedError(TransientError):
    """An object was overwritten or deleted between listing and reading."""


class LandingConflictError(PermanentError):
    """Landing holds another object under a name that was to be written; nothing was overwritten."""


class ExportAccessError(PermanentError):
    """The vendor's Export API refused our credentials for a project, or there are none."""


class ExportAnswerError(PermanentError):
    """Something that is not the Export API answered in its place: a page, a redirect, a proxy."""


class ExportContentError(PermanentError):
    """What the Export API sent cannot be used: a cut or bad archive, a member that must not be in it."""


class ExportTooLargeError(PermanentError):
    """The Export API does not export a range of hours in one piece; a shorter range may do."""


class ExportUnavailableError(TransientError):
    """The Export API could not be reached, was overloaded or asked to wait, beyond the retries."""


class DiskFullError(PermanentError):
    """A disk of this machine is full, has less room than has to stay free, or cannot be used."""


class PublishConflictError(TransientError):
    """Another writer changed a slice after our base snapshot was pinned; nothing of ours was published."""


class SliceConflictError(PublishConflictError):
    """The same, where it is known which slices."""

    def __init__(self, subject: str, reason: str, hint: str, slices: Collection[tuple[str, Slice]] = ()) -> None:
        """`slices`: (table, slice) that were lost to the other writer."""
        super().__init__(subject, reason, hint)
        self.slices = frozenset(slices)


class TakenOverError(PublishConflictError):
    """Another run took over what ours worked on; nothing of ours was published, and no other try would do."""


class ReadTwiceError(PublishConflictError):
    """An object that had to be read twice was another one the second time; nothing of either reading was used."""


class LakehouseError(PermanentError):
    """A table is not in a state Tidemark can work with, for example foreign delete files, or its storage is full."""


class LakehouseUnavailableError(TransientError):
    """Catalog or warehouse could not be reached, or were too busy, beyond the retries."""


class WorkerLostError(TransientError):
    """A process that Spark works with died, and its task with it; another try starts another one."""


class EngineError(PermanentError):
    """Spark's JVM died or ran out of memory: this process can do no more, and another one as small would end the same."""


class WorkerError(PermanentError):
    """A worker of the cluster cannot run our tasks: another Python, a missing package, other code than the driver's."""


class GoldenQueryError(PermanentError):
    """Golden totals could not be asked of their database, or it gave what cannot be read as totals."""


class LedgerError(PermanentError):
    """The ledger cannot be opened or was written by a newer Tidemark."""


class LedgerUnavailableError(TransientError):
    """The ledger's database could not be reached, or was locked, beyond the retries."""


def error_in(text: str) -> TidemarkError | None:
    """The first error that was written into a text with `as_line`."""
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    name, subject, reason, hint = json.JSONDecoder().raw_decode(rest)[0]
    kinds = {kind.__name__: kind for base in (PermanentError, TransientError) for kind in base.__subclasses__()}
    return kinds.get(name, PermanentError)(subject, reason, hint)
