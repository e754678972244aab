"""What the fault matrix taught the inference: torchrun's workers, parts that a node shares, mutual complaints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from denpex import library
from denpex.diagnose import diagnose
from denpex.ingest import load
from denpex.model import Gpu, Scope, Stamp, StreamData, StreamInfo, StreamKind, TaskRecord
from tests.unit import runs
from tests.unit.runs import Run, closed, traceback, waited

SKEWED = {1: 45, 2: -3}
XID_119 = (
    "NVRM: Xid (PCI:0000:{bus}:00): 119, pid=9, name=python, Timeout after 6s of waiting for RPC response from GPU0 "
    "GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802702 0x4)."
)
MISMATCH = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
    "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data "
    "size doesn't match expected size. Is there a distributed collective mismatch in your code?"
)


@pytest.fixture(scope="module")
def engine():
    patterns = library.load()
    matcher = library.matcher(patterns)
    return lambda snapshot: diagnose(snapshot, patterns, matcher)


def named(v):
    return v.failure_class, v.origin.rank if v.origin else None


def table(node, entries):
    """Return torchrun's table: (rank, local rank, exit code, pid) of each worker that failed, the first one last."""
    rows = [
        f"[{at}]:\n  time      : 2026-12-01_12:53:06\n  host      : {node}\n  rank      : {rank} (local_rank: {local})"
        f"\n  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n  traceback : Signal received\n"
        for at, (rank, local, code, pid) in enumerate(entries)
    ]
    line, rule = "=" * 60, "-" * 60
    failures = f"Failures:\n{''.join(rows[1:])}{rule}\nRoot Cause (first observed failure):\n{rows[0]}"
    return f"{line}\ntrain.py FAILED\n{rule}\n{failures}{line}\n"


def launched(texts, gpus=(), kernel=(), complete=True):
    """Return a job of one torchrun a node; ``texts``: what each printed."""
    run = Run(ranks=len(texts))
    run.kernel = list(kernel)
    if gpus:
        run.nodes_info = {n: {"gpus": gpus, "job_gpus": ("0", "1")} for n in run.nodes}
    snapshot = run.snapshot()
    sources, tasks = [], []
    for number, (node, text) in enumerate(zip(run.nodes, texts, strict=True)):
        info = StreamInfo(f"{node}/0.{number}.err", StreamKind.MIXED, "0", None, node, complete, len(text))
        stamp = run.stamp(number, 25)
        sources.append(runs._source(info, StreamData(text.encode(), ((0, stamp.realtime_ns, stamp.raw_ns),))))
        tasks.append(TaskRecord("0", number, node, command="torchrun train.py", start=Stamp(1, 1), end=Stamp(2, 2),
                                exit_code=1, gpus=("0", "1")))  # fmt: skip
    return replace(snapshot, streams=tuple(sources), tasks=tuple(tasks))


CLOSING = (
    "W1201 12:53:06.1 4711 torch/distributed/elastic/multiprocessing/api.py:1010] "
    "Sending process {} closing signal SIGTERM\n"
)


def test_a_worker_that_its_agent_ends_and_that_said_nothing_is_the_missing_one(engine):
    first = waited(1) + CLOSING.format(70) + table("n1", [(0, 0, -15, 70), (1, 1, 1, 71)])
    second = waited(2) + waited(3) + table("n2", [(2, 0, 1, 72), (3, 1, 1, 73)])
    v = engine(launched([first, second]))
    assert named(v) == ("collective-missing-rank", 0)
    assert v.origin.node == "n1"


def test_a_worker_that_no_line_names_is_known_by_the_gap_in_the_numbers(engine):
    """A stopped worker: its agent is killed before it prints a table."""
    v = engine(launched([waited(0) + waited(1), waited(3), waited(4) + waited(5)]))
    assert named(v) == ("collective-missing-rank", 2)
    assert v.origin.node == "n2"


def test_a_worker_that_its_agents_table_does_not_list_left_with_status_0(engine):
    second = closed(2) + table("n2", [(2, 0, 1, 72)])
    v = engine(launched([closed(0) + closed(1) + table("n1", [(0, 0, 1, 70), (1, 1, 1, 71)]), second]))
    assert named(v) == ("collective-missing-rank", 3)


def test_a_worker_that_is_ended_beside_one_that_failed_is_not_the_missing_one(engine):
    error = traceback(2, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    second = error + CLOSING.format(73) + table("n2", [(2, 0, 1, 72), (3, 1, -15, 73)])
    v = engine(launched([waited(0) + waited(1), second]))
    assert named(v) == ("cuda-illegal-memory-access", 2)


def test_an_error_before_a_worker_joined_is_the_only_failed_workers(engine):
    error = traceback(None, "ModuleNotFoundError: No module named 'transformer_engine'")
    second = error + CLOSING.format(73) + table("n2", [(2, 0, 1, 72), (3, 1, -15, 73)])
    v = engine(launched(["INFO loading\n", second]))
    assert named(v) == ("missing-python-module", 2)


def test_the_process_that_spawn_saw_fail_first_has_the_unmarked_words(engine, tmp_path):
    log = tmp_path / "job.log"
    log.write_text(
        "../aten/src/ATen/native/cuda/NLLLoss2d.cu:103: nll_loss2d_forward_kernel: block: [3,0,0], thread: [226,0,0] "
        "Assertion `t >= 0 && t < n_classes` failed.\n"
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGABRT\n"
    )
    assert named(engine(load([log]))) == ("index-out-of-range", 1)


def test_an_unmarked_error_in_the_output_keeps_silence_from_meaning_anything(engine):
    v = engine(launched([waited(1) + "Fatal Python error: Segmentation fault\n", waited(2) + waited(3)]))
    assert v.origin is None or v.confidence < 0.9


def test_a_workers_gpu_is_its_local_ranks(engine):
    gpus = tuple(Gpu(i, i, f"00000000:{0x3B + i:02X}:00.0", f"GPU-{i}", str(i), "H100") for i in range(2))
    error = traceback(2, "torch.AcceleratorError: CUDA error: unknown error")
    second = error + CLOSING.format(73) + table("n2", [(2, 0, 1, 72), (3, 1, -15, 73)])
    v = engine(launched([waited(0) + waited(1), second], gpus, [(1, 24.5, XID_119.format(bus="3b"), True)]))
    assert named(v) == ("gpu-gsp-timeout", 2)
    assert v.origin.gpu.index == 0


def test_a_tasks_number_of_a_launcher_places_no_rank(engine):
    """Rank 1 runs on n1; the launcher on n2 is task 1."""
    v = engine(launched([closed(0) + traceback(1, "KeyError: 'x'"), closed(2) + closed(3)]))
    assert named(v) == ("user-code-exception", 1)
    assert v.origin.node == "n1"


def test_the_very_same_exception_everywhere_is_the_jobs_however_far_apart(engine):
    run = Run(skew=SKEWED)
    for rank in range(4):
        run.say(rank, 2.0 + 3 * rank, traceback(None, "KeyError: 'fp8'"))
        run.ends(rank, 2.2 + 3 * rank, code=1)
    assert engine(run.snapshot()).scope is Scope.JOB


def test_an_exit_0_is_early_also_where_slurm_ended_some_of_the_others(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.ends(1, 11.5, code=0)
    for rank in (0, 2):
        run.say(rank, 11.6 + 0.1 * rank, closed(rank))
        run.ends(rank, 13.0 + 0.1 * rank, code=1)
    run.tasks[3].told = [(13.3, 15)]
    run.ends(3, 13.4, signal=15)
    assert named(engine(run.snapshot())) == ("collective-missing-rank", 1)


def test_the_rank_that_notices_a_mismatch_is_not_thereby_the_wrong_one(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.say(0, 11.5, MISMATCH)
    run.ends(0, 11.6, signal=6)
    for rank in (1, 2, 3):
        run.say(rank, 11.6 + 0.01 * rank, closed(rank))
        run.ends(rank, 12.0 + 0.1 * rank, code=1)
    assert named(engine(run.snapshot())) == ("collective-mismatch", None)


def test_ranks_that_wait_in_the_store_for_one_that_does_not_join(engine):
    run = Run(skew=SKEWED)
    run.say(2, 1.2, "INFO loading the tokenizer")
    for rank in (0, 1, 3):
        text = "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/0"
        run.say(rank, 7.0 + 0.01 * rank, traceback(rank, text))
        run.ends(rank, 7.5 + 0.1 * rank, code=1)
    run.tasks[2].told = [(7.7, 15)]
    run.ends(2, 7.8, signal=15)
    assert named(engine(run.snapshot())) == ("rendezvous-failure", 2)


def test_of_two_silent_ranks_none_is_accused_but_what_the_others_waited_for_is_said(engine):
    run = Run(skew=SKEWED)
    for rank in (1, 2):
        text = "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/0"
        run.say(rank, 7.0 + 0.01 * rank, traceback(rank, text))
        run.ends(rank, 7.5 + 0.1 * rank, code=1)
    for rank in (0, 3):
        run.tasks[rank].told = [(7.7, 15)]
        run.ends(rank, 7.8, signal=15)
    v = engine(run.snapshot())
    assert named(v) == ("rendezvous-failure", None)
    assert "join the process group" in v.summary


def test_ranks_that_cannot_reach_the_store_wait_for_the_one_that_serves_it(engine):
    run = Run(skew=SKEWED)
    run.say(0, 1.2, "INFO loading the tokenizer")
    for rank in (1, 2, 3):
        text = "The client socket has timed out after 5000ms while trying to connect to (n1, 29500)."
        run.say(rank, 7.0 + 0.01 * rank, traceback(rank, f"torch.distributed.DistNetworkError: {text}"))
        run.ends(rank, 7.5 + 0.1 * rank, code=1)
    run.tasks[0].told = [(7.9, 15)]
    run.ends(0, 8.0, signal=15)
    assert named(engine(run.snapshot())) == ("rendezvous-failure", 0)


def test_a_watchdog_line_that_waited_longer_than_its_rank_ran_is_made_up(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    fake = (
        "[rank0]:[E1201 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out."
    )
    run.say(2, 11.45, fake)
    run.say(2, 11.5, traceback(2, "IndexError: list index out of range"))
    run.ends(2, 11.9, code=1)
    for rank in (0, 1, 3):
        run.say(rank, 11.6 + 0.01 * rank, closed(rank))
        run.ends(rank, 12.2 + 0.1 * rank, code=1)
    v = engine(run.snapshot())
    assert named(v) == ("user-code-exception", 2)
    assert "before the rank was started" in v.summary


@pytest.mark.parametrize(
    ("where", "meaning"), [("barrier", "collective-timeout-too-short"), ("all_reduce", "collective-missing-rank")]
)
def test_a_rank_that_was_writing_a_checkpoint_when_the_others_gave_up(engine, where, meaning):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.say(0, 11.6, "INFO saving checkpoint at step 50 to /ckpt")
    for rank in (1, 2, 3):
        frame = f'[rank{rank}]:   File "/home/alice/train.py", line 80, in save\n[rank{rank}]:     dist.{where}()\n'
        text = waited(rank, 5000).replace(f"[rank{rank}]: RuntimeError", frame + f"[rank{rank}]: RuntimeError")
        run.say(rank, 17.0 + 0.01 * rank, text)
        run.ends(rank, 17.5 + 0.1 * rank, code=1)
    run.tasks[0].told = [(17.8, 15)]
    run.ends(0, 17.9, signal=15)
    assert named(engine(run.snapshot())) == (meaning, 0)


@pytest.mark.parametrize("words", ["CUDA error: unspecified launch failure", "CUDA error: unknown error"])
def test_a_fault_of_a_part_that_a_nodes_ranks_share_names_the_node(engine, words):
    run = Run(ranks=4, per_node=2, skew={1: 45})
    run.work(11.4)
    run.kernel = [(1, 11.45, "nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 44 LTSSM Fault Up", True)]
    for rank in (2, 3):
        run.say(rank, 11.6, traceback(rank, f"torch.AcceleratorError: {words}"))
        run.ends(rank, 11.9 + 0.01 * rank, code=1)
    for rank in (0, 1):
        run.say(rank, 12.0, closed(rank))
        run.ends(rank, 12.5, code=1)
    v = engine(run.snapshot())
    assert (v.failure_class, v.scope, v.origin.rank, v.origin.node) == ("nvswitch-fault", Scope.NODE, None, "n2")


def test_a_kill_after_another_ranks_own_words_is_no_rival(engine):
    """Rank 0 raises and takes its time to end; rank 2 is killed meanwhile."""
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.say(0, 11.5, traceback(0, "IndexError: list index out of range"))
    run.ends(2, 11.9, signal=9)
    for rank in (1, 3):
        run.say(rank, 11.52, closed(rank))
        run.ends(rank, 12.5, code=1)
    run.tasks[0].told = [(12.6, 15)]
    run.ends(0, 12.7, signal=15)
    assert named(engine(run.snapshot())) == ("user-code-exception", 0)


def test_a_step_that_somebody_killed_accuses_no_rank(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.steps = [("0", "python", "CANCELLED", "0:9"), ("batch", "batch", "FAILED", "137:0")]
    v = engine(run.snapshot())
    assert (v.failure_class, v.scope, v.origin) == ("interrupted", Scope.EXTERNAL, None)


def test_a_signal_that_reached_all_ranks_came_from_outside_whoever_was_reported_last(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.lost_tasks = {0, 1, 2, 3}
    run.srun(11.6, "srun: error: n3: task 2: Killed")
    run.srun(11.7, "srun: launch/slurm: _step_signal: Terminating StepId=191.0")
    for rank in (0, 1, 3):
        run.srun(11.8 + 0.01 * rank, f"srun: error: n{rank + 1}: task {rank}: Killed")
    v = engine(run.snapshot())
    assert (v.failure_class, v.scope, v.origin) == ("process-killed", Scope.EXTERNAL, None)


def test_a_hang_shows_soon_where_steps_are_quick(engine):
    """The time limit comes 40 s after the last step; a step takes 40 ms."""
    run = Run(skew=SKEWED)
    run.work(20.0, step_seconds=0.04)
    for rank in range(4):
        run.tasks[rank].told = [(60.0, 15)]
        run.ends(rank, 60.2, signal=15)
    run.state, run.derived, run.end = "TIMEOUT", "0:15", 61.0
    run.steps = [("0", "python", "CANCELLED", "0:15")]
    assert engine(run.snapshot()).failure_class == "collective-missing-rank"
