"""Watches one running command: passes signals on, and states in the spool how it lives and ends."""

from __future__ import annotations

import _thread
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from denpex import spool
from denpex.node import records
from denpex.node.run_copy import Copy, resize

HEARTBEAT_S = 2.0
ALIVE_S = 30.0
# Clock samples inside the task: the drift between them stays below a millisecond where it is below 16 ppm.
SAMPLE_FIRST_S = 5.0
SAMPLE_S = 60.0
LAST_SAMPLE_S = 1.0
# siginfo's si_code (sigaction(2)): sent by the kernel, as what is typed at a terminal is.
_SI_KERNEL = 0x80

_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
# Everything that a process can be told, but what our own writing may bring upon us (SIGPIPE, SIGXFSZ) and what stops a
# background process at its terminal.
WATCHED = signal.valid_signals() - {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU,
}  # fmt: skip


class Claims:
    """user/claims.jsonl of the run: what this task states of itself; a failing disk loses records, nothing else."""

    def __init__(self, user: str, step: str | None, rank: int | None, node: str) -> None:
        self.path = os.path.join(user, spool.CLAIMS)
        self.task = {"step": step, "rank": rank, "node": node}

    def write(self, event: str, **fields: Any) -> None:
        """Append one record; ``realtime_ns`` and ``raw_ns`` are now, unless ``fields`` has them."""
        try:
            records.append(self.path, {"event": event, **self.task, **records.now(), **fields})
        except OSError:
            return

    def gap(self, what: str, closed_by: str) -> None:
        """State what could not be captured."""
        self.write("gap", what=what, where=self.task["node"], closed_by=closed_by)


class Watch:
    """The main thread's work while the command runs."""

    def __init__(self, pid: int, claims: Claims, copies: Sequence[Copy], config: dict[str, Any]) -> None:
        self.pid, self.claims, self.copies, self.config = pid, claims, copies, config
        self._state = ""
        self._stuck = 0
        self._stop_too = False
        self._sampling = _thread.allocate_lock()
        self._doubled = _sent_to_all_by_parent()

    def wait(self) -> int:
        """Return the command's wait status once it has ended."""
        now = time.monotonic()
        next_look, next_alive, next_sample = now + HEARTBEAT_S, now + ALIVE_S, now + SAMPLE_FIRST_S
        while True:
            info = signal.sigtimedwait(WATCHED, HEARTBEAT_S)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._signal(info)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                return status
            now = time.monotonic()
            beat = now >= next_look
            if beat or info is not None:
                self._look(beat)
            if beat:
                next_look = now + HEARTBEAT_S
            if now >= next_alive:
                self.claims.write("alive")
                next_alive = now + ALIVE_S
                self._watch_disk()
            if now >= next_sample:
                self._start_sampling()
                next_sample = now + SAMPLE_S

    def _signal(self, info: signal.struct_siginfo) -> None:
        number = info.si_signo
        if number == signal.SIGWINCH:
            for copy in self.copies:
                resize(copy)
        elif info.si_code == _SI_KERNEL:
            # What is typed at a terminal reaches the command itself: both are in one process group.
            self._stop_too = number == signal.SIGTSTP
            return
        elif self._doubled and info.si_pid == os.getppid():
            self.claims.write("signal", signal=number, sender=info.si_pid)
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return
        if number != signal.SIGWINCH:
            self.claims.write("signal", signal=number, sender=info.si_pid)

    def _look(self, beat: bool) -> None:
        """State a change of the command's process state to or from stopped, stuck or dead."""
        letter = process_state(self.pid)
        # A process that does I/O is in D now and then; at two heartbeats in a row it is stuck.
        if letter != "D":
            self._stuck = 0
        elif beat:
            self._stuck += 1
        if letter == "D" and self._stuck < 2:
            letter = self._state
        if letter != self._state and (letter in "TtDZ" or self._state):
            self.claims.write("state", state=letter)
        self._state = letter if letter in "TtDZ" else ""
        if self._stop_too and self._state == "T":
            # Ctrl-Z stopped the command: the shell must see us stopped as well.
            self._stop_too = False
            os.kill(os.getpid(), signal.SIGSTOP)

    def _watch_disk(self) -> None:
        try:
            disk = os.statvfs(os.path.dirname(self.claims.path))
        except OSError:
            return
        if disk.f_bavail * disk.f_frsize < self.config["spool_min_free"]:
            for copy in self.copies:
                copy.sink.fail("the spool's disk has less than spool_min_free bytes free")

    def _start_sampling(self) -> None:
        """Measure this node's clock in a thread of its own: no signal and no output waits for a time server."""
        if self.config["clock_reference"] and self._sampling.acquire(False):
            try:
                _thread.start_new_thread(self._sample, ())
            except RuntimeError:
                self._sampling.release()

    def _sample(self) -> None:
        try:
            from denpex.node import clock

            for sample in clock.samples(self.config["clock_reference"], "task")[0]:
                self.claims.write("clock", **sample)
        except Exception as error:  # noqa: BLE001 - a measurement less; the task knows nothing of it
            self.claims.gap(f"the clock could not be measured: {error!r}", "a clock reference that answers")
        finally:
            self._sampling.release()

    def last_sample(self) -> None:
        """Measure the clock once more, at a failure, within LAST_SAMPLE_S."""
        self._start_sampling()
        self._sampling.acquire(timeout=LAST_SAMPLE_S)


def give_up() -> bool:
    """Tell whether a signal that ends programs has come since the command ended."""
    return signal.sigtimedwait(_ENDING, 0) is not None


def _sent_to_all_by_parent() -> bool:
    """Tell whether slurmstepd, our parent, signals every process of a task by itself.

    Without a cgroup of the step (proctrack/linuxproc, proctrack/pgid) it signals the whole tree; with one
    (proctrack/cgroup) its own children only, so that the command has to hear from us.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return False
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            text = file.read()
        with open(f"/proc/{os.getppid()}/comm", encoding="utf-8", errors="replace") as file:
            parent = file.read()
    except OSError:
        return False
    return parent.startswith("slurmstepd") and "/step_" not in text and "slurmstepd.scope" not in text


def process_state(pid: int) -> str:
    """Return the state letter of proc(5), or "Z" where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "Z"
