"""`denpex run -- CMD`: runs a command as one captured task, itself transparent to input, signals and status.

Threads copy standard output and error to where they went before, and then to the spool; the main thread waits for
signals and for the end. Whatever fails on the capture's side leaves the command as it would have been without it.
"""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple

from denpex import spool
from denpex.node import flight, records, run_copy, settings
from denpex.node.run_copy import Copy
from denpex.node.run_watch import WATCHED, Claims, Watch, give_up
from denpex.node.sink import Sink

USAGE = """usage: denpex run [--no-verdict] [--spool DIR] -- COMMAND [ARGUMENT...]

Runs COMMAND as one captured task. Its input, output, signals and exit status are what they are without Denpex.
Outside Slurm a command that fails is diagnosed at its end.

  --no-verdict   outside Slurm: do not diagnose
  --spool DIR    keep the run below DIR, as outside Slurm (default there: ${XDG_STATE_HOME:-~/.local/state}/denpex/runs)

DENPEX_DISABLE=1 in the environment: run COMMAND and do nothing else.
"""
# slurm.h: the step numbers of what is no numbered step.
_SPECIAL_STEPS = {"4294967291": "batch", "4294967290": "interactive"}
_MAX_REPEATS = 100
_MARK = "DENPEX_TASK"


class Dispositions(NamedTuple):
    """The signal mask and what is done about SIGCHLD, as the command shall have them."""

    mask: set[Any]
    child: Any

    def restore(self) -> None:
        """Make them so again."""
        if self.child is not None:
            signal.signal(signal.SIGCHLD, self.child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


class Task(NamedTuple):
    """Where one task's capture goes."""

    user: str
    step: str
    rank: int
    node: str
    config: dict[str, Any]


class Prepared(NamedTuple):
    """What stands ready before the command starts: fd -> its end of the new channel, and the copying threads."""

    step: str
    claims: Claims
    theirs: dict[int, int]
    copies: list[Copy]


def main(argv: list[str], python: str | None = None) -> int:
    """Run ``denpex run ARGV``. Does not return where the command died by a signal: then neither does this process.

    ``python`` runs a script that is not executable (None: the python3 on PATH).
    """
    place, verdict, command = _parse(argv)
    if command is None:
        wanted = argv[:1] in (["-h"], ["--help"])
        os.write(1 if wanted else 2, USAGE.encode())
        return 0 if wanted else 2
    _restore_locale()
    absent = _fill_standard_descriptors()
    in_slurm = "SLURM_JOB_ID" in os.environ and not place
    if in_slurm and "/" not in command[0] and os.path.isfile(command[0]) and os.access(command[0], os.X_OK):
        # Slurm looks for the program in the working directory first.
        command[0] = os.path.join(".", command[0])
    command = with_interpreter(command, python)
    if os.environ.get("DENPEX_DISABLE") == "1":
        return _become(command, in_slurm)
    before = Dispositions(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGCHLD))
    task = None
    try:
        task = _slurm_task() if in_slurm else _local_task(place, command)
        if task is None:
            return _become(command, in_slurm)
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prepared = _prepare(task, {1, 2} - absent)
        pid = os.fork()
    except Exception as error:  # noqa: BLE001 - the outermost layer: nothing of ours may keep the command from running
        if task is not None:
            Claims(*task[:4]).gap(f"the task was not captured: {error}", "room and rights in the spool on that node")
        before.restore()
        return _become(command, in_slurm)
    if pid == 0:
        _child(command, task, prepared, before)
    status = _attend(pid, command, task, prepared)
    if not in_slurm:
        from denpex.node import local

        local.close_run(os.path.dirname(task.user))
        if verdict and status != 0:
            local.print_verdict(os.path.dirname(task.user))
    return _end_as(status)


def _parse(argv: list[str]) -> tuple[str, bool, list[str] | None]:
    place, verdict = "", True
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "--":
        option = words.pop(0)
        if option == "--no-verdict":
            verdict = False
        elif option == "--spool" and words:
            place = words.pop(0)
        elif option.startswith("--spool="):
            place = option.partition("=")[2]
        else:
            return place, verdict, None
    if words and words[0] == "--":
        words.pop(0)
    return place, verdict, words or None


def _restore_locale() -> None:
    """Undo what Python's start did to LC_CTYPE in the environment (PEP 538): the command gets it as it was."""
    if "LC_CTYPE" in os.environ:
        with open("/proc/self/environ", "rb") as file:
            found = [entry for entry in file.read().split(b"\0") if entry.startswith(b"LC_CTYPE=")]
        if found:
            os.environ["LC_CTYPE"] = os.fsdecode(found[0].partition(b"=")[2])
        else:
            del os.environ["LC_CTYPE"]


def _fill_standard_descriptors() -> set[int]:
    """Open /dev/null where descriptor 0, 1 or 2 is closed, so that no file of ours lands there; return those.

    They close themselves at exec, so that the command finds them closed.
    """
    filled = set()
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        filled.add(fd)
    os.close(fd)
    return filled


def with_interpreter(command: list[str], python: str | None = None) -> list[str]:
    """Put a Python in front of a script ``*.py`` that is not executable: ``python``, else the one on PATH."""
    if not command[0].endswith(".py") or os.access(command[0], os.X_OK) or not os.path.isfile(command[0]):
        return command
    folders = os.get_exec_path()
    for name in (python, "python3", "python"):
        if name:
            for path in [name] if "/" in name else [os.path.join(folder, name) for folder in folders]:
                if os.access(path, os.X_OK):
                    return [path, *command]
    return command


def _become(command: list[str], in_slurm: bool) -> int:
    """Be the command, uncaptured."""
    try:
        _default_signals()
        os.execvp(command[0], command)
    except OSError as error:
        return _cannot_start(command, error, in_slurm)


def _default_signals() -> None:
    # Python ignores these; a program expects them as they were.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _cannot_start(command: list[str], error: OSError, in_slurm: bool) -> int:
    """Say why and return the exit code that it has without us: slurmstepd's (errno), else a POSIX shell's."""
    os.write(2, os.fsencode(f"denpex run: {command[0]}: {error.strerror}\n"))
    if in_slurm:
        return error.errno or 1
    return 127 if isinstance(error, FileNotFoundError) else 126


def _slurm_task() -> Task | None:
    """Return where this task's capture goes, or None where it has no open run here or is captured already."""
    config, _ = settings.load()
    environ = os.environ
    job, rank_text = environ["SLURM_JOB_ID"], environ.get("SLURM_PROCID", "0")
    if not job.isdigit() or not rank_text.isdigit():
        return None
    step = environ.get("SLURM_STEP_ID", "batch")
    step = _SPECIAL_STEPS.get(step, step)
    if not step.isalnum():
        return None
    if environ.get(_MARK) == f"{job}.{step}.{rank_text}":
        return None
    try:
        with open(os.path.join(config["run_dir"], "jobs", job), encoding="utf-8") as file:
            user = os.path.join(file.read().strip(), spool.USER)
    except OSError:
        return None
    task = Task(user, step, int(rank_text), environ.get("SLURMD_NODENAME") or os.uname().nodename, config)
    disk = os.statvfs(user)
    if disk.f_bavail * disk.f_frsize < config["spool_min_free"]:
        why = "the task was not captured: the spool's disk has less than spool_min_free bytes free"
        Claims(*task[:4]).gap(why, "room on the spool's disk")
        return None
    return task


def _local_task(place: str, command: list[str]) -> Task | None:
    from denpex.node import local

    if os.environ.get(_MARK) == "local":
        return None
    user = local.open_run(place, command)
    config, _ = settings.load()
    return Task(user, "local", 0, local.node(), config) if user else None


def _local_tasks() -> int:
    """Return how many tasks this step has on a node at most: "2(x3),1" -> 2."""
    text = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE") or "1"
    counts = [part.split("(")[0] for part in text.split(",")]
    return max([int(count) for count in counts if count.isdigit()], default=1)


def _prepare(task: Task, present: set[int]) -> Prepared:
    """Make the files, the channels and the copying threads. Raises OSError and RuntimeError."""
    shared = present == {1, 2} and run_copy.same_file(1, 2)
    streams = {fd: name for fd, name in ((1, "out"), (2, "err")) if fd in present and not (shared and fd == 2)}
    step, base = _reserve(task)
    limit = min(task.config["capture_max_task"], task.config["capture_max_job"] // max(1, 2 * _local_tasks()))
    theirs: dict[int, int] = {}
    copies: list[Copy] = []
    for fd, name in streams.items():
        ours, theirs[fd] = run_copy.channel(fd)
        copies.append(Copy(ours, fd, Sink(f"{base}.{name}", limit)))
    if shared:
        theirs[2] = theirs[1]
    for copy in copies:
        copy.start()
    return Prepared(step, Claims(task.user, step, task.rank, task.node), theirs, copies)


def _reserve(task: Task) -> tuple[str, str]:
    """Return the step's name and the streams' path without ending: a second command of one task is "batch-1"."""
    for repeat in range(_MAX_REPEATS):
        step = f"{task.step}-{repeat}" if repeat else task.step
        base = os.path.join(task.user, spool.USER_STREAMS, f"{step}.{task.rank}")
        try:
            os.close(os.open(f"{base}.out", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, records.FILE_MODE))
        except FileExistsError:
            continue
        return step, base
    raise OSError(0, f"{_MAX_REPEATS} commands of this task were captured already")


def _child(command: list[str], task: Task, prepared: Prepared, before: Dispositions) -> None:
    """Become the command with its new output. Never returns."""
    code = 127
    in_slurm = task.step != "local"
    try:
        for fd, theirs in prepared.theirs.items():
            os.dup2(theirs, fd)
        _default_signals()
        before.restore()
        # A crash in native code leaves a traceback; only where the user has not decided.
        os.environ.setdefault("PYTHONFAULTHANDLER", "1")
        os.environ.update(flight.variables(task.user, prepared.step, os.environ))
        os.environ[_MARK] = f"{os.environ['SLURM_JOB_ID']}.{task.step}.{task.rank}" if in_slurm else "local"
        os.execvp(command[0], command)
    except OSError as error:
        code = _cannot_start(command, error, in_slurm)
    finally:
        os._exit(code)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def _attend(pid: int, command: list[str], task: Task, prepared: Prepared) -> int:
    """Be there while the command runs; return its wait status (os.WIFSIGNALED and kin apply)."""
    claims, copies = prepared.claims, prepared.copies
    for theirs in set(prepared.theirs.values()):
        os.close(theirs)
    claims.write(
        "start",
        local_rank=_number("SLURM_LOCALID"),
        pid=pid,
        wrapper_pid=os.getpid(),
        command=" ".join(command)[:4096],
        # Outside a numbered step SLURM_NTASKS is what the job may start, not what runs beside this command.
        world=(_number("SLURM_STEP_NUM_TASKS") or _number("SLURM_NTASKS")) if task.step.isdigit() else 1,
        gpus=[word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word],
        tty=os.isatty(1),
    )
    watch = Watch(pid, claims, copies, task.config)
    status = watch.wait()
    ended = records.now()
    left = run_copy.finish(copies, give_up)
    for copy in copies:
        for what in filter(None, (copy.sink.failure, copy.lost)):
            claims.gap(f"{os.path.basename(copy.sink.path)}: {what}", "nothing" if "reader" in what else "room on disk")
    if left:
        try:
            run_copy.hand_over(left)
        except OSError as error:
            claims.gap(f"what the task left behind is no longer copied: {error.strerror}", "room for one more process")
    if status != 0:
        for mount in _full_disks():
            claims.write("disk-full", mount=mount)
        watch.last_sample()
    claims.write(
        "end",
        exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        core=os.WCOREDUMP(status),
        **ended,
    )
    return status


def _full_disks() -> list[str]:
    from denpex.node import disks

    try:
        return disks.full()
    except OSError:
        return []


def _end_as(status: int) -> int:
    """End as the command did: with its exit code, or by its signal, so that whoever waits sees the same."""
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    if os.WCOREDUMP(status) or number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        _leave_no_core()
    try:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    except (OSError, ValueError):
        pass  # a signal that Python cannot name
    return 128 + number


def _leave_no_core() -> None:
    """Have the kernel write no core of this process: the command has left its own."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        import ctypes

        # The limit does not hold where cores go to a program (core(5)); PR_SET_DUMPABLE does (prctl(2)).
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
