"""Reads tar archives in memory, member by member and bounded; nothing of them is ever written to disk."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from denpex.ingest import packed
from denpex.ingest import tree as files
from denpex.ingest.tree import Blob, Content, MemoryBlob, Tree, display, not_read, unused

MAX_KEPT = 1 << 30  # bytes of a compressed archive's members that are held in memory
MAX_ARCHIVE = 16 << 30  # decompressed bytes after which an archive is given up

_READ = 64 << 20  # what tarfile may ask for at once: it reads a header extension whole
_BLOCK = 1 << 20
_MAX_REFUSED = 200


class Flow(io.RawIOBase):
    """What tarfile needs of a file, over a flow of bytes: reading, and seeking forward by reading."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held, self._at = pieces, b"", 0

    def readable(self) -> bool:
        """Say that reading is possible."""
        return True

    def seekable(self) -> bool:
        """Say that seeking (forward) is possible."""
        return True

    def tell(self) -> int:
        """Return how far it was read."""
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, which must be a reasonable number."""
        if size < 0 or size > _READ:
            raise packed.DamagedError("a header in it claims an impossible size")
        parts, need = [], size
        while need:
            if not self._held:
                self._held = next(self._pieces, b"")
                if not self._held:
                    break
            parts.append(self._held[:need])
            self._held = self._held[need:]
            need -= len(parts[-1])
        data = b"".join(parts)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place that lies ahead."""
        target = offset + (self._at if whence == os.SEEK_CUR else 0)
        if whence == os.SEEK_END or target < self._at:
            raise packed.DamagedError("its members do not follow one another")
        while self._at < target and self.read(min(_BLOCK, target - self._at)):
            pass
        return self._at


class _Seeker(io.RawIOBase):
    """A file on disk for tarfile, which may not ask for an impossible size there either."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        if size < 0 or size > _READ:
            raise packed.DamagedError("a header in it claims an impossible size")
        return self._file.read(size)


class _Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


class _Member(Blob):
    """A member of an archive that is not compressed: read from there when its turn comes."""

    def __init__(self, path: str, archive: Blob, start: int, size: int, modified_ns: int | None) -> None:
        super().__init__(path, size, modified_ns=modified_ns)
        self._archive, self._start = archive, start

    def open(self) -> BinaryIO:
        """Open the archive at this member."""
        return _Window(self._archive.open(), self._start, self.size)  # type: ignore[return-value]


def is_tar(head: bytes) -> bool:
    """Tell whether a file's first (decompressed) bytes are the header of a tar archive."""
    return head[257:262] == b"ustar" or (len(head) >= 512 and _old_header(head[:512]))


def _old_header(block: bytes) -> bool:
    try:
        return bool(tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").name)
    except tarfile.HeaderError:
        return False


def members(archive: Blob) -> Tree:
    """Return the regular files of a tar archive; links, devices and what leads out of it are gaps.

    What can be read before an archive breaks off is returned, with a gap. Raises InputError where it cannot be opened.
    """
    tree = Tree()
    refused = 0
    name = archive.path
    with archive.open() as file:
        kind = packed.codec(file.read(packed.MAGIC))
        file.seek(0)
        blocks = iter(lambda: file.read(_BLOCK), b"")
        flow = Flow(packed.inflate(blocks, kind, MAX_ARCHIVE)) if kind else None
        kept = 0
        try:
            with tarfile.open(fileobj=flow or _Seeker(file), mode="r:", errorlevel=0) as tar:
                for number, info in enumerate(tar):
                    path = _path(info.name)
                    why = _refusal(info, path)
                    if number >= files.MAX_FILES:
                        what = f"only its first {files.MAX_FILES} members are"
                        tree.gaps.append(not_read(name, what, "a smaller archive"))
                        break
                    if why:
                        refused += 1
                        if refused <= _MAX_REFUSED:
                            tree.gaps.append(not_read(display(info.name), why, "put the file itself into the archive"))
                        continue
                    if not info.isreg():
                        continue
                    if flow is None:
                        blob: Blob = _Member(path, archive, info.offset_data, info.size, modified_ns(info))
                    elif kept >= MAX_KEPT:
                        tree.gaps.append(not_read(path, f"{MAX_KEPT >> 20} MiB were read before", "unpack it first"))
                        continue
                    else:
                        content = _content(flow, info.size)
                        kept += len(content.data)
                        blob = MemoryBlob(path, content, modified_ns(info))
                    tree.blobs[unused(path, tree.blobs)] = blob
        except (packed.DamagedError, tarfile.TarError, OSError, ValueError, OverflowError) as error:
            tree.gaps.append(
                not_read(name, f"what follows its first {len(tree.blobs)} files: {error}", "a whole archive")
            )
    if refused > _MAX_REFUSED:
        tree.gaps.append(not_read(name, f"{refused - _MAX_REFUSED} more of its members are no files", "files"))
    return tree


def modified_ns(info: tarfile.TarInfo) -> int | None:
    """Return when a member was last written, as the archive says it; None where it says nothing sensible."""
    return int(info.mtime * 10**9) if 0 < info.mtime < 1 << 33 else None


def _content(flow: Flow, size: int) -> Content:
    def pieces() -> Iterator[bytes]:
        left = size
        while left and (piece := flow.read(min(_BLOCK, left))):
            left -= len(piece)
            yield piece

    return Content(*packed.bounded(pieces(), files.MAX_FILE))


def _path(name: str) -> str:
    return display("/".join(part for part in name.split("/") if part not in ("", ".")), 400)


def _refusal(info: tarfile.TarInfo, path: str) -> str:
    if info.isdir() or info.type in (tarfile.XHDTYPE, tarfile.XGLTYPE):
        return ""
    if info.issym() or info.islnk():
        return "it is a link"
    if not info.isreg() or info.issparse():
        return "it is not a plain file"
    parts = path.split("/")
    if ".." in parts or not path:
        return "its name leads out of the archive"
    return "it lies too deep" if len(parts) > files.MAX_DEPTH else ""
