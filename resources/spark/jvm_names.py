"""Cache JVM classes and static methods: looking them up repeatedly takes an eighth of a small load."""

from __future__ import annotations

from functools import cache
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView


@cache
def remember_names() -> None:
    """Patch py4j to keep classes and static methods on the view that looked them up; runs once per process."""
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
