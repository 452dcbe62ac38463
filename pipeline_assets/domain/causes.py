"""Why a slice is built or was published.

Contains: the kinds of causes, a cause with its text, and reading that text back.
Add here: another kind of cause.
Does not contain: when a slice is built (load/staleness/), causes of what becomes of single keys
(load/build/key_changes.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

_CODE = ", code"
"""Ends the text of a cause beside which the code differs as well."""


class CauseKind(StrEnum):
    """What a slice is built or published for; the value is the text, or the beginning of it."""

    UNCHANGED = ""
    """For nothing: it is not built."""
    FIRST_BUILD = "first build"
    """Nothing was built before, or what it was built from is not known."""
    INPUTS = "changed "
    """The slices that it is built from; the text names their tables."""
    CROSS_DAY = "changed rows of its events on other days"
    """Rows of other days that share a key with its own."""
    CODE = "code"
    """The code alone."""
    DELIVERY = "delivery"
    """A raw slice: what was delivered."""
    SAME_ROWS = "the same rows, in other objects or lines"
    """A raw slice: where the same rows were delivered."""
    EXCLUSION = "exclusion"
    """A raw slice: a person ruled deliveries out, or lifted that."""
    ROLLBACK = "rollback"
    """A person made it what it was."""
    REBUILD = "rebuild"
    """A person had it built again beside main, and swapped it in."""
    UNRECORDED_RUN = "unrecorded run "
    """Found in the table: a run published it and died before it was recorded; the text names the run."""
    FOREIGN = "foreign"
    """Found in the table: no run of ours published it."""
    UNKNOWN = "changed since it was recorded"
    """The tables changed and nobody has compared them with what is recorded."""
    OTHER = "other"
    """On record in words of another version."""


_WHOLE = {
    kind.value: kind for kind in CauseKind if kind not in (CauseKind.INPUTS, CauseKind.UNRECORDED_RUN, CauseKind.OTHER)
}
"""Text -> the kind that has no other text."""


@dataclass(frozen=True)
class Cause:
    """A kind of cause, and the text that is recorded and shown."""

    kind: CauseKind
    text: str

    @classmethod
    def of(cls, kind: CauseKind, *, has_new_code: bool = False) -> Cause:
        """Of a kind that says everything; `has_new_code`: whether the code differs as well."""
        return cls(kind, f"{kind.value}{_CODE if has_new_code else ''}")

    @classmethod
    def inputs(cls, tables: Collection[str], *, has_new_code: bool = False) -> Cause:
        """These upstream tables hold something else."""
        return cls(
            CauseKind.INPUTS, f"{CauseKind.INPUTS.value}{', '.join(sorted(tables))}{_CODE if has_new_code else ''}"
        )

    @classmethod
    def unrecorded_run(cls, run_id: str | None) -> Cause:
        """A run published it and did not live to record it."""
        return cls(CauseKind.UNRECORDED_RUN, f"{CauseKind.UNRECORDED_RUN.value}{run_id}")

    @classmethod
    def parse(cls, text: str) -> Cause:
        """Read a recorded text back; every text is some cause."""
        whole = _WHOLE.get(text.removesuffix(_CODE))
        begun = (kind for kind in (CauseKind.INPUTS, CauseKind.UNRECORDED_RUN) if text.startswith(kind.value))
        return cls(next(begun, CauseKind.OTHER) if whole is None else whole, text)

    @property
    def has_new_code(self) -> bool:
        """Whether other code is the cause, alone or beside another one."""
        return self.kind is CauseKind.CODE or self.text.endswith(_CODE)

    @property
    def is_found(self) -> bool:
        """Whether it was found in the table, and not recorded by who published it."""
        return self.kind in (CauseKind.FOREIGN, CauseKind.UNRECORDED_RUN)

    def __str__(self) -> str:
        """The text."""
        return self.text


UNCHANGED = Cause.of(CauseKind.UNCHANGED)
