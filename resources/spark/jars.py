"""The jars Spark needs: pinned, fetched at setup, never at run time.

Contains: coordinates and sha256 of every jar, fetching through the Ivy inside pyspark,
verification.
Add here: a new jar or version.
Does not contain: Spark's configuration (resources/spark/session.py). Run as `python -m
resources.spark.jars`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline_assets.domain.errors import PermanentError
from pipeline_assets.domain.settings import PROJECT_ROOT

DEFAULT_JARS_DIR = PROJECT_ROOT / ".jars"
_HINT = "Run `make setup` again with the network reachable"


class JarError(PermanentError):
    """A jar is missing or is not the pinned one."""


@dataclass(frozen=True)
class Jar:
    """One pinned jar."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name in the jars folder."""
        return f"{self.name}-{self.version}.jar"


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
)


def verified(jars_dir: Path) -> list[Path]:
    """Paths of all jars; raises JarError for a missing one. Sums are checked at setup, not at every start."""
    paths = [jars_dir / jar.file_name for jar in JARS]
    for path in paths:
        if not path.is_file():
            raise JarError(str(path), "is missing", _HINT)
    return paths


def fetch(jars_dir: Path, jars: Sequence[Jar] = JARS) -> list[Path]:
    """Fetch what is missing or has another sha256 than the pinned one; returns the fetched paths."""
    jars_dir.mkdir(parents=True, exist_ok=True)
    wanted = [jar for jar in jars if not _is_right(jars_dir / jar.file_name, jar.sha256)]
    if wanted:
        _retrieve(wanted, jars_dir)
    return [jars_dir / jar.file_name for jar in wanted]


def _is_right(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        where = f"there is no bin/java in JAVA_HOME ({home})" if home else "was not found on PATH"
        raise JarError("java", where, "Install Java 17 or 21, or set JAVA_HOME to it")
    return java


def _retrieve(jars: list[Jar], jars_dir: Path) -> None:
    """Let Ivy retrieve beside the target; a jar reaches `jars_dir` only once its sum is the pinned one."""
    import pyspark  # noqa: PLC0415 - setup only; reading the pins needs no pyspark

    ivy_jars = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not ivy_jars:
        raise JarError("pyspark", "ships no Ivy jar", "Install the locked pyspark: `make setup`")
    dependencies = "\n".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" transitive="false" '
        'conf="default->default"/>'
        for jar in jars
    )
    with tempfile.TemporaryDirectory(dir=jars_dir, prefix=".fetch-") as work:
        ivy_file = Path(work) / "ivy.xml"
        ivy_file.write_text(
            '<ivy-module version="2.0"><info organisation="tidemark" module="jars"/>'
            f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
            "</ivy-module>",
            "utf-8",
        )
        command = [
            _java(),
            f"-Divy.default.ivy.user.dir={work}/ivy",
            "-jar",
            str(ivy_jars[-1]),
            "-ivy",
            str(ivy_file),
            "-confs",
            "default",
            "-types",
            "jar",
            "-cache",
            f"{work}/cache",
            "-retrieve",
            f"{work}/jars/[artifact]-[revision].[ext]",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise JarError(", ".join(jar.file_name for jar in jars), f"Ivy failed: {' / '.join(lines[-3:])}", _HINT)
        for jar in jars:
            path = Path(work) / "jars" / jar.file_name
            if not path.is_file():
                raise JarError(jar.file_name, "could not be fetched", _HINT)
            if not _is_right(path, jar.sha256):
                raise JarError(jar.file_name, "was fetched but does not have the pinned sha256", _HINT)
            path.replace(jars_dir / jar.file_name)


def main() -> int:
    """Fetch and verify into the default folder."""
    try:
        fetched = fetch(DEFAULT_JARS_DIR)
    except JarError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{len(JARS)} jars verified, {len(fetched)} fetched\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
