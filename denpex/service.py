"""How the worker answers: over a unix socket on its host (peer credentials) and TCP (munge), and in answer files.

A request is one JSON line. Over the unix socket the answer is one JSON line too, and the kernel says who asks. Over TCP
the request is a munge credential, which says who asks, and the answer is credentials that this user alone can open.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from denpex.answers import answer
from denpex.config import Config
from denpex.credential import seal, unmunge
from denpex.errors import DenpexError, ServiceError, UsageError
from denpex.store import Reader

_LONGEST_REQUEST = 64 << 10
_READ_S = 5.0
_WRITE_S = 20.0
_MOST_CLIENTS = 128
_MOST_OF_ONE = 16
_BACKLOG = 128

Who = Callable[[socket.socket, Any], object]


class Server:
    """The answering threads; ``close`` ends them."""

    def __init__(self, config: Config, reader: Reader) -> None:
        self._reader = reader
        self._admins = {0, os.geteuid(), *_uids(config.worker.admins)}
        self._path = config.socket
        self._doors: list[_Door] = []
        config.socket.parent.mkdir(parents=True, exist_ok=True)
        config.socket.unlink(missing_ok=True)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.bind(str(config.socket))
            config.socket.chmod(0o666)
        except OSError:
            local.close()
            raise
        self._doors.append(_Door(local, lambda client, _: _peer(client), self._local))
        if config.worker.listen:
            host, _, port = config.worker.listen.rpartition(":")
            host = host.strip("[]")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                remote = socket.create_server((host, int(port)), family=family)
            except (OSError, ValueError, OverflowError) as error:
                self.close()
                raise ServiceError(f"worker.listen {config.worker.listen!r} cannot be served: {error}") from error
            self._doors.append(_Door(remote, lambda _, address: address[0], self._remote))

    def _local(self, client: socket.socket) -> None:
        reply = self._answer(_line(client), _peer(client))
        client.settimeout(_WRITE_S)
        client.sendall(reply + b"\n")

    def _remote(self, client: socket.socket) -> None:
        uid, request = unmunge(_line(client))
        reply = seal(self._answer(request, uid), uid)
        client.settimeout(_WRITE_S)
        client.sendall(reply)

    def _answer(self, request: bytes, uid: int) -> bytes:
        asked: Any = None
        try:
            asked = json.loads(request)
            if not isinstance(asked, dict):
                raise ServiceError("a request is a JSON object")
            reply = answer(self._reader, asked, uid, uid in self._admins)
        except DenpexError as error:
            reply = {"error": str(error), "usage": isinstance(error, UsageError)}
        except (ValueError, RecursionError):
            reply = {"error": "the request is not JSON, or holds text that is not Unicode"}
        reply["nonce"] = asked.get("nonce") if isinstance(asked, dict) else None
        return json.dumps(reply).encode()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        for door in self._doors:
            door.close()
        self._path.unlink(missing_ok=True)


class _Door:
    """One listening socket: a thread for each client, a bounded number in all and of one user or host."""

    def __init__(self, listening: socket.socket, who: Who, handle: Callable[[socket.socket], None]) -> None:
        self._listening, self._who, self._handle = listening, who, handle
        self._inside: Counter[object] = Counter()
        self._lock = threading.Lock()
        listening.listen(_BACKLOG)
        threading.Thread(target=self._accept, daemon=True, name="answers").start()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._listening.accept()
            except OSError:
                if self._listening.fileno() < 0:
                    return  # closed
                time.sleep(0.1)  # no file descriptor is left, or the client has gone again
                continue
            try:
                who = self._who(client, address)
                if not self._enter(who):
                    client.close()
                    continue
            except OSError:
                client.close()
                continue
            try:
                threading.Thread(target=self._one, args=(client, who), daemon=True, name="answer").start()
            except RuntimeError:  # no thread is left
                client.close()
                self._leave(who)

    def _enter(self, who: object) -> bool:
        """Count a client in, or say that there is no room; others are not made to wait for one that fills it."""
        with self._lock:
            if self._inside[who] >= _MOST_OF_ONE or self._inside.total() >= _MOST_CLIENTS:
                return False
            self._inside[who] += 1
            return True

    def _leave(self, who: object) -> None:
        with self._lock:
            self._inside[who] -= 1
            if not self._inside[who]:
                del self._inside[who]

    def _one(self, client: socket.socket, who: object) -> None:
        try:
            with client:
                self._handle(client)
        except (OSError, ServiceError):
            return  # a client that leaves, or talks nonsense, concerns nobody else
        finally:
            self._leave(who)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def serve(config: Config) -> Server:
    """Start answering from the stored verdicts. Raises ServiceError where an address cannot be served."""
    try:
        return Server(config, Reader(config.database))
    except OSError as error:
        raise ServiceError(f"the socket {config.socket} cannot be served: {error}") from error


def _uids(names: tuple[str, ...]) -> set[int]:
    found = set()
    for name in names:
        with contextlib.suppress(KeyError):
            found.add(pwd.getpwnam(name).pw_uid)
    return found


def _peer(client: socket.socket) -> int:
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)


def _line(client: socket.socket) -> bytes:
    """Read one line of bounded length, in bounded time altogether."""
    until = time.monotonic() + _READ_S
    data = b""
    while not data.endswith(b"\n"):
        client.settimeout(max(until - time.monotonic(), 0.001))
        piece = client.recv(65536)
        if not piece or len(data) + len(piece) > _LONGEST_REQUEST:
            raise ServiceError("the request is cut off or too long")
        data += piece
    return data[:-1]
