"""A recovery of sample data that is killed and started again, in a drill's landing."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import obstore

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.slices import Source
from pipeline_assets.drill.process import a_victim
from pipeline_assets.drill.sandbox import Scratch
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.recover import NO_DATA_MARKER
from sample_export.account import ExportAccount
from sample_export.objects import iter_export
from sample_export.spec import ExportSpec

_LONGEST_SECONDS = 300


def recovery_faults(place: Scratch, sample: ExportSpec, project: str, day: date, armed: str) -> list[str]:
    """Kill a recovery of a day at a point, start it again; returns the broken invariants.

    Raises VictimError where the recovery does not pause.
    """
    grammar = EXPORT_FORMAT.keys(place.settings.marker_pattern)
    batch = BatchKey(Source.BACKFILL, project, day)
    markers = {grammar.format_marker(batch, hour): hour for hour in range(24)}
    files: dict[Hour, dict[str, bytes]] = {}
    # What earlier trials recovered stays as it is.
    expected = _landing(place, project)
    hour_of: dict[str, int] = {}
    for exported in iter_export(replace(sample, first_day=day, days=1, shards=2), ExportAccount()):
        parsed = grammar.parse(Source.REGULAR, project, exported.key, "", 0)
        if isinstance(parsed, Delivery):
            files.setdefault(Hour(day, parsed.hour), {})[exported.key] = exported.body
            key = grammar.format_delivery(batch, parsed.hour, parsed.shard)
            expected[key], hour_of[key] = exported.body, parsed.hour
    expected |= {key: b"" if Hour(day, hour) in files else NO_DATA_MARKER for key, hour in markers.items()}
    words = [
        str(Path(sys.executable).with_name("tidemark")),
        "recover",
        "--from",
        str(day),
        "--to",
        str(day),
        "--verbose",
    ]
    with a_vendor(files) as url:
        environment = _environment(place, project, url)
        with a_victim(words, environment, armed, place.home) as victim:
            victim.wait_until_paused()
        after_the_kill = _landing(place, project)
        again = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=_LONGEST_SECONDS
        )
    faults = [f"the recovery that came after it failed: {again.stderr[-500:]}"] if again.returncode else []
    marked = {hour for key, hour in markers.items() if key in after_the_kill}
    half = [key for key, hour in hour_of.items() if hour in marked and key not in after_the_kill]
    faults += [f"{key} was missing beside the marker of its hour" for key in half]
    return [*faults, *_differences(expected, _landing(place, project))]


def _environment(place: Scratch, project: str, url: str) -> dict[str, str]:
    keys = {f"TIDEMARK_EXPORT_{name}_{project}": "of-a-drill" for name in ("KEY", "SECRET")}
    # The vendor runs on this machine, so no proxy may be used.
    return place.environment(
        TIDEMARK_EXPORT_API_URL=url,
        TIDEMARK_EXPORT_MIN_FREE_BYTES="0",
        NO_PROXY="127.0.0.1",
        no_proxy="127.0.0.1",
        **keys,
    )


def _landing(place: Scratch, project: str) -> dict[str, bytes]:
    """Key -> bytes of the project's recoveries."""
    root = "landing/"
    pages = obstore.list(place.store, prefix=f"{root}{Source.BACKFILL.prefix(project)}")
    names = [item["path"] for page in pages for item in page]
    return {name.removeprefix(root): bytes(obstore.get(place.store, name).bytes()) for name in names}


def _differences(expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> Iterator[str]:
    for key in sorted(expected.keys() | found.keys()):
        if key not in found:
            yield f"{key} is not there"
        elif key not in expected:
            yield f"{key} is there, and nobody exported it"
        elif expected[key] != found[key]:
            yield f"{key} holds other bytes than were exported"


@contextmanager
def a_vendor(files: Mapping[Hour, Mapping[str, bytes]]) -> Iterator[str]:
    """Run the server and yield its URL; it accepts any keys. `files`: hour -> name in the archive -> gzip bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            first, last = (_hour(query[name][0]) for name in ("start", "end"))
            chosen = {
                name: body for hour, found in files.items() if first <= hour <= last for name, body in found.items()
            }
            body = io.BytesIO()
            with zipfile.ZipFile(body, "w") as archive:
                for name, content in chosen.items():
                    archive.writestr(name, content)
            self.send_response(HTTPStatus.OK if chosen else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", str(len(body.getvalue())))
            self.end_headers()
            self.wfile.write(body.getvalue())

        def log_message(self, *_: object) -> None:
            """Log nothing: the drill has its own log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _hour(text: str) -> Hour:
    return Hour.at(datetime.strptime(text, "%Y%m%dT%H").replace(tzinfo=UTC))
