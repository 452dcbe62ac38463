"""The pinned jars that Spark needs, and the folder that holds them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings, is_clone
from resources.spark.jar_download import JarError, download, sweep

MAVEN = str(Settings.model_fields["jars_url"].default)


@dataclass(frozen=True)
class Jar:
    """One pinned jar."""

    organisation: str
    name: str
    version: str
    sha256: str
    classifier: str = ""
    """Maven classifier: selects one of several files of a version."""

    @property
    def path(self) -> str:
        """Path below the URL of a Maven repository."""
        return f"{self.organisation.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"

    @property
    def file_name(self) -> str:
        """Name in the jars folder."""
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + ".jar"


JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.12.0",
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    Jar(
        "org.apache.iceberg",
        "iceberg-aws-bundle",
        "1.12.0",
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
    Jar("org.xerial", "sqlite-jdbc", "3.54.1.0", "f8dce420a6016278497f4f0560f65602b9db858de141b541cf91a4644ebe4639"),
    Jar("org.postgresql", "postgresql", "42.7.14", "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"),
    Jar(
        "com.globalmentor",
        "hadoop-bare-naked-local-fs",
        "0.1.0",
        "e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62",
    ),
)


def default_jars_dir() -> Path:
    """In a clone a folder beside the code, otherwise a folder in the user's cache, named after the checksums of these jars."""
    if is_clone():
        return PROJECT_ROOT / ".jars"
    pins = hashlib.sha256(" ".join(f"{jar.file_name} {jar.sha256}" for jar in JARS).encode()).hexdigest()
    return platformdirs.user_cache_path("tidemark") / "jars" / pins[:16]


def jars_folder(settings: Settings) -> Path:
    """Return the jars folder of these settings."""
    return settings.jars_dir or default_jars_dir()


def available(settings: Settings) -> list[Path]:
    """Return the paths of all jars; downloads missing ones where the folder is the user's cache.

    Raises JarError for a jar that is missing elsewhere or cannot be downloaded. What is in them, `require_pinned` verifies.
    """
    folder = jars_folder(settings)
    missing = [jar for jar in JARS if not (folder / jar.file_name).is_file()]
    # A folder that an operator configured is filled only by `tidemark setup`: it may be shared or meant to be complete.
    if missing and (is_clone() or settings.jars_dir is not None):
        raise JarError(
            str(folder / missing[0].file_name), "is missing", "Fetch it: tidemark setup (in a clone: make setup)"
        )
    fetch(folder, missing, url=settings.jars_url)
    return [folder / jar.file_name for jar in JARS]


def require_pinned(settings: Settings) -> None:
    """Raise JarError where a jar has other bytes than pinned: a JVM runs what is in it, whoever wrote it there."""
    for jar in JARS:
        path = jars_folder(settings) / jar.file_name
        if not _is_right(path, jar.sha256):
            raise JarError(str(path), "is not the jar that is pinned", "Find out who changed it; then: tidemark setup")


def fetch(folder: Path, jars: Sequence[Jar] = JARS, *, url: str = MAVEN) -> list[Path]:
    """Download jars that are missing or have another SHA-256 than pinned; returns the downloaded paths; raises JarError."""
    fetched = []
    for jar in jars:
        path = folder / jar.file_name
        if not _is_right(path, jar.sha256):
            sweep(folder)
            download(f"{url.rstrip('/')}/{jar.path}", path, jar.sha256)
            fetched.append(path)
    return fetched


def _is_right(path: Path, sha256: str) -> bool:
    try:
        now = path.stat()
        return _sum_of(path, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) == sha256
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise JarError(str(path), f"cannot be read: {error.strerror}", "Correct its rights, or remove it") from error


@cache
def _sum_of(path: Path, *_state: int) -> str:
    # One process may open many sessions; a file that was written meanwhile, or replaced, has another state.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Download and verify all jars in the default folder; returns the exit code."""
    try:
        fetched = fetch(default_jars_dir(), url=load_settings().jars_url)
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{len(JARS)} jars verified, {len(fetched)} fetched\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
