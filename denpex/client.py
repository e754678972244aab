"""Asks the worker: by its socket on this host, else over TCP with munge, else in the answer files."""

from __future__ import annotations

import json
import secrets
import socket
import time
from typing import Any

from denpex.config import Config
from denpex.errors import ServiceError, UsageError

_SECONDS = 5.0
_ANSWER_S = 30.0
_LONGEST = 512 << 20
# A worker that is full closes the door; it mostly has room a moment later.
_PAUSES = (0.1, 0.3, 0.9)


def ask(config: Config, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to ``request``, whose "verb" is "show" or "list" (see denpex/answers.py).

    Raises ServiceError where nobody answers, and UsageError where the worker does not understand the request.
    """
    request = {**request, "nonce": secrets.token_hex(16)}
    problems = []
    if config.socket.exists():
        try:
            return _checked(_local(config, request), request)
        except OSError as error:
            problems.append(f"{config.socket}: {error.strerror or error}")
    if config.worker.server:
        try:
            return _checked(_remote(config, request), request)
        except (OSError, OverflowError) as error:
            problems.append(f"{config.worker.server}: {getattr(error, 'strerror', None) or error}")
    if config.worker.answers_dir:
        if request["verb"] != "show":
            problems.append("answer files hold no lists")
        else:
            from denpex import answerfiles

            return {"rows": answerfiles.read(config, str(request["jobs"]), bool(request.get("duplicates")))}
    if not problems:
        problems.append(f"there is no socket {config.socket} on this host, and worker.server is not set")
    raise ServiceError(f"the worker cannot be asked ({'; '.join(problems)}); is `denpex worker` running?")


def _local(config: Config, request: dict[str, Any]) -> bytes:
    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.settimeout(_SECONDS)
            client.connect(str(config.socket))
        except OSError:
            client.close()
            raise
        return client

    for pause in (*_PAUSES, 0.0):
        reply = _exchange(connect(), json.dumps(request).encode())
        if reply or not pause:
            break
        time.sleep(pause)
    return reply


def _remote(config: Config, request: dict[str, Any]) -> bytes:
    from denpex.credential import makers, munge, unseal

    host, _, port = config.worker.server.rpartition(":")
    address = (host.strip("[]"), int(port))
    for pause in (*_PAUSES, 0.0):
        # A credential is good for one question.
        asked = munge(json.dumps(request).encode())
        reply = _exchange(socket.create_connection(address, timeout=_SECONDS), asked)
        if reply or not pause:
            break
        time.sleep(pause)
    if not reply:
        raise ServiceError(
            f"the worker at {config.worker.server} closes the connection: it is busy, or munge's keys or the clocks of"
            " the two hosts differ"
        )
    return unseal(reply, makers(config.worker.user))


def _exchange(client: socket.socket, asked: bytes) -> bytes:
    """Send one line and return everything that comes back; nothing where the other side has no room."""
    until = time.monotonic() + _ANSWER_S
    pieces: list[bytes] = []
    size = 0
    with client:
        try:
            client.sendall(asked + b"\n")
            while True:
                client.settimeout(max(until - time.monotonic(), 0.001))
                piece = client.recv(1 << 20)
                if not piece:
                    return b"".join(pieces)
                size += len(piece)
                if size > _LONGEST:
                    raise ServiceError("the worker's answer does not end")
                pieces.append(piece)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def _checked(data: bytes, request: dict[str, Any]) -> dict[str, Any]:
    try:
        reply = json.loads(data)
    except ValueError as error:
        raise ServiceError("the worker gives no answer, or one that is cut off; ask again") from error
    if not isinstance(reply, dict) or reply.get("nonce") != request["nonce"]:
        raise ServiceError("the answer is to another question; ask again")
    if "error" in reply:
        raise (UsageError if reply.get("usage") else ServiceError)(str(reply["error"]))
    return reply
