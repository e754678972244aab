"""Copies a command's output: to the descriptor that it had before, and then to the spool."""

from __future__ import annotations

import _thread
import os
import select
import time
from collections.abc import Callable, Sequence

from denpex.node.sink import Sink, stamp

# After the command's end: how long something else that holds its output may be silent before the rest is handed over,
# and how long it may go on writing.
QUIET_S = 0.5
LEFT_S = 10.0
_PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031  # fcntl(2); the module `fcntl` names it from Python 3.10 on, where the C library does


class Copy:
    """One stream's copying thread: our end of the command's pipe -> target -> sink."""

    def __init__(self, source: int, target: int, sink: Sink) -> None:
        self.source, self.target, self.sink = source, target, sink
        self.ended = False
        self.lost = ""
        # When the thread began to wait for bytes; None while it has some to pass on.
        self.idle_since: float | None = None
        self.over = _thread.allocate_lock()
        self._stop = False
        self._woken, self._wake = os.pipe()
        self._buffer = memoryview(bytearray(_PIPE_SIZE))
        os.set_blocking(source, False)

    def start(self) -> None:
        """Begin; raises RuntimeError where no thread can be had."""
        self._stop = False
        self.over.acquire()
        try:
            _thread.start_new_thread(self.run, ())
        except RuntimeError:
            self.over.release()
            raise

    def run(self) -> None:
        """Copy until the end of the stream, until the reader of ``target`` has left, or until ``stop``."""
        try:
            while not self._stop and not self.ended:
                size = self._read()
                if size:
                    self._pass_on(self._buffer[:size], stamp())
                elif not self.ended:
                    self._wait()
        except Exception as error:  # noqa: BLE001 - a pipe that nobody reads would stop the command for ever
            self.sink.fail(f"the copying failed: {error!r}")
            self.ended = True
        finally:
            if self.ended:
                os.close(self.source)
                self.sink.close()
            self.over.release()

    def _read(self) -> int:
        try:
            size = os.readv(self.source, [self._buffer])
        except BlockingIOError:
            return 0
        except OSError:  # a pseudo-terminal says EIO at its end
            size = 0
        self.ended = size == 0
        return size

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.source, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        self.idle_since = time.monotonic()
        poll.poll()
        self.idle_since = None

    def _pass_on(self, data: memoryview, at: tuple[int, int]) -> None:
        if not self.lost:
            try:
                _write_all(self.target, data)
            except BrokenPipeError:
                # The end of the copying closes the pipe: the command gets the SIGPIPE that it would have had.
                self.ended = True
                self.sink.write(data, at)
                self.sink.fail("the reader of the output left, and so the command could not go on writing")
                return
            except OSError as error:
                # The command would have seen this error; now it goes on, unheard there but captured.
                self.lost = f"its output could not be written where it belongs: {error.strerror}"
        try:
            self.sink.write(data, at)
        except Exception as error:  # noqa: BLE001 - whatever the capture meets, the copying goes on
            self.sink.fail(f"the capture failed: {error!r}")

    def stop(self) -> None:
        """Have the thread end once it has passed on what it holds."""
        self._stop = True
        os.write(self._wake, b"x")

    def again(self) -> None:
        """Go on after ``stop``, in this thread."""
        os.read(self._woken, 16)
        self._stop = False
        self.over.acquire(False)
        self.run()


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            # Somebody made the shared descriptor non-blocking.
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(1000)


def finish(copies: Sequence[Copy], give_up: Callable[[], bool]) -> list[Copy]:
    """Wait until all that the ended command wrote is passed on; return the streams that something else still holds.

    A target that takes no more bytes is waited for, as the command itself would have waited, until ``give_up``.
    """
    left: list[Copy] = []
    end = time.monotonic() + LEFT_S
    for copy in copies:
        stopped = False
        while not copy.over.acquire(timeout=0.05):
            now = time.monotonic()
            idle = copy.idle_since
            if not stopped and ((idle is not None and now - idle > QUIET_S) or now > end):
                copy.stop()
                stopped = True
            if give_up():
                copy.sink.fail("the end of the output was not awaited, because of a signal")
                break
        else:
            if not copy.ended:
                left.append(copy)
    return left


def hand_over(copies: Sequence[Copy]) -> None:
    """Leave a process behind that goes on copying as long as something holds the ended command's output.

    So what a command started and left behind neither loses output nor is ended by SIGPIPE. Raises OSError.
    """
    if os.fork():
        return
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in {0, 1, 2} - {copy.target for copy in copies}:
            os.dup2(null, fd)
        for copy in copies[1:]:
            _thread.start_new_thread(copy.again, ())
        copies[0].again()
        for copy in copies[1:]:
            copy.over.acquire()
    finally:
        os._exit(0)


def channel(fd: int) -> tuple[int, int]:
    """Return (our end, the command's end) of what takes the place of ``fd``: a pseudo-terminal for a terminal."""
    if os.isatty(fd):
        import fcntl
        import termios

        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
        # What the command prints passes the real terminal's line discipline too; once is enough.
        mode = termios.tcgetattr(theirs)
        mode[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        return ours, theirs
    ours, theirs = os.pipe()
    try:
        import fcntl

        fcntl.fcntl(ours, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:
        pass  # the user's pipe quota is used up: the default size does
    return ours, theirs


def resize(copy: Copy) -> None:
    """Give the command's terminal the size of the real one."""
    import fcntl
    import termios

    if os.isatty(copy.source) and os.isatty(copy.target):
        size = fcntl.ioctl(copy.target, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(copy.source, termios.TIOCSWINSZ, size)


def same_file(a: int, b: int) -> bool:
    """Tell whether two open descriptors lead to one file, pipe or terminal."""
    one, two = os.fstat(a), os.fstat(b)
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)
