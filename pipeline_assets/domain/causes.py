"""Why a slice is built or was published."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

_CODE = ", code"
"""Suffix of a cause's text when the code changed as well."""


class CauseKind(StrEnum):
    """Why a slice is built or was published; the value is the recorded text, or its beginning."""

    UNCHANGED = ""
    """No cause: the slice is not built."""
    FIRST_BUILD = "first build"
    """The slice was never built, or its inputs are not on record."""
    INPUTS = "changed "
    """Its upstream slices changed; the text names their tables."""
    CROSS_DAY = "changed rows of its events on other days"
    """Rows on other days that share an event key with this slice changed."""
    CODE = "code"
    """Only the code changed."""
    DELIVERY = "delivery"
    """A raw slice: the delivered rows changed."""
    SAME_ROWS = "the same rows, in other objects or lines"
    """A raw slice: the same rows were delivered in other objects or on other lines."""
    FILES_GONE = "data files were gone"
    """Files of the slice were gone from the warehouse; an operator had it read again, with the same rows or others."""
    EXCLUSION = "exclusion"
    """A raw slice: an operator excluded deliveries, or included them again."""
    ROLLBACK = "rollback"
    """An operator rolled the slice back to an earlier state."""
    REBUILD = "rebuild"
    """An operator rebuilt the slice on a branch and swapped it into main."""
    UNRECORDED_RUN = "unrecorded run "
    """Found in the table: a run published the slice and died before it recorded that; the text names the run."""
    FOREIGN = "foreign"
    """Found in the table: no Tidemark run published it."""
    UNDELETED = "delete files of another program removed, which are no way to erase; rows that came back: "
    """The recorded files were published again without delete files; the text ends with the number of rows."""
    UNKNOWN = "changed since it was recorded"
    """The tables changed and were not compared with the ledger yet."""
    OTHER = "other"
    """A text on record that this version does not know."""


_BEGUN = (CauseKind.INPUTS, CauseKind.UNRECORDED_RUN, CauseKind.UNDELETED)
_WHOLE = {kind.value: kind for kind in CauseKind if kind not in (*_BEGUN, CauseKind.OTHER)}
"""Text -> kind, for the kinds whose text is always the same."""


@dataclass(frozen=True)
class Cause:
    """A kind of cause, and the text that is recorded and shown."""

    kind: CauseKind
    text: str

    @classmethod
    def of(cls, kind: CauseKind, *, has_new_code: bool = False) -> Cause:
        """A cause of a kind with a fixed text; `has_new_code`: whether the code changed as well."""
        return cls(kind, f"{kind.value}{_CODE if has_new_code else ''}")

    @classmethod
    def inputs(cls, tables: Collection[str], *, has_new_code: bool = False) -> Cause:
        """The content of these upstream tables changed."""
        return cls(
            CauseKind.INPUTS, f"{CauseKind.INPUTS.value}{', '.join(sorted(tables))}{_CODE if has_new_code else ''}"
        )

    @classmethod
    def unrecorded_run(cls, run_id: str | None) -> Cause:
        """A run published the slice and died before it recorded that."""
        return cls(CauseKind.UNRECORDED_RUN, f"{CauseKind.UNRECORDED_RUN.value}{run_id}")

    @classmethod
    def undeleted(cls, rows: int) -> Cause:
        """Rows that another program deleted by delete files came back."""
        return cls(CauseKind.UNDELETED, f"{CauseKind.UNDELETED.value}{rows}")

    @classmethod
    def parse(cls, text: str) -> Cause:
        """The cause that a recorded text stands for; an unknown text is `OTHER`."""
        whole = _WHOLE.get(text.removesuffix(_CODE))
        begun = (kind for kind in _BEGUN if text.startswith(kind.value))
        return cls(next(begun, CauseKind.OTHER) if whole is None else whole, text)

    @property
    def has_new_code(self) -> bool:
        """Whether changed code is the cause, or one of two."""
        return self.kind is CauseKind.CODE or self.text.endswith(_CODE)

    @property
    def is_found(self) -> bool:
        """Whether the cause was found in the table instead of being recorded by the publishing run."""
        return self.kind in (CauseKind.FOREIGN, CauseKind.UNRECORDED_RUN)

    def __str__(self) -> str:
        """The text."""
        return self.text


UNCHANGED = Cause.of(CauseKind.UNCHANGED)
