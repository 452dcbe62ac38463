"""How large the code is, by folder against its budget, and how many of its functions a load runs (`make size`)."""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline_assets.domain.settings import Settings

_ROOT = Path(__file__).resolve().parents[1]
_SOURCE = ("pipeline_assets", "resources")
_DAY = date(2026, 2, 2)


@dataclass
class Size:
    lines: int = 0
    """Non-blank lines."""
    modules: int = 0
    dataclasses: int = 0


def sizes(budgets: dict[str, int], root: Path = _ROOT) -> dict[str, Size]:
    """Folder with a budget -> size, without subfolders with their own budget."""
    found = {name: Size() for name in budgets}
    for top in sorted({name.split("/")[0] for name in budgets}):
        for path in sorted((root / top).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            size = found[max((name for name in budgets if place.startswith(f"{name}/")), key=len)]
            text = path.read_text("utf-8")
            size.lines += sum(1 for line in text.splitlines() if line.strip())
            size.modules += 1
            size.dataclasses += sum(map(_is_dataclass, ast.walk(ast.parse(text))))
    return found


def _is_dataclass(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list)


@dataclass
class Calls:
    """Our own functions that ran, in all threads of this process."""

    ran: set[CodeType] = field(default_factory=set)
    deepest: int = 0
    """Most of our own frames on one stack."""
    _depth: Counter[int] = field(default_factory=Counter)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call, as `sys.setprofile` reports it."""
        if event not in {"call", "return"} or not _is_own(frame.f_code):
            return
        thread = threading.get_ident()
        self._depth[thread] += 1 if event == "call" else -1
        if event == "call":
            self.ran.add(frame.f_code)
            self.deepest = max(self.deepest, self._depth[thread])


def _is_own(code: CodeType) -> bool:
    # Python 3.11 runs a comprehension as a function, later versions do not; a module is no function.
    is_function = not code.co_name.startswith("<") or code.co_name == "<lambda>"
    return is_function and code.co_filename.startswith(tuple(f"{_ROOT}/{name}/" for name in _SOURCE))


@contextmanager
def counted() -> Iterator[Calls]:
    calls = Calls()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def loads() -> Iterator[tuple[str, Calls]]:
    """Load a day of one project twice; yields each load's title and calls."""
    from tests.support.builders import a_pipeline, events_on
    from tests.support.small_spark import small_session

    with tempfile.TemporaryDirectory() as folder:
        session = small_session("local[2]", "2g", **{"spark.sql.warehouse.dir": folder})
        with a_pipeline(session, Path(folder)) as pipeline:
            pipeline.deliver(_DAY, events_on(_DAY, 100))
            titles: tuple[tuple[str, Callable[[], bool]], ...] = (
                ("first load, makes the tables", lambda: pipeline.load(_DAY).success),
                ("a plain day", lambda: pipeline.load(date(2026, 2, 20)).success),
                ("the same again", lambda: pipeline.load(date(2026, 2, 20)).success),
            )
            pipeline.deliver(date(2026, 2, 20), events_on(date(2026, 2, 20), 100))
            for title, load in titles:
                with counted() as calls:
                    assert load()
                yield title, calls
        session.stop()


def main() -> int:
    """Print the sizes; returns 1 where a folder is over its budget."""
    parser = argparse.ArgumentParser(prog="python -m tests.size", description=__doc__)
    parser.add_argument("--loads", action="store_true", help="also count the functions that loads run; starts Spark")
    console = Console(width=110)
    is_with_loads = parser.parse_args().loads
    budgets = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["tidemark"]["lines"]
    table = Table("folder", *("lines", "budget", "modules", "dataclasses"), box=None)
    found = sizes(budgets)
    for name, size in found.items():
        table.add_row(name, f"{size.lines:,}", f"{budgets[name]:,}", str(size.modules), str(size.dataclasses))
    for title, tops in (("source", _SOURCE), ("tests", ("tests",))):
        own = [size for name, size in found.items() if name.split("/")[0] in tops]
        sums = (sum(one.lines for one in own), sum(one.modules for one in own), sum(one.dataclasses for one in own))
        table.add_row(f"all of {title}", f"{sums[0]:,}", "", str(sums[1]), str(sums[2]))
    console.print(table)
    console.print(f"{len(Settings.model_fields)} settings")
    for title, calls in loads() if is_with_loads else ():
        modules = {code.co_filename for code in calls.ran}
        console.print(f"{title}: {len(calls.ran)} functions of {len(modules)} modules, {calls.deepest} frames deep")
    over = [name for name, size in found.items() if size.lines > budgets[name]]
    for name in over:
        console.print(f"{name} is over its budget: replace what the addition makes superfluous (pyproject.toml)")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
