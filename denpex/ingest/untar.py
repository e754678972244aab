"""Unpacks the tar of one run directory that a node handed out; the node is not trusted."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import BinaryIO

from denpex.errors import SpoolError
from denpex.ingest.archive import Flow, modified_ns
from denpex.ingest.packed import DamagedError
from denpex.ingest.tree import display

MAX_MEMBERS = 50_000
MAX_DEPTH = 8

_BLOCK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(archive: BinaryIO, run: str, target: Path) -> None:
    """Write what lies below ``run`` in the archive into ``target``, which must be new and nobody else's.

    Only plain files and directories, each once, are taken, so no name can lead out of ``target``; as the tar is not
    compressed, its own size bounds what is written. Raises SpoolError for anything else.
    """
    target.mkdir(mode=0o700)
    flow = Flow(iter(lambda: archive.read(_BLOCK), b""))
    seen = 0
    try:
        with tarfile.open(fileobj=flow, mode="r:") as tar:
            for info in tar:
                seen += 1
                if seen > MAX_MEMBERS:
                    raise SpoolError(f"it holds more than {MAX_MEMBERS} files")
                place = target.joinpath(*_below(info, run))
                if info.isdir():
                    place.mkdir(mode=0o700, parents=True, exist_ok=True)
                    continue
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write(flow, info.size, place, modified_ns(info))
    except (tarfile.TarError, DamagedError, ValueError, OverflowError, RecursionError) as error:
        raise SpoolError(f"it is not a tar archive: {error}") from error
    except OSError as error:
        raise SpoolError(f"it cannot be unpacked: {error.strerror}") from error
    if not seen:
        raise SpoolError("it is empty")


def _below(info: tarfile.TarInfo, run: str) -> list[str]:
    """Return a member's path below the run's directory, or refuse it."""
    parts = info.name.split("/")
    plain = info.isdir() or (info.isreg() and not info.issparse() and len(parts) > 1)
    if not plain or parts[0] != run or len(parts) > MAX_DEPTH or any(part in ("", ".", "..") for part in parts):
        raise SpoolError(f"it holds what no run directory has: {display(info.name)}")
    return parts[1:]


def _write(flow: Flow, size: int, place: Path, modified: int | None) -> None:
    with open(os.open(place, _NEW, 0o600), "wb") as file:
        while size:
            data = flow.read(min(_BLOCK, size))
            if not data:
                raise SpoolError("it breaks off")
            file.write(data)
            size -= len(data)
        file.flush()
        if modified is not None:
            os.utime(file.fileno(), ns=(modified, modified))
