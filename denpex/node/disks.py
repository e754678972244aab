"""File systems without free space, as a task that has just failed left them."""

from __future__ import annotations

import os

# Types that hold files of users on this host; a network file system may hang the question, pseudo ones have no space.
_TYPES = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "bcachefs", "jfs", "reiserfs"}
# A checkpoint's next write is larger than this.
_FULL_BYTES = 64 << 10
_MOST = 8


def full() -> list[str]:
    """Return the mount points of writable local file systems that have (next to) no free space."""
    found: list[str] = []
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        words = line.split(" ")
        if len(words) < 4 or words[2] not in _TYPES or "rw" not in words[3].split(","):
            continue
        # proc(5): spaces and the like stand as octal escapes.
        mount = words[1].encode("utf-8", "surrogateescape").decode("unicode_escape")
        try:
            disk = os.statvfs(mount)
        except OSError:
            continue
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < _FULL_BYTES and mount not in found:
            found.append(mount)
    return found[:_MOST]
