"""What is known of one rank."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from denpex.engine.progress import Progress
from denpex.model import Event, Instant, Role

CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11})  # ILL, ABRT, BUS, FPE, SEGV
ENDING_SIGNALS = frozenset({1, 2, 3, 9, 12, 15})  # HUP, INT, QUIT, KILL, USR2, TERM

# Event patterns that are made of task records.
TASK_END = "task-end"
TASK_STUCK = "task-stuck"
TASK_SIGNAL = "task-signal"
TASK_DISK = "task-disk-full"
# ... and of what the flight recorders of all ranks say together.
FLIGHT = "flight-recorder"
OWN = frozenset({TASK_END, TASK_STUCK, TASK_SIGNAL, TASK_DISK})


@dataclass(eq=False)
class Rank:
    """Everything known of one rank of the step that is diagnosed; None = not known."""

    rank: int
    step: str | None = None
    node: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    start: Instant | None = None
    end: Instant | None = None
    started: bool = False
    end_known: bool = False  # how it ended is known
    recorded: bool = False  # by a task record (else by a launcher's or srun's line)
    captured: bool = False  # its own output was captured
    whole: bool | None = None  # ... to its end; None: not known
    alive: Instant | None = None  # last seen alive by what captured it
    stuck: str = ""  # the process state (T, D) in which it was last seen, where that is one
    stuck_since: Instant | None = None
    told: Instant | None = None  # when a signal that ends processes reached it from outside
    told_signal: int | None = None
    swept: bool = False  # its end was reported after Slurm had begun to end the step
    local_rank: int | None = None
    gpus: tuple[str, ...] = ()
    exit_event: Event | None = None
    stuck_event: Event | None = None
    disk_event: Event | None = None  # a file system of its node had no free space when it failed
    events: list[Event] = field(default_factory=list)
    flight: list[Event] = field(default_factory=list)  # what the flight recorders say against it
    dumped: bool = False  # its flight recorder's dump is there
    progress: Progress = field(default_factory=Progress)

    @property
    def failed(self) -> bool:
        """Tell whether it is known to have ended badly."""
        return bool(self.exit_code) or self.signal is not None

    @property
    def heard(self) -> bool:
        """Tell whether what it said is known, be it from its own stream or from the job's file."""
        return self.captured or bool(self.events)

    def of(self, role: Role) -> list[Event]:
        """Return its events of a role, in order."""
        return [event for event in self.events if event.role is role]


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def status(code: int | None, by: int | None) -> tuple[int | None, int | None]:
    """Return exit status and signal; 128 + a signal is how a shell passes on that its child was ended by it."""
    passed_on = (code or 0) - 128
    return (None, passed_on) if passed_on in CRASH_SIGNALS | ENDING_SIGNALS else (code, by)
