"""Munge credentials: a payload that proves who made it, and that only one user can open.

Facts of munge 0.5.15, each held by a test: a credential made with --restrict-uid is opened for that uid alone, root
not excepted; one that has expired or was opened before still gives its payload, with an exit status that says so, and
still to that uid alone; a payload of up to 700 KiB passes both ways, one of 780 KiB can be made but not opened.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import subprocess
import zlib
from collections.abc import Collection

from denpex.errors import ServiceError

_SECONDS = 5.0
_PIECE = 512 << 10
_MOST_PIECES = 128
_LONGEST = 256 << 20
_CREDENTIAL = re.compile(rb"MUNGE:[A-Za-z0-9+/=]{1,1048576}:")
_UID = re.compile(rb"^UID:\s+\S+ \((\d+)\)", re.MULTILINE)
_HEAD = re.compile(rb"denpex ([0-9a-f]{64}) (\d{1,4}) (\d{1,4})\n")
# munge.h: expired, rewound, replayed.
_STALE = (15, 16, 17)


class RefusedError(ServiceError):
    """Munged does not open a credential for this user: it is for another, forged, or too old."""


def munge(payload: bytes, uid: int | None = None) -> bytes:
    """Return a credential of this process's user with ``payload``, which ``uid`` alone can open where one is given."""
    # The cipher is named because a site's default may be none.
    words = ["munge", "--cipher=aes128"] + ([f"--restrict-uid={uid}"] if uid is not None else [])
    done = _run(words, payload)
    if done.returncode != 0:
        raise ServiceError(f"munge makes no credential: {_said(done)}")
    return done.stdout.strip()


def unmunge(credential: bytes, *, stale: bool = False) -> tuple[int, bytes]:
    """Return (uid that made it, payload) of a credential; with ``stale`` also of an old one, or one opened before.

    Raises RefusedError where munged does not open it, ServiceError where it cannot be asked.
    """
    if not _CREDENTIAL.fullmatch(credential.strip()):
        raise RefusedError("this is not a munge credential")
    done = _run(["unmunge"], credential)
    if done.returncode != 0 and not (stale and done.returncode in _STALE):
        raise RefusedError(f"munge refuses the credential: {_said(done)}")
    head, _, payload = done.stdout.partition(b"\n\n")
    match = _UID.search(head)
    if match is None:
        raise ServiceError("unmunge does not say who made the credential")
    return int(match[1]), payload


def seal(data: bytes, uid: int) -> bytes:
    """Return ``data`` as lines, each a credential for ``uid``: compressed, in pieces that munge can carry."""
    packed = zlib.compress(data)
    pieces = [packed[i : i + _PIECE] for i in range(0, len(packed), _PIECE)]
    if len(pieces) > _MOST_PIECES:
        raise ServiceError("the answer is too long for munge; ask for fewer jobs")
    digest = hashlib.sha256(packed).hexdigest()
    return b"".join(
        munge(f"denpex {digest} {number} {len(pieces)}\n".encode() + piece, uid) + b"\n"
        for number, piece in enumerate(pieces)
    )


def unseal(text: bytes, makers: Collection[int], *, stale: bool = False) -> bytes:
    """Return what ``seal`` was given; raises ServiceError where it is not for this user, or not of ``makers``."""
    lines = text.split()
    if not 0 < len(lines) <= _MOST_PIECES:
        raise ServiceError("the answer is cut off")
    pieces, heads = [], []
    for line in lines:
        maker, payload = unmunge(line, stale=stale)
        if maker not in makers:
            raise ServiceError(f"the answer was made by uid {maker}, which is not the worker's (worker.user)")
        match = _HEAD.match(payload)
        if match is None:
            raise ServiceError("the credential holds no answer")
        heads.append((match[1].decode(), int(match[2]), int(match[3])))
        pieces.append(payload[match.end() :])
    packed = b"".join(pieces)
    digest = hashlib.sha256(packed).hexdigest()
    if heads != [(digest, number, len(lines)) for number in range(len(lines))]:
        raise ServiceError("the answer is cut off")
    try:
        return zlib.decompressobj().decompress(packed, _LONGEST)
    except zlib.error as error:
        raise ServiceError("the answer is damaged") from error


def makers(user: str) -> set[int]:
    """Return the uids whose answers are believed: root's, and that of the worker's account where this host has it."""
    try:
        return {0, pwd.getpwnam(user).pw_uid}
    except KeyError:
        return {0}


def _run(words: list[str], payload: bytes) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(words, input=payload, capture_output=True, timeout=_SECONDS, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(
            f"munge cannot be asked: {error}; it must be installed, and munged running, on every host"
        ) from error


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return what a command says of its failure; of an old credential it says so in what it prints."""
    status = re.match(rb"STATUS:\s+(.*)", done.stdout)
    said = done.stderr.strip() or (status[1] if status else b"")
    return said.decode(errors="replace") or f"exit status {done.returncode}"
