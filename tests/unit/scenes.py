"""The jobs that must explain themselves, as Runs; each function returns a Run whose truth stands in its docstring."""

from __future__ import annotations

from tests.unit.runs import Run, closed, reset, traceback, waited


def exception(rank=2, **options):
    """Rank ``rank`` raises IndexError; the others see it at once in their all-reduce."""
    run = Run(**options)
    run.work(11.4)
    run.say(rank, 11.5, traceback(rank, "IndexError: list index out of range"))
    run.ends(rank, 11.92, code=1)
    for other in range(run.count):
        if other != rank:
            run.say(other, 11.505 + 0.001 * other, closed(other))
            run.ends(other, 12.0 + 0.2 * other, code=1)
            run.srun(12.1 + 0.2 * other, f"srun: error: n{other + 1}: task {other}: Exited with exit code 1")
    run.srun(12.0, f"srun: error: n{rank + 1}: task {rank}: Exited with exit code 1")
    run.steps.append(("batch", "batch", "FAILED", "1:0"))
    run.end = 14.0
    return run


def killed(rank=1, **options):
    """Rank ``rank`` is ended by SIGKILL."""
    run = Run(**options)
    run.work(11.4)
    run.ends(rank, 11.5, signal=9)
    run.srun(11.6, f"srun: error: n{rank + 1}: task {rank}: Killed")
    for other in range(run.count):
        if other != rank:
            run.say(other, 11.51 + 0.15 * (other > 1), (reset if other == 0 else closed)(other))
            run.ends(other, 12.1 + 0.2 * other, code=1)
            run.srun(12.2 + 0.2 * other, f"srun: error: n{other + 1}: task {other}: Exited with exit code 1")
    run.exit = run.derived = "0:9"
    run.steps = [("0", "python", "FAILED", "0:9"), ("batch", "batch", "FAILED", "137:0")]
    run.end = 14.0
    return run


def stopped(rank=3, seen=True, **options):
    """Rank ``rank`` is stopped (SIGSTOP); the others time out after 15 s; srun -K ends what is left."""
    run = Run(**options)
    run.work(11.4)
    if seen:
        run.tasks[rank].states = [(13.0, "T")]
    run.tasks[rank].alive = 25.0
    others = [other for other in range(run.count) if other != rank]
    for number, other in enumerate(others):
        run.say(other, 26.5 + 0.01 * number, waited(other, 15000, "send" if number == 0 else "recv"))
        run.ends(other, 27.1 + 0.3 * number, code=1)
        run.srun(27.2 + 0.3 * number, f"srun: error: n{other + 1}: task {other}: Exited with exit code 1")
    run.tasks[rank].told = [(27.3, 15)]
    run.srun(27.4, "srun: launch/slurm: _step_signal: Terminating StepId=191.0")
    run.srun(27.45, "slurmstepd-n1: error: *** STEP 191.0 ON n1 CANCELLED AT 2026-12-01T13:00:27 ***")
    run.srun(60.0, f"srun: error: n{rank + 1}: task {rank}: Killed")
    run.steps = [("0", "python", "FAILED", "1:0"), ("batch", "batch", "FAILED", "1:0")]
    run.end = 61.0
    return run


def memory(rank=1, kernel=True, **options):
    """Rank ``rank`` allocates past its memory limit and is ended by the kernel."""
    run = killed(rank, **options)
    run.batch = [(t, text.replace(": Killed", ": Out Of Memory")) for t, text in run.batch]
    run.srun(
        11.55,
        f"slurmstepd-n{rank + 1}: error: Detected 1 oom_kill event in StepId=191.0. Some of the step tasks have been "
        "OOM Killed.",
    )
    if kernel:
        group = f"/slurm_n{rank + 1}/uid_1001/job_191/step_0/task_0"
        pid = 4000 + rank
        oom = (
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},"
            f"task_memcg={group},task=python,pid={pid},uid=1001"
        )
        killed_ = f"Memory cgroup out of memory: Killed process {pid} (python) total-vm:4812345kB"
        run.kernel = [(rank, 11.48, oom, True), (rank, 11.481, killed_, True)]
    run.state, run.exit, run.derived = "OUT_OF_MEMORY", "0:125", "0:125"
    run.steps = [("0", "python", "OUT_OF_MEMORY", "0:125"), ("batch", "batch", "OUT_OF_MEMORY", "0:125")]
    return run


def disk_full(rank=0, **options):
    """Rank ``rank`` cannot write its checkpoint; the others are cut off in their next all-reduce."""
    run = Run(**options)
    run.work(9.4)
    first = traceback(rank, "RuntimeError: basic_ios::clear: iostream error", "save")
    second = traceback(rank, "OSError: [Errno 28] No space left on device", "save")
    link = f"[rank{rank}]: \n[rank{rank}]: During handling of the above exception, another exception occurred:\n"
    run.say(rank, 9.5, second + link + f"[rank{rank}]: \n" + first)
    run.ends(rank, 9.9, code=1)
    for other in range(run.count):
        if other != rank:
            run.say(other, 9.52, closed(other))
            run.ends(other, 10.2 + 0.1 * other, code=1)
    run.end = 12.0
    return run


def torchrun(rank=1):
    """One node, no srun: `torchrun --nproc-per-node=2`; ``rank`` raises; only the job's output file is there."""
    run = Run(ranks=2, per_node=2)
    run.no_wrapper = True
    run.work(6.0)
    run.say(rank, 6.1, traceback(rank, "IndexError: list index out of range"))
    run.say(1 - rank, 6.12, closed(1 - rank))
    run.say(
        0, 6.6,
        "W1201 12:53:06.123000 4711 /opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/"
        "api.py:1010] Sending process 4712 closing signal SIGTERM\n"
        "E1201 12:53:06.223000 4711 /opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/"
        f"api.py:984] failed (exitcode: 1) local_rank: {rank} (pid: 4713) of binary: /opt/venv/bin/python\n"
        + traceback(None, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "backward")
        + "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2026-12-01_12:53:06\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : 1 (pid: 4713)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
        "============================================================\n",
    )  # fmt: skip
    run.steps = [("batch", "batch", "FAILED", "1:0")]
    run.end = 8.0
    return run


def goes_on(**options):
    """As `exception`, but the script ends with status 0."""
    run = exception(**options)
    run.state, run.exit = "COMPLETED", "0:0"
    run.steps = [("0", "python", "FAILED", "1:0"), ("batch", "batch", "COMPLETED", "0:0")]
    return run


def retried(**options):
    """As `exception`, but srun is run again and succeeds."""
    run = goes_on(**options)
    run.steps = [
        ("0", "python", "FAILED", "1:0"), ("1", "python", "COMPLETED", "0:0"), ("batch", "batch", "COMPLETED", "0:0"),
    ]  # fmt: skip
    return run


def time_limit(**options):
    """All ranks make progress until the time limit."""
    run = Run(**options)
    run.work(60.0)
    for rank in range(run.count):
        run.tasks[rank].told = [(60.2, 15)]
        run.ends(rank, 60.25, signal=15)
    run.srun(60.1, "slurmstepd-n1: error: *** STEP 191.0 ON n1 CANCELLED AT 2026-12-01T13:01:00 DUE TO TIME LIMIT ***")
    run.srun(60.1, "slurmstepd-n1: error: *** JOB 191 ON n1 CANCELLED AT 2026-12-01T13:01:00 DUE TO TIME LIMIT ***")
    run.srun(60.5, "srun: error: n1: task 0: Terminated")
    run.state, run.exit, run.derived = "TIMEOUT", "0:0", "0:15"
    run.steps = [("0", "python", "CANCELLED", "0:15"), ("batch", "batch", "CANCELLED", "0:15")]
    run.end = 62.0
    run.job["time_limit_s"] = 60
    return run


def cancelled(by=1001, **options):
    """The job is cancelled while it makes progress."""
    run = time_limit(**options)
    run.batch = [
        (60.1, "slurmstepd-n1: error: *** STEP 191.0 ON n1 CANCELLED AT 2026-12-01T13:01:00 ***\n"),
        (60.1, "slurmstepd-n1: error: *** JOB 191 ON n1 CANCELLED AT 2026-12-01T13:01:00 ***\n"),
        (60.3, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"),
    ]
    run.state = "CANCELLED"
    run.job["cancelled_by"] = by
    return run


def scared(**options):
    """The job succeeds, with alarming but harmless lines."""
    run = Run(**options)
    run.work(11.0)
    noise(run)
    run.work(20.0, first=12.0)
    for rank in range(run.count):
        run.ends(rank, 21.0, code=0)
    run.state, run.exit, run.derived = "COMPLETED", "0:0", "0:0"
    run.steps = [("0", "python", "COMPLETED", "0:0"), ("batch", "batch", "COMPLETED", "0:0")]
    run.end = 22.0
    return run


def noise(run, at=5.05):
    """Let every rank print lines that alarm and mean nothing, while it goes on."""
    for rank in range(run.count):
        for number, text in enumerate((
            "WARNING ConnectionResetError: [Errno 104] Connection reset by peer, retrying in 1 s (1/5)",
            "ERROR NCCL WARN Error: failed to open libibverbs.so[.1], using sockets",
            "WARNING CUDA out of memory. Tried to allocate 2.00 GiB: retrying with micro batch size 1",
            "wandb: Network error (ConnectionError), entering retry loop.",
        )):  # fmt: skip
            run.say(rank, at + 0.01 * number, text)
    return run
