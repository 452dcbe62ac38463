"""S3-compatible servers for tests: a working one, and one with chosen answers."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

BUCKET = "tidemark-test"


@contextmanager
def a_working_server() -> Iterator[str]:
    """URL of an empty S3 server in memory (moto); its content outlives a server in the same process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def a_server_that_answers(answer: Callable[[str], tuple[int, str]]) -> Iterator[str]:
    """URL of a server with this status and body for each path and query."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    with served(Answer) as url:
        yield url


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tests kill clients on purpose, and let them reject a certificate."""
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def served(
    handler: type[BaseHTTPRequestHandler], port: int = 0, context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """URL of an HTTP server on this machine; a free port by default; `context`: of TLS."""
    server = _Server(("127.0.0.1", port), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
