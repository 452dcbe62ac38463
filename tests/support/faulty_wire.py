"""A TCP proxy before PostgreSQL that cuts a connection before a statement, or before its answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum, auto

_STEP_BYTES = 65536


class Moment(StrEnum):
    BEFORE_STATEMENT = auto()
    """The server never sees the statement."""
    BEFORE_ANSWER = auto()
    """The statement is done, and the client never hears of it."""


@dataclass
class Cut:
    statement: bytes
    moment: Moment
    after: bytes = b""
    """Only on a connection that sent this before."""
    times: int = 1
    met: int = 0


@dataclass
class Wire:
    target: int
    """The server's port, on this machine."""
    cut: Cut | None = None
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fate(self, sent: bytes, before: bytes) -> Moment | None:
        """The fate of a connection by its new and its earlier bytes."""
        with self._lock:
            cut = self.cut
            if cut is None or cut.met >= cut.times or cut.statement not in sent or cut.after not in before + sent:
                return None
            cut.met += 1
            return cut.moment

    def end(self) -> int:
        """Ends all cuts; returns how many connections were cut."""
        with self._lock:
            cut, self.cut = self.cut, None
            return cut.met if cut is not None else 0


@contextmanager
def a_faulty_wire(target: int) -> Iterator[Wire]:
    wire = Wire(target)
    listener = socket.create_server(("127.0.0.1", 0))
    wire.port = listener.getsockname()[1]
    thread = threading.Thread(target=_accept, args=(listener, wire), daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        # Only a shutdown wakes a waiting `accept`.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _accept(listener: socket.socket, wire: Wire) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(client, wire), daemon=True).start()


def _serve(client: socket.socket, wire: Wire) -> None:
    try:
        server = socket.create_connection(("127.0.0.1", wire.target))
    except OSError:
        client.close()
        return
    is_deaf = threading.Event()
    answers = threading.Thread(target=_pass_answers, args=(server, client, is_deaf), daemon=True)
    answers.start()
    before = b""
    with suppress(OSError):
        while sent := client.recv(_STEP_BYTES):
            fate = wire.fate(sent, before)
            before = (before + sent)[-4 * _STEP_BYTES :]
            if fate is Moment.BEFORE_STATEMENT:
                break
            if fate is Moment.BEFORE_ANSWER:
                is_deaf.set()
                server.sendall(sent)
                # Gone once the server has answered: `_pass_answers` ends with the first.
                answers.join()
                break
            server.sendall(sent)
    for end in (client, server):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def _pass_answers(server: socket.socket, client: socket.socket, is_deaf: threading.Event) -> None:
    with suppress(OSError):
        while heard := server.recv(_STEP_BYTES):
            if is_deaf.is_set():
                return
            client.sendall(heard)
        client.shutdown(socket.SHUT_RDWR)
