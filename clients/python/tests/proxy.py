"""A TCP proxy in front of MongoDB that replaces bytes: a driver or service that spoils `seq`."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

Replacement = tuple[bytes, bytes]

NOTHING: Replacement = (b"$^", b"")


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as upstream:
            answers = threading.Thread(
                target=_copy, args=(upstream, self.request, self.server.in_answers), daemon=True
            )
            answers.start()
            _copy(self.request, upstream, self.server.in_requests)
            answers.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    target: tuple[str, int]
    in_requests: Replacement
    in_answers: Replacement


def _copy(source: socket.socket, target: socket.socket, replacement: Replacement) -> None:
    """Copies whole messages of MongoDB's protocol, each of which begins with its length."""
    pattern, instead = replacement
    try:
        while True:
            head = _read(source, 4)
            message = head + _read(source, int.from_bytes(head, "little") - 4)
            changed = re.sub(pattern, lambda _: instead, message, flags=re.DOTALL)
            assert len(changed) == len(message)
            target.sendall(changed)
    except (EOFError, OSError):
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


@contextmanager
def proxy(
    target: tuple[str, int],
    *,
    in_requests: Replacement = NOTHING,
    in_answers: Replacement = NOTHING,
) -> Iterator[int]:
    """Runs a proxy, and yields its port."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.target = target
        server.in_requests, server.in_answers = in_requests, in_answers
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
