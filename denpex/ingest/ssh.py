"""The worker's ssh connection to one node: one key, the site's known hosts and no other, every wait bounded."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import paramiko
from paramiko.ssh_exception import BadHostKeyException, NoValidConnectionsError

from denpex.config import FetchConfig
from denpex.errors import SpoolError

_BLOCK = 1 << 18
_ANSWER = 1 << 20  # what `list` may answer
_WHOLE = 60  # a transfer may take this many times the wait for progress

# Failures reach the reader as gaps; a library's tracebacks on standard error help nobody.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class _UnknownHostError(paramiko.SSHException):
    """A node whose host key the site's known hosts do not have."""


class _OnlyKnown(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, _client: paramiko.SSHClient, hostname: str, _key: paramiko.PKey) -> None:
        raise _UnknownHostError(hostname)


class NodeError(SpoolError):
    """A node that does not hand out what it has; ``closed_by`` is what would change that."""

    def __init__(self, why: str, closed_by: str) -> None:
        super().__init__(why)
        self.closed_by = closed_by


class Connection:
    """An authenticated connection; made by `connect`."""

    def __init__(self, client: paramiko.SSHClient, config: FetchConfig) -> None:
        self._client, self._config = client, config

    def answer(self, command: str) -> bytes:
        """Return a command's whole (short) output. Raises NodeError."""
        found = bytearray()
        self.stream(command, found.extend, _ANSWER)
        return bytes(found)

    def stream(self, command: str, write: Callable[[bytes], object], limit: int) -> None:
        """Hand a command's output to ``write``, at most ``limit`` bytes, until it ends with status 0.

        Raises NodeError where it stops coming, is longer, or ends otherwise.
        """
        wait = self._config.timeout
        transport = self._client.get_transport()
        if transport is None:
            raise _silent(wait)
        with _guarded(self._client, wait * _WHOLE) as late:
            try:
                # Only the guard bounds the answer to the request itself: paramiko has no timeout for it.
                with _guarded(self._client, wait) as silent:
                    channel = transport.open_session(timeout=wait)
                    channel.settimeout(wait)
                    channel.exec_command(command)
                total = 0
                while data := channel.recv(_BLOCK):
                    total += len(data)
                    if total > limit:
                        raise NodeError(f"it sends more than {limit} bytes", "fetch.max_bytes in denpex.yaml")
                    write(data)
                if not channel.status_event.wait(wait):
                    raise _silent(wait)
                status = channel.recv_exit_status()
                if status != 0:
                    said = channel.recv_stderr(400).decode("utf-8", "replace").strip() if status > 0 else ""
                    raise NodeError(
                        f"the hand-out ended with status {status}" + (f": {said}" if said else ""),
                        "hooks/handout as the forced command of the worker's key on that node",
                    )
            except TimeoutError as error:
                raise _silent(wait) from error
            except (paramiko.SSHException, EOFError, OSError) as error:
                if late.is_set() or silent.is_set():
                    raise _silent(wait) from error
                raise NodeError(f"the connection broke: {error or 'it was closed'}", "a node that stays up") from error


def _silent(wait: int) -> NodeError:
    return NodeError(f"it accepts the connection, then sends nothing for {wait} s", "a node that is not hung")


@contextmanager
def _guarded(client: paramiko.SSHClient, seconds: float) -> Iterator[threading.Event]:
    """Close the connection after ``seconds``; the event tells that this happened."""
    fired = threading.Event()

    def fire() -> None:
        fired.set()
        client.close()

    timer = threading.Timer(seconds, fire)
    timer.daemon = True
    timer.start()
    try:
        yield fired
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def connect(config: FetchConfig, host: str) -> Iterator[Connection]:
    """Hold a connection to one node. Raises NodeError, saying which of the many reasons it was."""
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_OnlyKnown())
    try:
        try:
            client.load_host_keys(config.known_hosts)
        except (OSError, paramiko.SSHException, ValueError) as error:
            raise NodeError(
                f"the host keys in {config.known_hosts} cannot be read: {error}", "fetch.known_hosts in denpex.yaml"
            ) from error
        with _guarded(client, 3 * config.timeout) as late:
            _connect(client, config, host, late)
        yield Connection(client, config)
    finally:
        transport = client.get_transport()
        client.close()
        if transport is not None:
            transport.join(2)


def _connect(client: paramiko.SSHClient, config: FetchConfig, host: str, late: threading.Event) -> None:
    wait = config.timeout
    began = time.monotonic()
    try:
        client.connect(
            host,
            port=config.port,
            username=config.user,
            key_filename=config.key,
            timeout=wait,
            banner_timeout=wait,
            auth_timeout=wait,
            channel_timeout=wait,
            allow_agent=False,
            look_for_keys=False,
        )
    except BadHostKeyException as error:
        raise NodeError(
            "its host key is not the known one: another machine answers there, or the node was installed anew",
            f"the node's new key in {config.known_hosts}, once it is established that it is the node's",
        ) from error
    except _UnknownHostError as error:
        raise NodeError("its host key is not known", f"the node's key in {config.known_hosts}") from error
    except paramiko.PasswordRequiredException as error:
        raise NodeError(
            f"the key {config.key} has a passphrase", "a key without one, which may only hand out"
        ) from error
    except paramiko.AuthenticationException as error:
        raise NodeError(
            f"it refuses the key of {config.user}", "the worker's public key in that account's authorized_keys"
        ) from error
    except (NoValidConnectionsError, socket.gaierror) as error:
        raise NodeError(f"it cannot be reached: {_reason(error)}", "a node that is up, with sshd") from error
    except TimeoutError as error:
        raise NodeError(f"it cannot be reached: no answer within {wait} s", "a node that is up, with sshd") from error
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise NodeError(f"the key {config.key} cannot be read: {error.strerror}", "fetch.key in denpex.yaml") from error
    except (paramiko.SSHException, EOFError, OSError, ValueError) as error:
        if late.is_set() or time.monotonic() - began >= wait:
            raise _silent(wait) from error
        raise NodeError(f"no ssh connection can be made: {error}", "sshd on that node and port") from error


def _reason(error: OSError) -> str:
    if isinstance(error, NoValidConnectionsError):
        reasons = {str(getattr(inner, "strerror", None) or inner) for inner in error.errors.values()}
        return ", ".join(sorted(reasons)) or "no route"
    return error.strerror or str(error)
