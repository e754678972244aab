"""What prolog and epilog have in common: steps that may fail or run out of time without the others, and a report."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from denpex import spool
from denpex.node import clock, nvml, records
from denpex.node.rundir import Run

# What is left of hook_timeout for closing the run when the steps before it took too long.
_RESERVE_S = 1.0
_AGAIN_S = 0.3


class OutOfTime(Exception):  # noqa: N818 - not an error of ours: the end of a step's time
    """The hook's time is over: raised by the alarm into the step that is at work."""


def start(main: Callable[[], None]) -> None:
    """Run a hook's ``main`` and end the process with status 0, whatever happens. The broad except of last resort."""
    try:
        main()
    except BaseException as error:  # noqa: BLE001 - a hook never fails a job
        report(f"the hook did not finish: {type(error).__name__}: {error}")
    # Without the interpreter's own end: a thread that hangs in a name server's answer must not hold the hook.
    os._exit(0)


def report(problem: str) -> None:
    """Tell syslog, without ever waiting for it; standard output and error belong to slurmd."""
    import socket

    # <28>: daemon.warning. syslog(3) would wait for a log daemon that does not read.
    text = f"<28>denpex[{os.getpid()}]: {problem}".replace("\n", " ")[:1000]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.setblocking(False)
            log.connect("/dev/log")
            log.send(text.encode("utf-8", "replace"))
    except OSError:
        # Where nobody listens nothing can be told.
        return


class Steps:
    """Does a hook's steps in turn; one that fails is a gap; those that can wait are left out when the time is over."""

    def __init__(self, run: Run, settings: Mapping[str, Any]) -> None:
        self.run = run
        self._late = False
        self._at_work = False
        limit = float(settings["hook_timeout"])
        signal.signal(signal.SIGALRM, self._alarm)
        signal.setitimer(signal.ITIMER_REAL, max(limit - _RESERVE_S, limit / 2, 0.1), _AGAIN_S)

    def _alarm(self, *_: object) -> None:
        self._late = True
        if self._at_work:
            self._at_work = False
            raise OutOfTime("the hook's time was over")

    def do(self, what: str, closed_by: str, work: Callable[[], object], *, must: bool = False) -> None:
        """Do ``work``, named ``what``; where it fails note a gap, which ``closed_by`` would close, and go on.

        ``must``: also when the time is over. The broad except is the hook's outermost layer.
        """
        if self._late and not must:
            self._gap(f"{what}: left out, for the hook's time was over", "hooks.timeout in denpex.yaml")
            return
        try:
            self._at_work = True
            work()
            self._at_work = False
        except Exception as error:  # noqa: BLE001 - a hook never fails a job
            self._at_work = False
            self._gap(f"{what}: {error}", closed_by)

    def finish(self, what: str, work: Callable[[], object]) -> None:
        """Do ``work``, which closes the run: no alarm interrupts it."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a hook never fails a job
            report(f"{self.run.path}: {what}: {error}")

    def _gap(self, what: str, closed_by: str) -> None:
        try:
            self.run.gap(what, self.run.node, closed_by)
        except OSError as error:
            what = f"{what} (the gap could not be noted: {error})"
        report(f"{self.run.path}: {what}")


def measure_clock(run: Run, settings: Mapping[str, Any], when: str) -> None:
    """Append clock samples; where no source gave a bound, or a configured one did not answer, that is a gap."""
    found, problems = clock.samples(settings["clock_reference"], when)
    for sample in found:
        run.append(spool.CLOCK, sample)
    if not found:
        what = f"the clock was not measured ({when}): {'; '.join(problems)}"
        run.gap(what, run.node, "clock.reference in denpex.yaml")
    elif settings["clock_reference"] and not any(sample["method"] == "sntp" for sample in found):
        what = f"the clock was not measured against the common reference ({when}): {'; '.join(problems)}"
        run.gap(what, run.node, "an SNTP server at clock.reference that answers")


def measure_gpus(run: Run, settings: Mapping[str, Any], when: str) -> dict[str, Any] | None:
    """Write nvml.<when>.json where there is a driver; a driver that does not answer is a gap, and evidence."""
    answer = nvml.snapshot(float(settings["nvml_timeout"]), when)
    if isinstance(answer, str):
        run.gap(f"{answer} ({when} the job)", run.node, "a GPU driver that answers")
        return None
    if answer is not None:
        for lost in answer.get("lost", ()):
            what = f"GPU {lost['index']} did not answer NVML {when} the job: {lost['error']}"
            run.gap(what, run.node, "a GPU that answers")
        records.replace(run.file(f"nvml.{when}.json"), answer, run.gid)
    return answer
