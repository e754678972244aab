"""Takes user/ from the job's user, without a race, whatever lies there."""

from __future__ import annotations

import os
import stat

from denpex import spool
from denpex.node import records
from denpex.node.rundir import Run

# Programs that write more than this below user/ are not ours; what is beyond stays the user's, below a closed door.
_MAX_ENTRIES = 50_000
_MAX_DEPTH = 8
_MAX_GAPS = 20
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def seal(run: Run, uid: int) -> None:
    """Make everything below user/ root's and the group's: directories 0750, plain files of ``uid`` 0640.

    Directories go first, from the top down: once a directory is root's, nothing in it can be exchanged, so that each
    entry is judged and changed without a race. What is not a plain file with one link is removed, and is a gap.
    """
    _Sealing(run, uid).directory(os.open(run.file(spool.USER), _OPEN), spool.USER, 0)


class _Sealing:
    def __init__(self, run: Run, uid: int) -> None:
        self.run = run
        self.uid = uid
        self.left = _MAX_ENTRIES
        self.gaps = 0

    def directory(self, fd: int, shown: str, depth: int) -> None:
        """Seal one directory and what is below; closes ``fd``."""
        try:
            os.fchown(fd, 0, self.run.gid)
            os.fchmod(fd, records.DIRECTORY_MODE)
            with os.scandir(fd) as entries:
                for entry in entries:
                    if self.left <= 0:
                        self.gap(f"{shown} holds too much: what is beyond {_MAX_ENTRIES} entries was not sealed")
                        return
                    self.left -= 1
                    try:
                        self.entry(fd, entry.name, f"{shown}/{entry.name}", depth)
                    except OSError as error:
                        self.gap(f"{shown}/{entry.name} was not sealed: {error.strerror}")
        finally:
            os.close(fd)

    def entry(self, fd: int, name: str, shown: str, depth: int) -> None:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            if depth < _MAX_DEPTH:
                self.directory(os.open(name, _OPEN, dir_fd=fd), shown, depth + 1)
                return
            os.chown(name, 0, 0, dir_fd=fd, follow_symlinks=False)
            os.chmod(name, 0, dir_fd=fd)
            self.gap(f"{shown} was closed: it lies too deep")
        elif stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == self.uid:
            os.chown(name, 0, self.run.gid, dir_fd=fd, follow_symlinks=False)
            os.chmod(name, records.FILE_MODE, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)
            self.gap(f"{shown} was removed: it was not a plain file of the job's user")

    def gap(self, what: str) -> None:
        """Note a gap, unless a user makes thousands of them."""
        self.gaps += 1
        if self.gaps <= _MAX_GAPS:
            self.run.gap(what, self.run.node, "programs that write only plain files below user/")
