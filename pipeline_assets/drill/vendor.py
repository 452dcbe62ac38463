"""A local Export API for a drill, which serves given hourly files."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from pipeline_assets.domain.hours import Hour


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
