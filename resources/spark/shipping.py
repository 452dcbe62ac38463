"""Send our code to workers: an archive named after its content, and the session's settings for it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import Settings, ShippedCode
from resources.spark.worker_check import VARIABLE, described, encoded, files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWN = ("pipeline_assets", "resources")
_COMPILED = (".so", ".pyd", ".dylib")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can hold; a fixed time makes archives of the same code identical."""
_PATH, _EXPECTED = "spark.executorEnv.PYTHONPATH", f"spark.executorEnv.{VARIABLE}"


@dataclass(frozen=True)
class Shipped:
    """The settings and the archive that bring our code to a cluster."""

    config: Mapping[str, str]
    """Spark settings for a session that has not started yet."""
    name: str | None = None
    """The archive's name; None where workers have the code installed."""
    content: bytes = b""

    def send(self, session: SparkSession) -> None:
        """Hand the archive to Spark, which copies it to every executor before its first task; needs no shared disk."""
        if self.name is None:
            return
        # Spark removes this folder when the session ends.
        path = Path(session.sparkContext._temp_dir) / self.name
        path.write_bytes(self.content)
        session.sparkContext.addFile(str(path))


def shipped(settings: Settings, config: Mapping[str, str]) -> Shipped:
    """Return what workers need in addition to `config`; raises SettingsError for code that cannot run from an archive."""
    packages = _packages(settings)
    expected = {_EXPECTED: encoded(described(packages))}
    if settings.spark_ship_code is ShippedCode.INSTALLED:
        return Shipped(expected)
    files = {name: body for package in packages for name, body in _sent_files(package)}
    content = _archive(files)
    name = f"tidemark-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    # Executors run in the folder where Spark puts the files; other installed packages come later on the path.
    path = ":".join([name, *filter(None, [config.get(_PATH)])])
    return Shipped({**expected, _PATH: path}, name, content)


def _packages(settings: Settings) -> tuple[str, ...]:
    """Our packages, and those of an operator's own tables, whose functions tasks may call."""
    theirs = (
        name.partition(":")[0].partition(".")[0] for name in (*settings.extra_aggregates, *settings.extra_dimensions)
    )
    return tuple(dict.fromkeys((*_OWN, *theirs)))


def _sent_files(package: str) -> list[tuple[str, bytes]]:
    """The modules of a package; for an operator's package also its other files."""
    files = [(name, body) for name, body in files_of(package) if package not in _OWN or name.endswith(".py")]
    compiled = next((name for name, _ in files if name.endswith(_COMPILED)), None)
    if compiled is not None:
        raise SettingsError(
            f"package {package}",
            f"{compiled} is compiled, and Python imports nothing compiled from an archive",
            'Install the package on every worker, and set TIDEMARK_SPARK_SHIP_CODE to "installed"',
        )
    if not files:
        raise SettingsError(f"package {package}", "holds no module that could be sent to workers", "Correct its name")
    return files


def _archive(files: Mapping[str, bytes]) -> bytes:
    # Python finds a folder without `__init__.py` in an archive only if the folder has an entry.
    folders = {f"{folder}/": b"" for name in files for folder in PurePosixPath(name).parents if folder.name}
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, content in sorted({**folders, **files}.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o40755 if name in folders else 0o100644) << 16
            archive.writestr(entry, content)
    return body.getvalue()
