"""Tidemark's asset graph: an event pipeline that can recover.

Contains: the check that `resources`, a name that others use too, is the package that came with this one.
Add here: nothing.
Does not contain: the graph (definitions.py).
"""

from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path


def _require_own_resources() -> None:
    """Raise ImportError where another folder's `resources` would be imported; imports nothing itself."""
    own, found = _Path(__file__).parent.with_name("resources") / "__init__.py", _find_spec("resources")
    if found is None or found.origin == str(own):
        return
    place = _Path(found.origin or next(iter(found.submodule_search_locations or ("",))))
    if place.exists() and own.exists() and place.samefile(own):
        return
    msg = (
        f"resources: {place} would be imported in place of Tidemark's package of that name. "
        "Start Dagster in another folder, or with `-d` or `working_directory` of another one, or rename that package"
    )
    raise ImportError(msg)


_require_own_resources()
