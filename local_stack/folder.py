"""The folder of the local stack: its layout, its owner, a lock for commands, and removing it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from local_stack.server import StackError
from pipeline_assets.domain.errors import UsageError

_MARK = ".tidemark-stack"
_OURS = frozenset(
    {
        _MARK,
        "secrets.json",
        "environment",
        "tidemark.toml",
        "run",
        "logs",
        "postgres",
        "postgres.password",
        "objects",
        "s3proxy.properties",
        "dagster_home",
        "health_report.html",
        "spark",
        "tmp",
        "demo",
    }
)
_HALF = ".new"
"""Suffix of an incomplete file or folder."""
_OWNER_ONLY = 0o600
_PASSABLE = 0o711
"""The database may run as another user, who must traverse the folder but cannot list it."""


@dataclass(frozen=True)
class StackFolder:
    """`data/stack` of a clone."""

    root: Path

    @property
    def run(self) -> Path:
        """Records of the processes that the stack started."""
        return self.root / "run"

    @property
    def environment(self) -> Path:
        """Variables of the deployment; exists while the stack is up."""
        return self.root / "environment"

    @property
    def settings(self) -> Path:
        """Settings of the deployment that no variable sets; the user may change them."""
        return self.root / "tidemark.toml"

    @property
    def objects(self) -> Path:
        """The buckets, as folders."""
        return self.root / "objects"

    @property
    def postgres(self) -> Path:
        """The database's cluster."""
        return self.root / "postgres"

    @property
    def dagster_home(self) -> Path:
        """Dagster's configuration and logs; runs and events lie in the database."""
        return self.root / "dagster_home"

    @property
    def spark(self) -> Path:
        """Working folders of Spark's workers."""
        return self.root / "spark"

    @property
    def tmp(self) -> Path:
        """Replaces /tmp for all processes of the stack."""
        return self.root / "tmp"

    @property
    def demo(self) -> Path:
        """The demo's export, and its embedded twin."""
        return self.root / "demo"

    def log(self, name: str) -> Path:
        """Return the log file of a server."""
        return self.root / "logs" / f"{name}.log"

    @property
    def id(self) -> str:
        """The stack's id, in the environment of exactly its processes; empty where there is no stack."""
        return self._mark()["id"]

    def _mark(self) -> dict[str, str]:
        """The stack's id, and its path when it came up, which is empty while it is down."""
        try:
            mark = json.loads((self.root / _MARK).read_text("utf-8"))
            return {"id": str(mark["id"]), "up_at": str(mark["up_at"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {"id": "", "up_at": ""}

    def _write_mark(self, stack_id: str, up_at: str) -> None:
        write_for_owner(self.root / _MARK, json.dumps({"id": stack_id, "up_at": up_at}))

    def make(self) -> None:
        """Create the folder if needed; raises UsageError for a folder with foreign files or of another stack."""
        self.require_ours()
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(_PASSABLE)
        if not self._mark()["up_at"]:
            # The folder may have been copied while the stack was down, so each start gives it a new id.
            self._write_mark(secrets.token_hex(16), str(self.root.resolve()))
        for folder in (self.run, self.root / "logs", self.objects, self.dagster_home, self.spark, self.tmp):
            folder.mkdir(mode=0o700, exist_ok=True)

    def require_ours(self) -> None:
        """Raise UsageError for a folder with foreign files, or one that was moved or copied while its servers may have run."""
        if self.root.exists() and not os.access(self.root, os.R_OK | os.W_OK | os.X_OK):
            raise UsageError(str(self.root), "belongs to another user", "Run the command as that one")
        if self.root.is_symlink() or (self.root.exists() and not self.id and any(self.root.iterdir())):
            raise UsageError(
                str(self.root), "is no folder of the set", "Nothing was touched; move it away, then try again"
            )
        up_at = self._mark()["up_at"]
        if up_at not in ("", str(self.root.resolve())):
            reason = f"was copied or moved while the set was up, at {up_at}, and its servers are that one's"
            hint = (
                "Nothing was touched; remove a copy by hand, or move the folder back and end the set there: make down"
            )
            raise UsageError(str(self.root), reason, hint)

    def sweep(self) -> None:
        """Remove what only running processes need; the data stays and may be copied or moved."""
        self.environment.unlink(missing_ok=True)
        (self.root / "s3proxy.properties").unlink(missing_ok=True)
        for folder in (self.run, self.tmp, self.spark):
            shutil.rmtree(folder, ignore_errors=True)
        if self.id:
            self._write_mark(self.id, "")

    def wipe(self) -> None:
        """Remove the folder with all its data; raises UsageError where it holds foreign files."""
        self.require_ours()
        strange = sorted(path.name for path in self.root.iterdir() if path.name.removesuffix(_HALF) not in _OURS)
        if strange:
            raise UsageError(str(self.root / strange[0]), "was not written by the set", "Move it away, then try again")
        # Remove the mark last, so that after a kill the rest is still recognised as the stack's.
        for path in sorted(self.root.iterdir(), key=lambda path: path.name == _MARK):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def secrets(self) -> Mapping[str, str]:
        """Return passwords and keys by name, generated at the first call.

        Raises StackError where the file is gone while a database that uses the passwords exists.
        """
        path = self.root / "secrets.json"
        if path.exists():
            return {str(name): str(value) for name, value in json.loads(path.read_text("utf-8")).items()}
        if self.postgres.exists():
            hint = "Put the file back, or begin anew: make down ARGS=--wipe"
            raise StackError(str(path), "is gone, and nobody else knows the passwords of the set's database", hint)
        made = {name: secrets.token_hex(24) for name in ("postgres", "tidemark", "dagster", "s3", "spark")}
        write_for_owner(path, json.dumps(made))
        return made

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the stack for one command; raises UsageError where another command is running. Leaves no file behind."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                reason = "another command is starting or ending the set"
                raise UsageError(str(self.root), reason, "Wait for it, then try again") from None
            yield
        finally:
            os.close(descriptor)
            with suppress(OSError):
                # Remove the folder if it is empty, because the stack was wiped or the lock created it.
                self.root.rmdir()


def write_for_owner(path: Path, text: str) -> None:
    """Write a file atomically that only its owner can read."""
    beside = path.with_name(f"{path.name}{_HALF}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
