"""Reads files that somebody else arranged: follows no link, opens no device, keeps every size bounded."""

from __future__ import annotations

import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from denpex.errors import InputError
from denpex.ingest import packed
from denpex.model import Gap

MAX_FILE = 256 << 20  # bytes kept of one file: its head and its tail, half each
MAX_FILES = 50_000
MAX_DEPTH = 16

_BLOCK = 1 << 20
_NO_WAIT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def display(name: str, limit: int = 200) -> str:
    """Return ``name`` as it may be shown: control characters and broken encoding replaced, length bounded."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in name)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


@dataclass(frozen=True)
class Content:
    """What was kept of a file; ``pieces`` as in StreamData; ``size`` of the whole; ``fault`` says what broke off."""

    data: bytes
    pieces: tuple[tuple[int, int], ...] = ((0, 0),)
    size: int = 0
    fault: str = ""


class Blob(ABC):
    """One regular file, or what is like one; ``path`` is its displayable name, ``owner`` its uid (-1: none).

    ``modified_ns``: when it was last written, in nanoseconds since 1970 by whoever keeps it; None where not known.
    """

    def __init__(self, path: str, size: int, owner: int = -1, modified_ns: int | None = None) -> None:
        self.path = path
        self.size = size
        self.owner = owner
        self.modified_ns = modified_ns

    @abstractmethod
    def open(self) -> BinaryIO:
        """Open it for reading and seeking. Raises InputError where it has gone or became something else."""

    def read(self, limit: int = MAX_FILE, *, unpack: bool = False) -> Content:
        """Return at most ``limit`` bytes, decompressed where ``unpack`` is set and the content asks for it.

        Raises InputError where the file cannot be read.
        """
        try:
            with closing(self.open()) as file:
                codec = packed.codec(file.read(packed.MAGIC)) if unpack else ""
                file.seek(0)
                if codec:
                    data, pieces, size, fault = packed.bounded(packed.inflate(_blocks(file), codec), limit)
                    return Content(data, pieces, size, fault)
                size = file.seek(0, os.SEEK_END)
                return _ends(file, size, limit)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def head(self, count: int) -> bytes:
        """Return the first ``count`` bytes after decompression."""
        try:
            with closing(self.open()) as file:
                codec = packed.codec(file.read(packed.MAGIC))
                file.seek(0)
                if not codec:
                    return file.read(count)
                found = b""
                for chunk in packed.inflate(_blocks(file), codec):
                    found += chunk
                    if len(found) >= count:
                        break
                return found[:count]
        except packed.DamagedError:
            return found[:count]
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def tail(self, count: int) -> bytes:
        """Return the last ``count`` bytes as they lie in the file."""
        try:
            with closing(self.open()) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - count))
                return file.read(count)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}") from error


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _ends(file: BinaryIO, size: int, limit: int) -> Content:
    file.seek(0)
    if size <= limit:
        data = file.read(limit)
        return Content(data, size=len(data))
    first = file.read(limit - limit // 2)
    file.seek(size - limit // 2)
    return Content(first + file.read(limit // 2), ((0, 0), (len(first), size - limit // 2)), size)


class MemoryBlob(Blob):
    """Bytes that are in memory already; ``content`` may be the head and tail of something longer."""

    def __init__(self, path: str, content: Content, modified_ns: int | None = None) -> None:
        super().__init__(path, content.size, modified_ns=modified_ns)
        self._content = content

    def open(self) -> BinaryIO:
        """Open the bytes that were kept."""
        return io.BytesIO(self._content.data)

    def read(self, limit: int = MAX_FILE, *, unpack: bool = False) -> Content:
        """Return the content as it was kept, where it is not to be unpacked or cut further."""
        data = self._content.data
        if len(data) > limit or (unpack and packed.codec(data[: packed.MAGIC])):
            return super().read(limit, unpack=unpack)
        return self._content


class FileBlob(Blob):
    """A file below a directory; opened name by name, so that no component is ever a link.

    ``owners``: with a set, the file must belong to one of these uids and have one name only.
    """

    def __init__(
        self, root: Path, parts: tuple[str, ...], path: str, status: os.stat_result, owners: frozenset[int] | None
    ) -> None:
        super().__init__(path, status.st_size, status.st_uid, status.st_mtime_ns)
        self._root, self._parts, self._owners = root, parts, owners

    def restrict(self, owners: frozenset[int]) -> None:
        """Refuse to open it unless it is of one of ``owners`` and has one name only."""
        self._owners = owners

    def open(self) -> BinaryIO:
        """Open it anew, from the root down, and check again what it is."""
        with _directory(self._root, self._parts[:-1]) as folder:
            handle = os.open(self._parts[-1], _NO_WAIT, dir_fd=folder)
        why = refusal(os.fstat(handle), self._owners)
        if why:
            os.close(handle)
            raise InputError(f"{self.path} cannot be read: {why}")
        return os.fdopen(handle, "rb")


class GivenBlob(Blob):
    """The one file that the user named; a link in its place is the user's own wish."""

    def __init__(self, file: Path, path: str) -> None:
        self._file = file
        handle = self._handle()
        try:
            status = os.fstat(handle)
        finally:
            os.close(handle)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{display(str(file))} cannot be read: it is {_kind(status)}; name a file or a directory")
        super().__init__(path, status.st_size, status.st_uid, status.st_mtime_ns)

    def _handle(self) -> int:
        try:
            return os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise InputError(f"{display(str(self._file))} cannot be read: {error.strerror}") from error

    def open(self) -> BinaryIO:
        """Open it anew."""
        handle = self._handle()
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise InputError(f"{self.path} cannot be read: it is no longer a file")
        return os.fdopen(handle, "rb")


def file_at(root: Path, name: str) -> Blob | None:
    """Return the regular file ``name`` of the directory ``root``, or None where there is none."""
    try:
        status = os.lstat(root / name)
    except OSError:
        return None
    return None if refusal(status, None) else FileBlob(root, (name,), name, status, None)


def refusal(status: os.stat_result, owners: frozenset[int] | None) -> str:
    """Say why a directory entry is not read as a file; "" where it may be."""
    if not stat.S_ISREG(status.st_mode):
        return f"it is {_kind(status)}"
    if owners is not None and status.st_nlink != 1:
        return "the file has several names"
    if owners is not None and status.st_uid not in owners:
        return f"it belongs to uid {status.st_uid}, who has no part in this run"
    return ""


def _kind(status: os.stat_result) -> str:
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a directory",
    }
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


@contextmanager
def _directory(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Hold a descriptor of ``root/parts``; only ``root`` itself may be reached by a link."""
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            below = os.open(part, _NO_WAIT | os.O_DIRECTORY, dir_fd=held)
            os.close(held)
            held = below
        yield held
    finally:
        os.close(held)


@dataclass
class Tree:
    """Files by their path relative to one root ("/" between names), and what was refused."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def below(self, prefix: str) -> Tree:
        """Return the files whose path begins with ``prefix`` and "/", without it; the gaps stay behind."""
        start = prefix + "/" if prefix else ""
        return Tree({path[len(start) :]: blob for path, blob in self.blobs.items() if path.startswith(start)})


def walk(root: Path, *, owners: frozenset[int] | None = None) -> Tree:
    """Return every regular file below ``root``; what is a link, a pipe or a device is a gap.

    ``owners``: as for FileBlob. Raises InputError where ``root`` itself cannot be listed.
    """
    tree = Tree()
    try:
        with _directory(root, ()) as handle:
            _list(tree, root, (), handle, owners)
    except OSError as error:
        raise InputError(f"the directory {display(str(root))} cannot be read: {error.strerror}") from error
    return tree


def _list(tree: Tree, root: Path, parts: tuple[str, ...], handle: int, owners: frozenset[int] | None) -> None:
    with os.scandir(handle) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        below = (*parts, name)
        path = display("/".join(below), 400)
        if len(tree.blobs) >= MAX_FILES:
            tree.gaps.append(not_read(path, f"only the first {MAX_FILES} files are read", "name fewer files"))
            return
        try:
            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if len(below) > MAX_DEPTH:
                    tree.gaps.append(not_read(path, "it lies too deep", "name this directory itself"))
                    continue
                inner = os.open(name, _NO_WAIT | os.O_DIRECTORY, dir_fd=handle)
                try:
                    _list(tree, root, below, inner, owners)
                finally:
                    os.close(inner)
                continue
        except OSError as error:
            tree.gaps.append(not_read(path, error.strerror or "it cannot be read", "read access to it"))
            continue
        why = refusal(status, owners)
        if why:
            tree.gaps.append(not_read(path, why, "put the file itself there"))
        else:
            tree.blobs[unused(path, tree.blobs)] = FileBlob(root, below, path, status, owners)


def not_read(path: str, why: str, closed_by: str) -> Gap:
    """Return the gap of a file that was not read."""
    return Gap(f"{path} was not read: {why}", path, closed_by)


def unused(path: str, taken: dict[str, Blob]) -> str:
    """Return ``path``, or it with a number where two files would be shown alike."""
    name, count = path, 1
    while name in taken:
        count += 1
        name = f"{path}~{count}"
    return name
