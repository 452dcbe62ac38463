"""A recovery of sample data that is killed and started again, in a drill's landing."""

from __future__ import annotations

import io
import threading
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import obstore

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.slices import Source
from pipeline_assets.drill.process import failure, kill_at, tidemark
from pipeline_assets.drill.sandbox import Scratch
from pipeline_assets.drill.scenarios import differing
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.recover import NO_DATA_MARKER
from sample_export.account import ExportAccount
from sample_export.objects import iter_export
from sample_export.spec import ExportSpec


def recovery_faults(place: Scratch, sample: ExportSpec, project: str, day: date, armed: str) -> list[str]:
    """Kill a recovery of a day at a point, start it again; returns the broken invariants.

    Raises VictimError where the recovery does not pause.
    """
    grammar = EXPORT_FORMAT.keys(place.settings.marker_pattern)
    batch = BatchKey(Source.BACKFILL, project, day)
    markers = {grammar.format_marker(batch, hour): hour for hour in range(24)}
    files: dict[Hour, dict[str, bytes]] = defaultdict(dict)
    # What earlier trials recovered stays as it is.
    expected = _landing(place, project)
    hour_of: dict[str, int] = {}
    for exported in iter_export(replace(sample, first_day=day, days=1, shards=2), ExportAccount()):
        parsed = grammar.parse(Source.REGULAR, project, exported.key, "", 0)
        if isinstance(parsed, Delivery):
            files[Hour(day, parsed.hour)][exported.key] = exported.body
            key = grammar.format_delivery(batch, parsed.hour, parsed.shard)
            expected[key], hour_of[key] = exported.body, parsed.hour
    expected |= {key: b"" if Hour(day, hour) in files else NO_DATA_MARKER for key, hour in markers.items()}
    words = tidemark("recover", "--from", str(day), "--to", str(day))
    keys = {f"TIDEMARK_EXPORT_{name}_{project}": "of-a-drill" for name in ("KEY", "SECRET")}
    with a_vendor(files) as url:
        # The vendor runs on this machine, so no proxy may be used.
        direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        api = {"TIDEMARK_EXPORT_API_URL": url, "TIDEMARK_EXPORT_MIN_FREE_BYTES": "0"}
        environment = place.environment(**api, **direct, **keys)
        kill_at(words, environment, armed, place.home)
        after_the_kill = _landing(place, project)
        said = failure([*words, "--verbose"], environment)
    faults = [] if said is None else [f"the recovery that came after it failed: {said}"]
    marked = {hour for key, hour in markers.items() if key in after_the_kill}
    half = [key for key, hour in hour_of.items() if hour in marked and key not in after_the_kill]
    faults += [f"{key} was missing beside the marker of its hour" for key in half]
    for key, wanted, found in differing(expected, _landing(place, project)):
        what = "is not there" if found is None else "holds other bytes than were exported"
        faults.append(f"{key} {what if wanted is not None else 'is there, and nobody exported it'}")
    return faults


def _landing(place: Scratch, project: str) -> dict[str, bytes]:
    """Key -> bytes of the project's recoveries."""
    root = "landing/"
    pages = obstore.list(place.store, prefix=f"{root}{Source.BACKFILL.prefix(project)}")
    names = [item["path"] for page in pages for item in page]
    return {name.removeprefix(root): bytes(obstore.get(place.store, name).bytes()) for name in names}


@contextmanager
def a_vendor(files: Mapping[Hour, Mapping[str, bytes]]) -> Iterator[str]:
    """Run the server and yield its URL; it accepts any keys. `files`: hour -> name in the archive -> gzip bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            first, last = (
                Hour.at(datetime.strptime(query[name][0], "%Y%m%dT%H").replace(tzinfo=UTC)) for name in ("start", "end")
            )
            chosen = [found for hour, found in files.items() if first <= hour <= last]
            body = io.BytesIO()
            with zipfile.ZipFile(body, "w") as archive:
                for name, content in (file for found in chosen for file in found.items()):
                    archive.writestr(name, content)
            self.send_response(HTTPStatus.OK if chosen else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", str(len(body.getvalue())))
            self.end_headers()
            self.wfile.write(body.getvalue())

        def log_message(self, *_: object) -> None:
            """Log nothing: the drill has its own log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
