"""`tidemark init` and `tidemark setup`: create a deployment's folder, and prepare Spark for its first load."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.cli.terminal import PlainConsole, downloads_shown, page
from pipeline_assets.config import CONFIG_NAME, INSTANCE_NAME, TEMPLATES, load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.requests import Init, Setup
from resources.spark.jars import JARS, fetch, jars_folder, make_archive, require_java

WORKSPACE_NAME = "workspace.yaml"
STEPS_NAME = "NEXT_STEPS.md"
_PLACES = ("landing_url", "warehouse_url", "catalog_url")
"""Settings that a new deployment's file sets, instead of showing them as comments."""


def init(request: Init) -> int:
    """Write the files of a new deployment."""
    directory, is_s3 = request.directory, request.is_s3
    files = deployment_files(is_s3=is_s3)
    if not directory:
        raise UsageError("DIR", "is an empty name, and nothing was written", "Name another folder, or . for this one")
    _write(Path(directory), files)
    console = page()
    console.print(f"{directory}: {', '.join(files)} were written")
    is_here = Path(directory).resolve() == Path.cwd()
    console.print(f"  next: {'' if is_here else f'cd {shlex.quote(directory)}, then '}read {STEPS_NAME}")
    return EXIT_OK


def setup(_: Setup) -> int:
    """Fetch the jars, and prepare the JVM's classes."""
    settings = load_settings()
    folder = jars_folder(settings)
    console = page()
    console.print(f"Java {require_java()} is there")
    with downloads_shown(PlainConsole(stderr=True, soft_wrap=True)):
        fetched = fetch(folder, url=settings.jars_url)
    console.print(f"{len(JARS)} jars are verified, {len(fetched)} of them fetched now: {folder}")
    console.print("loading a small day to prepare the JVM's classes (about a minute)")
    try:
        archive = make_archive(folder)
    except (RuntimeError, OSError) as error:
        PlainConsole(stderr=True, soft_wrap=True).print(f"no classes were prepared: {error}")
        return EXIT_INCOMPLETE
    console.print(f"{archive.stat().st_size >> 20} MiB of classes are prepared: {archive}")
    return EXIT_OK


def deployment_files(*, is_s3: bool) -> Mapping[str, str]:
    """Return name -> content of the files of a new deployment."""
    kind = "s3" if is_s3 else "local"
    return {
        CONFIG_NAME: _with_places(_template(CONFIG_NAME), is_s3=is_s3),
        WORKSPACE_NAME: _template(WORKSPACE_NAME),
        INSTANCE_NAME: _template(INSTANCE_NAME),
        STEPS_NAME: _template(f"next_steps_{kind}.md"),
    }


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text("utf-8")


def _with_places(text: str, *, is_s3: bool) -> str:
    """Uncomment the settings of places: with their defaults, or for a bucket with the examples beside them."""
    for name in _PLACES:
        line = re.compile(
            rf'^# {name} = (?P<default>"[^"]*")(?P<rest> +# for example (?P<example>"s3://[^"]*"))?', re.MULTILINE
        )
        found = line.search(text)
        if found is None:
            raise LookupError(f"the settings show no {name}")
        is_example = is_s3 and found["example"] is not None
        value = found["example"] if is_example else found["default"]
        rest = "   # yours" if is_example else found["rest"] or ""
        text = f"{text[: found.start()]}{name} = {value}{rest}{text[found.end() :]}"
    return text


def _write(directory: Path, files: Mapping[str, str]) -> None:
    """Write all files or none; raises UsageError, and keeps existing files unchanged."""
    made: list[Path] = []
    try:
        _require_usable(directory)
        directory.mkdir(parents=True, exist_ok=True)
        taken = [name for name in files if os.path.lexists(directory / name)]
        if taken:
            raise _taken(directory / taken[0])
        for name, text in files.items():
            # Mode "x" neither overwrites a file created meanwhile nor follows a link.
            with (directory / name).open("x", encoding="utf-8") as file:
                made.append(directory / name)
                file.write(text)
    except (OSError, ValueError, UsageError) as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if isinstance(error, UsageError):
            raise
        if isinstance(error, FileExistsError) and error.filename and Path(error.filename) != directory:
            raise _taken(Path(error.filename)) from error
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "is no folder, or lies below a file" if is_file else f"cannot be written ({_why(error)})"
        raise UsageError(str(directory), f"{reason}, and nothing was written", "Name another folder") from error


def _require_usable(directory: Path) -> None:
    path = str(directory.absolute())
    # SQLAlchemy and the JDBC driver parse everything after `?` as options of the database.
    odd = sorted({character for character in path if character == "?" or not character.isprintable()})
    if odd:
        reason = (
            f"has {few(map(repr, odd))} in its path, which the address of a database cannot hold; nothing was written"
        )
        raise UsageError(str(directory), reason, "Name another folder")


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _taken(path: Path) -> UsageError:
    return UsageError(
        str(path),
        "is there already, and nothing was written",
        "Name an empty folder, or move the file away; tidemark never overwrites it",
    )
