"""Ask the JVM once for each class and static method that PySpark names: an eighth of a small load goes into asking again.

Contains: remembering what py4j finds.
Add here: another question that has one answer for as long as a JVM lives.
Does not contain: Spark's configuration (session.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView


@cache
def remember_names() -> None:
    """Keep classes and static methods with the view of the JVM that was asked for them; once for a process."""
    _remembering(JVMView, (JavaClass,))
    _remembering(JavaClass, (JavaMember,))


def _remembering(kind: type, lasting: tuple[type, ...]) -> None:
    ask = kind.__getattr__  # type: ignore[attr-defined]

    def answer(owner: Any, name: str) -> Any:
        member = ask(owner, name)
        if isinstance(member, lasting):
            owner.__dict__[name] = member
        return member

    kind.__getattr__ = answer  # type: ignore[attr-defined]
