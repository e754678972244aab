"""Which rank is the origin: faults beyond the main ones, each as its ranks would show it; wrong single ranks never."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from denpex import library
from denpex.diagnose import diagnose
from denpex.model import (
    Gpu,
    Hardware,
    Job,
    Order,
    Scope,
    Snapshot,
    Stamp,
    StreamData,
    StreamInfo,
    StreamKind,
    StreamSource,
    TaskRecord,
    Verdict,
)
from tests.unit import runs, scenes
from tests.unit.runs import Run, closed, traceback, waited

SKEWED = {1: 45, 2: -3}


@pytest.fixture(scope="module")
def engine() -> Callable[[Snapshot], Verdict]:
    patterns = library.load()
    matcher = library.matcher(patterns)
    return lambda snapshot: diagnose(snapshot, patterns, matcher)


def cascade(run, origin, at=11.52, ends=12.2, but=()):
    """Let all other ranks see a closed connection and end."""
    for rank in range(run.count):
        if rank != origin and rank not in but:
            run.say(rank, at + 0.01 * rank, closed(rank))
            run.ends(rank, ends + 0.1 * rank, code=1)
    return run


def named(v):
    return v.failure_class, v.origin.rank if v.origin else None


# Ends that say why.


def test_a_crash_is_the_crashing_ranks(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.say(2, 11.5, "Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n")
    run.ends(2, 11.6, signal=11)
    assert named(engine(cascade(run, 2).snapshot())) == ("process-crashed", 2)


def test_a_crash_without_a_word_too(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.ends(2, 11.5, signal=11)
    assert named(engine(cascade(run, 2).snapshot())) == ("process-crashed", 2)


def test_a_silent_exit_names_the_rank_but_no_cause(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.ends(1, 11.5, code=3)
    v = engine(cascade(run, 1).snapshot())
    assert named(v) == ("unknown", 1)
    assert v.confidence <= 0.6
    assert "no word of why" in v.summary


def test_a_missing_module_on_one_rank(engine):
    run = Run(skew=SKEWED)
    run.say(3, 2.0, traceback(None, "ModuleNotFoundError: No module named 'flash_attn'"))
    run.ends(3, 2.3, code=1)
    waiting = "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /default_pg/0//cpu//0"
    for rank in range(3):
        run.say(rank, 62.0 + rank * 0.01, traceback(rank, waiting))
        run.ends(rank, 62.5, code=1)
    assert named(engine(run.snapshot())) == ("missing-python-module", 3)


def test_the_same_failure_on_all_ranks_is_the_jobs(engine):
    run = Run(skew=SKEWED)
    for rank in range(4):
        run.say(rank, 2.0 + 0.3 * rank, traceback(None, "ModuleNotFoundError: No module named 'flash_attn'"))
        run.ends(rank, 2.2 + 0.3 * rank, code=1)
    v = engine(run.snapshot())
    assert (v.failure_class, v.scope, v.origin) == ("missing-python-module", Scope.JOB, None)


def test_an_exit_0_while_the_others_train_on(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.ends(2, 11.6, code=0)
    v = engine(cascade(run, 2, ends=13.0).snapshot())
    assert named(v) == ("collective-missing-rank", 2)
    assert "status 0 while the others still ran" in v.summary


# Who was ended by whom.


@pytest.mark.parametrize("samples", [True, False])
def test_ranks_that_the_launcher_kills_are_victims(engine, samples):
    """srun -K: rank 2 raises, the others are killed a moment later, some before they could say anything."""
    run = Run(skew=SKEWED)
    run.samples = samples
    run.work(11.4)
    run.say(2, 11.5, traceback(2, "ValueError: bad label"))
    run.ends(2, 11.7, code=1)
    for rank in (0, 1, 3):
        run.ends(rank, 11.9, signal=9)
    v = engine(run.snapshot())
    assert named(v) == ("user-code-exception", 2)
    assert {edge.rank for edge in v.cascade} == {0, 1, 3}


def test_two_kills_that_the_clocks_do_not_order_are_a_tie(engine):
    run = Run(skew=SKEWED)
    run.samples = False
    run.work(11.4)
    run.ends(1, 11.5, signal=9)
    run.ends(3, 11.9, signal=9)
    cascade(run, 1, but=(3,))
    v = engine(run.snapshot())
    assert v.origin is None
    assert {place.rank for place in v.origins} == {1, 3}
    assert v.confidence <= 0.6


def test_two_kills_that_the_clocks_order_are_not(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.ends(1, 11.5, signal=9)
    run.ends(3, 11.9, signal=9)
    assert named(engine(cascade(run, 1, but=(3,)).snapshot())) == ("process-killed", 1)


def test_a_node_whose_ranks_all_vanish_is_named_as_a_node(engine):
    """Both ranks of n2 were killed within milliseconds, the other six complain."""
    run = Run(ranks=8, per_node=2, skew=SKEWED)
    run.work(11.4)
    for rank in (2, 3):
        run.ends(rank, 11.5 + 0.001 * rank, signal=9)
    cascade(run, 2, but=(3,))
    v = engine(run.snapshot())
    assert (v.scope, v.origin.node, v.origin.rank) == (Scope.NODE, "n2", None)
    assert {place.rank for place in v.origins} == {2, 3}


def test_a_node_that_died_is_named_where_only_its_traces_end(engine):
    """n3 left no epilog and its task no end; the job ended as FAILED, since the others failed."""
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.done["n3"] = False
    v = engine(cascade(run, 2).snapshot())
    assert v.failure_class == "node-unresponsive"
    assert (v.origin.rank, v.origin.node) == (2, "n3")


def test_slurms_node_failure_names_the_node_without_epilog(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.done["n3"] = False
    run.state, run.exit = "NODE_FAIL", "0:0"
    v = engine(run.snapshot())
    assert (v.failure_class, v.scope, v.origin.node) == ("node-unresponsive", Scope.NODE, "n3")


def test_a_signal_to_every_rank_comes_from_outside(engine):
    """`timeout 60 srun ...` in the script: srun passes SIGTERM to all."""
    run = Run(skew=SKEWED)
    run.work(30.0)
    for rank in range(4):
        run.tasks[rank].told = [(30.1, 15)]
        run.ends(rank, 30.2, signal=15)
    v = engine(run.snapshot())
    assert (v.failure_class, v.scope, v.origin) == ("interrupted", Scope.EXTERNAL, None)


def test_a_cancel_after_a_failure_does_not_hide_the_failure(engine):
    """Rank 2 died of its own exception, the others hung, and the owner cancelled the job."""
    run = scenes.cancelled(skew=SKEWED)
    for key, said in run.said.items():
        run.said[key] = [(t, text) for t, text in said if t < 11]
    run.say(2, 11.5, traceback(2, "KeyError: 'labels'"))
    run.ends(2, 11.8, code=1)
    run.tasks[2].told = []
    assert named(engine(run.snapshot())) == ("user-code-exception", 2)


def test_a_cancel_after_a_survived_error_is_a_cancel(engine):
    run = scenes.noise(scenes.cancelled(skew=SKEWED))
    for rank in range(4):
        run.say(rank, 7.0, traceback(None, "ValueError: caught, and logged by the program"))
    v = engine(run.snapshot())
    assert named(v) == ("cancelled-by-user", None)


def test_a_cancel_by_another_user_is_said_so(engine):
    assert named(engine(scenes.cancelled(by=0).snapshot())) == ("cancelled-by-administrator", None)


def test_preemption(engine):
    run = scenes.cancelled()
    run.state = "PREEMPTED"
    assert named(engine(run.snapshot())) == ("preempted", None)


# Silence.


def test_a_hung_rank_that_was_not_seen_stopped(engine):
    """Blocked in user code: its process runs, its wrapper was alive and passed the launcher's signal on."""
    run = scenes.stopped(seen=False, skew=SKEWED)
    assert named(engine(run.snapshot())) == ("collective-missing-rank", 3)


def test_a_stopped_process_that_the_launcher_woke_and_ended_was_stopped_all_the_same(engine):
    """As a real srun -K does it: SIGCONT and SIGTERM, and the process is gone a moment later."""
    run = scenes.stopped(skew=SKEWED)
    run.tasks[3].told = [(27.3, 18), (27.3002, 15)]
    run.tasks[3].states = [(13.0, "T"), (27.3001, "R")]
    run.ends(3, 27.4, signal=15)
    v = engine(run.snapshot())
    assert named(v) == ("collective-missing-rank", 3)
    assert "seen stopped" in v.summary
    assert all(edge.order is Order.CERTAIN for edge in v.cascade)


def test_a_hung_ranks_first_sign_is_when_it_was_last_heard_of_and_not_its_end(engine):
    run = scenes.stopped(seen=False, skew=SKEWED)
    run.ends(3, 31.0, signal=15)
    v = engine(run.snapshot())
    assert named(v) == ("collective-missing-rank", 3)
    assert all(edge.order is Order.CERTAIN and edge.gap_ms.lo > 10_000 for edge in v.cascade)


def test_a_kernel_log_that_is_written_late_does_not_put_the_victims_first(engine):
    run = scenes.memory(skew=SKEWED)
    run.kernel = [(node, t + 0.2, text, evidence) for node, t, text, evidence in run.kernel]
    v = engine(run.snapshot())
    assert named(v) == ("host-out-of-memory", 1)
    assert all(edge.order is Order.CERTAIN for edge in v.cascade)


def test_silence_of_a_stream_that_broke_off_earlier_is_worth_little(engine):
    run = scenes.stopped(seen=False, skew=SKEWED)
    run.tasks[3].alive = 5.0
    run.tasks[3].told = []
    run.batch = []
    v = engine(run.snapshot())
    assert v.origin is None or v.confidence <= 0.8


def test_a_rank_that_wakes_up_too_late_is_the_missing_one(engine):
    """Rank 1 was blocked in I/O for 20 s; then it finds its peers gone and complains, last of all."""
    run = Run(skew=SKEWED)
    run.work(11.4)
    for number, rank in enumerate((0, 2, 3)):
        run.say(rank, 26.5 + 0.01 * number, waited(rank) if number == 0 else closed(rank))
        run.ends(rank, 27.0 + 0.1 * number, code=1)
    run.say(1, 31.5, closed(1))
    run.ends(1, 32.0, code=1)
    assert named(engine(run.snapshot())) == ("collective-missing-rank", 1)


def test_the_rank_that_dies_first_and_speaks_last(engine):
    """Its exception is printed only after the others' time-outs: it is still the only one with a cause."""
    run = Run(skew=SKEWED)
    run.work(11.4)
    for rank in (0, 1, 2):
        run.say(rank, 26.5, waited(rank))
        run.ends(rank, 27.0, code=1)
    run.say(3, 40.0, traceback(3, "FileNotFoundError: [Errno 2] No such file or directory: 'shard-00017.tar'"))
    run.ends(3, 40.5, code=1)
    assert engine(run.snapshot()).origin.rank == 3


def test_an_accused_rank_needs_no_words_of_its_own(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.tasks[2].alive = 45.0
    run.say(0, 41.5, traceback(0, "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms"))
    run.ends(0, 42.0, code=1)
    for rank in (1, 3):
        run.say(rank, 41.6, closed(rank))
        run.ends(rank, 42.2, code=1)
    assert named(engine(run.snapshot())) == ("collective-missing-rank", 2)


# Order on one rank.


def test_an_exception_after_a_complaint_is_not_a_cause(engine):
    """Rank 0 sees the closed connection, and then fails over it in its own clean-up; rank 1 was killed."""
    run = scenes.killed(skew=SKEWED)
    run.say(0, 11.9, traceback(0, "AttributeError: 'NoneType' object has no attribute 'flush'"))
    assert named(engine(run.snapshot())) == ("process-killed", 1)


def test_buffered_progress_that_is_flushed_at_the_end_proves_no_survival(engine):
    """stdout is written in one block as the process ends, after the traceback on stderr."""
    run = Run(skew=SKEWED)
    run.say(2, 11.5, traceback(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."))
    for rank in range(4):
        run.say(rank, 11.9, "".join(f"step {n} loss 0.5\n" for n in range(60)), "out")
    run.ends(2, 11.92, code=1)
    assert named(engine(cascade(run, 2).snapshot())) == ("cuda-out-of-memory", 2)


# Kernel and GPUs.

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4001, name=python, GPU has fallen off the bus."
GPUS = (
    Gpu(0, 0, "00000000:3B:00.0", "GPU-aaaa", "1", "H200"),
    Gpu(1, 1, "00000000:5E:00.0", "GPU-bbbb", "2", "H200"),
)


def lost_gpu(evidence=True, job_gpus=("0",), pid=4001, nvml=False, **options):
    run = Run(**options)
    run.work(11.4)
    run.kernel = [(1, 11.45, XID.replace("4001", str(pid)), evidence)]
    run.nodes_info["n2"] = {"gpus": GPUS, "job_gpus": job_gpus}
    if nvml:
        before = {"gpus": {g.uuid: {"pci": g.pci, "ecc_volatile_uncorrected": 0} for g in GPUS}}
        after = {"gpus": {"GPU-bbbb": {"pci": GPUS[1].pci, "ecc_volatile_uncorrected": 0}}}
        run.nodes_info["n2"] |= {"nvml_before": before, "nvml_after": after}
    run.say(1, 11.5, traceback(1, "RuntimeError: CUDA error: unspecified launch failure"))
    run.ends(1, 11.9, code=1)
    return cascade(run, 1)


def test_a_lost_gpu_is_named_with_its_rank_and_suspected_by_the_kernels_word_alone(engine):
    v = engine(lost_gpu(skew=SKEWED).snapshot())
    assert named(v) == ("gpu-fell-off-bus", 1)
    assert v.scope is Scope.GPU
    assert (v.origin.gpu.uuid, v.origin.gpu.index) == ("GPU-aaaa", 0)
    assert v.hardware is Hardware.SUSPECTED


def test_a_second_instrument_confirms_it(engine):
    assert engine(lost_gpu(nvml=True).snapshot()).hardware is Hardware.CONFIRMED


def test_nothing_that_a_user_can_write_confirms_it(engine):
    assert engine(lost_gpu(evidence=False, nvml=True).snapshot()).hardware is Hardware.SUSPECTED


def test_the_gpu_of_another_job_is_not_blamed(engine):
    v = engine(lost_gpu(job_gpus=("1",), nvml=True).snapshot())
    assert v.failure_class != "gpu-fell-off-bus"
    assert v.hardware is Hardware.NONE
    assert "not the job's" in v.summary


def test_a_job_that_prints_kernel_messages_proves_nothing(engine):
    run = scenes.killed(skew=SKEWED)
    run.say(3, 11.0, XID)
    v = engine(run.snapshot())
    assert named(v) == ("process-killed", 1)
    assert v.hardware is Hardware.NONE


def test_an_out_of_memory_kill_of_another_job_is_not_ours(engine):
    run = scenes.memory(skew=SKEWED)
    run.kernel = [(n, t, text.replace("job_191", "job_77").replace("4001", "9999"), e) for n, t, text, e in run.kernel]
    run.batch = [(t, text) for t, text in run.batch if "oom" not in text.lower() and "Out Of" not in text]
    run.state, run.steps = "FAILED", [("0", "python", "FAILED", "0:9")]
    assert named(engine(run.snapshot())) == ("process-killed", 1)


def test_slurms_word_alone_is_enough_for_an_out_of_memory_kill(engine):
    run = scenes.memory(kernel=False, skew=SKEWED)
    assert named(engine(run.snapshot())) == ("host-out-of-memory", 1)


# NCCL.


def _watchdog(rank, seq, ms=600_020):
    return (
        f"[rank{rank}]:[E1201 12:53:06.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
        f"for {ms} milliseconds before timing out."
    )


def test_the_ranks_that_time_out_are_victims_of_the_one_that_ran_out_of_memory(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.say(2, 11.5, traceback(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."))
    run.ends(2, 11.9, code=1)
    run.end = 640
    for rank in (0, 1, 3):
        run.say(rank, 611.6 + 0.01 * rank, _watchdog(rank, 469))
        run.ends(rank, 630.0, signal=6)
    v = engine(run.snapshot())
    assert named(v) == ("cuda-out-of-memory", 2)
    edge = next(edge for edge in v.cascade if edge.rank == 0)
    assert edge.order is Order.CERTAIN
    assert edge.gap_ms.lo == pytest.approx(600_100, abs=200)


def test_all_ranks_in_one_watchdog_timeout_name_nobody(engine):
    run = Run(skew=SKEWED)
    run.work(11.4)
    run.end = 640
    for rank in range(4):
        run.say(rank, 611.6, _watchdog(rank, 469))
        run.ends(rank, 630.0, signal=6)
    v = engine(run.snapshot())
    assert (v.failure_class, v.origin) == ("collective-missing-rank", None)


# Other inputs.


def test_torchrun_under_srun_takes_ranks_from_its_own_marks(engine):
    """One launcher per node: the task's number is the node's, not the rank's."""
    snapshot = scenes.exception().snapshot()
    nodes = snapshot.job.nodes[:2]
    sources, tasks = [], []
    for number, node in enumerate(nodes):
        text = "".join(
            traceback(3, "KeyError: 'x'") if rank == 3 else closed(rank) for rank in (2 * number, 2 * number + 1)
        )
        info = StreamInfo(f"{node}/0.{number}.err", StreamKind.MIXED, "0", None, node, True, len(text))
        sources.append(runs._source(info, StreamData(text.encode())))
        tasks.append(TaskRecord("0", number, node, command="torchrun train.py", start=Stamp(1, 1), end=Stamp(2, 2),
                                exit_code=1))  # fmt: skip
    job = replace(snapshot.job, nodes=nodes, steps=(replace(snapshot.job.steps[0], ntasks=2),))
    v = engine(replace(snapshot, job=job, streams=tuple(sources), tasks=tuple(tasks)))
    assert named(v) == ("user-code-exception", 3)
    assert v.origin.node == nodes[1]


def test_a_single_program_outside_slurm(engine):
    """`denpex run -- python train.py`: the one process is rank 0, and its output is its own."""
    text = "step 5 loss 0.5\n" + traceback(None, "KeyError: 'labels'")
    info = StreamInfo("host/local.0.out", StreamKind.BATCH, "local", None, "host", True, len(text))
    task = TaskRecord("local", 0, "host", start=Stamp(10**18, 10**9), end=Stamp(10**18 + 10**9, 2 * 10**9), exit_code=1)
    source = StreamSource(info, lambda: StreamData(text.encode(), ((0, 10**18, 10**9),)))
    v = engine(Snapshot(job=Job(nodes=("host",)), tasks=(task,), streams=(source,)))
    assert v.failure_class == "user-code-exception"
    assert v.origin.rank == 0


def test_plain_logs_name_the_rank_of_the_file(engine):
    sources = []
    for rank in range(4):
        text = traceback(None, "KeyError: 'x'") if rank == 2 else closed(None)
        info = StreamInfo(f"rank_{rank}.log", StreamKind.OUT, None, rank, None, None, len(text))
        sources.append(runs._source(info, StreamData(text.encode())))
    v = engine(Snapshot(streams=tuple(sources)))
    assert named(v) == ("user-code-exception", 2)
    assert "node is not known" in v.origin.basis
    assert all(edge.order is Order.LIKELY for edge in v.cascade)


def test_an_empty_input_is_unknown_and_accuses_nobody(engine):
    v = engine(Snapshot())
    assert named(v) == ("unknown", None)


def test_hostile_numbers_do_no_harm(engine):
    text = (
        "srun: error: n1: tasks 0-99999999999: Killed\nsrun: error: n1: task 0-3,7-5: Exited with exit code 999\n"
        "step 99999999999999999999999 loss nan\nRuntimeError: [Rank 0]: Rank 99999999999999 failed to pass "
        "monitoredBarrier in 999999999999999999999999 ms\n"
    )
    info = StreamInfo("n1/batch.out", StreamKind.BATCH, "batch", None, "n1", None, len(text))
    v = engine(Snapshot(job=Job(job_id="1", nodes=("n1",), state="FAILED"),
                        streams=(runs._source(info, StreamData(text.encode(), ((0, 10**18, None),))),)))  # fmt: skip
    assert v.failure_class in ("unknown", "collective-missing-rank", "process-killed", "loss-nan")
