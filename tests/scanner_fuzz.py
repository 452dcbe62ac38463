"""`make fuzz`: damaged lines for the native scanner, in Rust under an address sanitizer and beside the parser in Python."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pipeline_assets.domain.settings import PROJECT_ROOT
from pipeline_assets.formats.amplitude import line_blocks
from pipeline_assets.formats.amplitude.line_blocks import ColumnParser
from pipeline_assets.native import PLACE
from sample_export.objects import write_export
from sample_export.spec import ExportSpec

CRATE = PROJECT_ROOT / "native"
HOST = "x86_64-unknown-linux-gnu"
DAY = date(2030, 1, 1)
MAX_LINE_BYTES = 1 << 20
_TEST = "fuzz::mutated_lines_do_no_harm"
_PIECES = [
    *(bytes([code]) for code in b'"\\{}[],:\r \x00\x1f\x7f\xff'), b"\xed\xa0\x80", b"\\u00e9", b"\\ud83d", b"\\ude00",
    b"null", b"true", b"-", b"0", b"9" * 19, b"1e5", b".5", b'""', b'{"a":',
]  # fmt: skip


def corpus() -> tuple[str, list[bytes]]:
    """A project and its lines: of a real export and of a sample one."""
    real = sorted((Path(__file__).parent / "data" / "airbyte_source_amplitude").glob("*.gz"))
    lines = [line for path in real for line in gzip.decompress(path.read_bytes()).splitlines()]
    project = str(json.loads(lines[0])["app"])
    with tempfile.TemporaryDirectory() as folder:
        spec = ExportSpec(seed=3, projects=(project,), first_day=date(2026, 1, 1), days=1, events_per_day=300)
        write_export(spec, Path(folder))
        for path in sorted(Path(folder).rglob("*.json.gz")):
            lines += gzip.decompress(path.read_bytes()).splitlines()
    lines += [json.dumps(json.loads(line)).encode() for line in lines[::7]]
    return project, lines


def damaged(line: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    changed = bytearray(line)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0:
                changed[at : at + chance.randrange(4)] = chance.choice(_PIECES)
            case 1:
                changed[at : at + 1] = chance.randbytes(1)
            case 2:
                del changed[at : at + chance.randrange(30)]
            case _:
                other = chance.choice(others)
                changed[at:] = other[chance.randrange(len(other)) :]
    return bytes(changed)


def compare(project: str, lines: Sequence[bytes], seconds: float, seed: int) -> None:
    """Compare the scanner with Python; exits with the first lines that both accept and read differently."""
    scan = line_blocks.native_scan(project, DAY, MAX_LINE_BYTES)
    if scan is None:
        sys.exit(f"{PLACE}: no library that this code can use\n  fix: make setup, where cargo is installed")
    python, chance, end = ColumnParser(project, DAY, MAX_LINE_BYTES), random.Random(seed), time.monotonic() + seconds
    blocks = sure = 0
    while time.monotonic() < end:
        block = [damaged(chance.choice(lines), lines, chance) for _ in range(chance.choice((1, 1, 2, 5)))]
        text = b"".join(b"%b\n" % line for line in block)
        columns = scan(text, len(block))
        blocks += 1
        if columns is None:
            continue
        sure += 1
        for column in columns.values():
            column.validate(full=True)
        if columns != python.decode(text, len(block)):
            sys.exit(f"the scanner reads these lines otherwise than Python:\n{block!r}")
    sys.stdout.write(f"compared: {blocks} blocks, {sure} of them scanned and equal\n")


def sanitized(project: str, lines: Sequence[bytes], seconds: int, seed: int) -> None:
    """Run the crate's loop under an address sanitizer (nightly compiler), else under valgrind, else as it is."""
    if shutil.which("cargo") is None:
        sys.exit("cargo: is not installed\n  fix: install Rust")
    nightly = subprocess.run(["cargo", "+nightly", "--version"], capture_output=True, check=False).returncode == 0
    if nightly:
        how, command = "address sanitizer", ["cargo", "+nightly", "test", "--release", "--target", HOST]
        flags = {"RUSTFLAGS": "-Zsanitizer=address"}
    else:
        how, command, flags = "no sanitizer", ["cargo", "test", "--release"], {}
        if shutil.which("valgrind"):
            how, flags = "valgrind", {"CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER": "valgrind -q --error-exitcode=9"}
    sys.stdout.write(f"in Rust, {how}: {seconds} s\n")
    sys.stdout.flush()
    with tempfile.NamedTemporaryFile() as kept:
        kept.write(b"\n".join(lines))
        kept.flush()
        keys = ",".join(f"{column.key} {column.kind:d}" for column in line_blocks.columns())
        told = {"LINES": kept.name, "KEYS": keys, "PROJECT": project, "SECONDS": str(seconds), "SEED": str(seed)}
        variables = {f"FUZZ_{name}": value for name, value in told.items()}
        words = [*command, "--offline", "--locked", "--quiet", _TEST, "--", "--exact", "--nocapture"]
        done = subprocess.run(words, cwd=CRATE, env={**os.environ, **flags, **variables}, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Damage lines for a while in Rust, then for as long beside Python."""
    parser = argparse.ArgumentParser(prog="python -m tests.scanner_fuzz", description="Damaged lines for the scanner.")
    parser.add_argument("--seconds", type=int, default=120, help="of each of both loops")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    project, lines = corpus()
    sanitized(project, lines, options.seconds, options.seed)
    compare(project, lines, options.seconds, options.seed)


if __name__ == "__main__":
    main()
