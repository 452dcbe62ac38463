"""Tidemark's asset graph: an event pipeline that can recover.

Contains: the checks that `resources` and `pipeline_assets`, names that others use too, are the packages that came together.
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
        f"resources: {place} would be imported in place of Tidemark's package of that name, {own.parent}. "
        "Start Dagster in another folder, or with `-d` or `working_directory` of another one, or rename that package"
    )
    raise ImportError(msg)


def _require_alone() -> None:
    """Raise ImportError where another distribution installed files of these names over or among ours."""
    site = _Path(__file__).parents[1]
    for record in site.glob("*.dist-info/RECORD"):
        files = b"\n" + record.read_bytes()
        for name in (b"\nresources/", b"\npipeline_assets/"):
            if name in files and not record.parent.name.startswith("tidemark_pipeline-"):
                file = site / (name.strip() + files.partition(name)[2].partition(b",")[0]).decode()
                msg = f"{file} is installed by {record.parent}, among files of Tidemark ({_Path(__file__).parent})"
                raise ImportError(f"{msg}. Install Tidemark anew, in an environment of its own")


_require_own_resources()
_require_alone()
