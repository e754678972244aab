"""Records: what a launcher put before a line, what belongs to one message, where and when it was."""

import pytest

from denpex.engine.records import from_kernel, split
from denpex.model import KernelRecord, Source, Stamp, StreamData, StreamInfo, StreamKind


def read(text, kind=StreamKind.MIXED, **info):
    data = text if isinstance(text, bytes) else text.encode()
    return split(StreamInfo("s", kind, **info), StreamData(data))


@pytest.mark.parametrize(
    ("line", "text", "rank", "local_rank", "node"),
    [
        ("[rank3]: ValueError: x", "ValueError: x", 3, None, None),
        ("[rank3]:[rank3]: ValueError: x", "ValueError: x", 3, None, None),
        ("[default3]:loss 0.1", "loss 0.1", None, 3, None),
        ("[trainer12]:loss 0.1", "loss 0.1", None, 12, None),
        ("[default0]:[rank12]:[E817 x.cpp:1] bad", "[E817 x.cpp:1] bad", 12, 0, None),
        ("[1,12]<stdout>:hello", "hello", 12, None, None),
        ("[1,12]<stderr>: hello", "hello", 12, None, None),
        ("(TrainWorker pid=4242, ip=10.0.0.7) hello", "hello", None, None, "10.0.0.7"),
        ("(pid=4242) hello", "hello", None, None, None),
        ("[E ProcessGroupNCCL.cpp:458] [Rank 7] bad", "[E ProcessGroupNCCL.cpp:458] [Rank 7] bad", 7, None, None),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 5] x", "[PG ID 0 PG GUID 0(default_pg) Rank 5] x", 5, None, None),
        ("n7:10:20 [0] NCCL WARN x", "n7:10:20 [0] NCCL WARN x", None, None, "n7"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07end\x00", "red end", None, None, None),
        ("[Hardware Error]: x", "[Hardware Error]: x", None, None, None),
    ],
)
def test_a_prefix_is_taken_off_and_what_it_says_is_kept(line, text, rank, local_rank, node):
    (record,) = read(line)
    assert (record.text, record.rank, record.local_rank, record.node) == (text, rank, local_rank, node)


def test_srun_labels_are_taken_off_where_most_lines_have_one():
    records = read("0: a\n 1: b\n10: c\n10: d\nsrun: error: n1: task 1: Killed\n")
    assert [(r.rank, r.text) for r in records[:4]] == [(0, "a"), (1, "b"), (10, "c"), (10, "d")]
    assert records[4].rank is None


def test_a_number_before_a_colon_is_no_label_where_few_lines_have_one():
    assert read("epoch 1\n3: three\nepoch 2\nepoch 3\n")[1].text == "3: three"


def test_host_prefixes_are_nodes_where_most_lines_have_one():
    records = read("worker-1: a\nworker-2: b\nworker-1: c\n")
    assert [(r.node, r.text) for r in records] == [("worker-1", "a"), ("worker-2", "b"), ("worker-1", "c")]


def test_the_stream_fixes_rank_and_node_whatever_a_line_says():
    (record,) = read("[rank3]: hello", StreamKind.OUT, rank=1, node="n2", step="0")
    assert (record.rank, record.node, record.step, record.text) == (1, "n2", "0", "hello")


def test_a_redrawn_progress_bar_is_as_many_records_as_states():
    assert [r.text for r in read("10%\r20%\r30%\nend\n")] == ["10%", "20%", "30%", "end"]


def test_a_message_after_an_unended_progress_bar_is_a_record_of_its_own():
    bar, error = "  0%|    | 72/80412 [1:06:46<1240:52:31, 55.60s/it]", "[rank1]: ValueError: x"
    assert [(r.text, r.rank) for r in read(bar + error)] == [(bar, None), ("ValueError: x", 1)]


def test_a_traceback_is_one_record_with_its_whole_chain():
    text = (
        "before\n"
        "Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        "    x()\n"
        "KeyError: 'a'\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "b.py", line 2, in g\n'
        "RuntimeError: b\n"
        "2026-12-01 10:00:00 INFO after\n"
    )
    before, chain, after = read(text)
    assert (before.text, after.text) == ("before", "2026-12-01 10:00:00 INFO after")
    assert chain.text.splitlines()[0] == "Traceback (most recent call last):"
    assert chain.text.splitlines()[-1] == "RuntimeError: b"
    assert chain.offset == len("before\n")


def test_tracebacks_of_two_ranks_in_one_file_are_told_apart():
    text = (
        "[rank0]: Traceback (most recent call last):\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank0]:   File "a.py", line 1\n'
        '[rank1]:   File "b.py", line 1\n'
        "[rank1]: ValueError: one\n"
        "[rank0]: KeyError: 0\n"
    )
    zero, one = read(text)
    assert (zero.rank, zero.text.splitlines()[-1]) == (0, "KeyError: 0")
    assert (one.rank, one.text.splitlines()[-1]) == (1, "ValueError: one")


def test_another_program_s_line_does_not_end_a_traceback():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\n[W socket.cpp:1] warning\n    x()\nKeyError: 0\n'
    assert [r.text.splitlines()[-1] for r in read(text)] == ["KeyError: 0", "[W socket.cpp:1] warning"]


@pytest.mark.parametrize("first", ["Exception ignored in: <function f at 0x7f>", "Error in atexit._run_exitfuncs:"])
def test_what_says_that_a_traceback_is_harmless_belongs_to_it(first):
    (record,) = read(f'{first}\nTraceback (most recent call last):\n  File "a.py", line 1\nOSError: x\n')
    assert record.text.startswith(first)
    assert record.text.endswith("OSError: x")


def test_progress_after_a_caught_exception_is_not_swallowed():
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: x\nstep 7 loss 0.1\nstep 8 loss 0.1\n'
    )
    assert [r.text for r in read(text, StreamKind.OUT, rank=0)][1:] == ["step 7 loss 0.1", "step 8 loss 0.1"]


def test_an_exception_s_message_of_several_lines_stays_together():
    text = (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled cuda error\n"
        "[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "[rank0]: Last error:\n"
        "[rank0]: Cuda failure 802 'system not yet initialized'\n"
    )
    (record,) = read(text)
    assert record.text.count("\n") == 3


def test_what_a_c_abort_says_belongs_to_it_and_names_its_rank():
    text = "terminate called after throwing an instance of 'c10::Error'\n  what():  [PG 0 Rank 3] bad\nframe #0: x\n"
    (record,) = read(text)
    assert record.rank == 3
    assert record.text.count("\n") == 2


def test_equal_device_assertions_are_one_short_record():
    line = "x.cu:10: kernel: block: [0,0,0], thread: [{n},0,0] Assertion `t >= 0` failed.\n"
    records = read("".join(line.format(n=n) for n in range(1000)) + "after\n")
    assert len(records) == 2
    assert records[0].text.count("\n") == 2


def test_a_failure_table_gives_one_record_for_each_process():
    entry = (
        "[{n}]:\n  time      : t\n  host      : n1\n  rank      : {n} (local_rank: {n})\n  exitcode  : -9 (pid: 1)\n"
    )
    text = (
        "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n" + entry.format(n=1) + entry.format(n=2)
        + "-" * 60 + "\nRoot Cause (first observed failure):\n" + entry.format(n=0) + "=" * 60 + "\nafter\n"
    )  # fmt: skip
    texts = [r.text for r in read(text)]
    assert [t.split("\n")[0] for t in texts[1:]] == ["[1]:", "[2]:", "Root Cause (first observed failure):", "after"]


def test_a_banner_of_equals_signs_swallows_nothing():
    assert len(read("=" * 60 + "\nphase 1\n" + "=" * 60 + "\nstep 1\n")) == 4


def test_a_desync_report_belongs_to_the_rank_whose_line_it_follows():
    text = (
        "[rank0]:[E515 18:36:47 ProcessGroupNCCL.cpp:1937] Rank 0\n\t - [0] Timeout at collective: ALLREDUCE, #315\n"
        "\t - To our best knowledge, the lagging ranks are:\n\t   [7] finished collective #182\nplain\n"
    )
    report, plain = read(text)
    assert (report.rank, report.text.count("\n"), plain.rank) == (0, 3, None)


def test_receive_times_and_offsets_come_from_index_and_pieces():
    data = StreamData(
        b"first\nsecond\nthird\n", ((0, 100, 1), (6, 200, 2), (1006, 300, 3)), pieces=((0, 0), (13, 1006))
    )
    records = split(StreamInfo("s", StreamKind.OUT, rank=0), data)
    assert [(r.offset, r.stamp) for r in records] == [
        (0, Stamp(100, 1)), (6, Stamp(200, 2)), (1006, Stamp(300, 3)),
    ]  # fmt: skip


def test_a_printed_time_counts_only_with_year_and_zone():
    zoned, epoch, zoneless, yearless = read(
        "2026-12-01T10:00:00.5+01:00 x\nE0000 00:00:1736163964.084812 1 a.cc:1] x\n2026-12-01 10:00:00,123 x\n"
        "E1206 18:44:12.715298 1 a.py:1] x\n"
    )
    assert zoned.printed_ns == 1796115600_500000000
    assert epoch.printed_ns == 1736163964_084812000
    assert zoneless.printed_ns is None
    assert yearless.printed_ns is None


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("[  123.456789] NVRM: x", None),
        ("[  +0.000127] NVRM: x", None),
        ("[Tue Apr 15 16:50:03 2025] NVRM: x", None),
        ("Tue Apr 15 16:50:03 2025] NVRM: x", None),
        ("[May19 19:57] NVRM: x", None),
        ("<3>[  123.456789][ T4242] NVRM: x", None),
        ("2025-02-23T16:24:18,123456+00:00 NVRM: x", None),
        ("Dec  6 18:44:12 n3 kernel: [  123.456789] NVRM: x", "n3"),
        ("2025-02-23T16:24:18+0000 n3 kernel: NVRM: x", "n3"),
    ],
)
def test_every_form_of_a_kernel_log_is_read(line, node):
    (record,) = read(line, StreamKind.KERNEL)
    assert (record.text, record.node, record.source, record.evidence) == ("NVRM: x", node, Source.KERNEL, False)


def test_a_driver_message_of_three_lines_is_one_record_in_text_and_from_the_spool():
    lines = ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:26b5) installed", "NVRM: fallen off the bus"]
    (record,) = read("\n".join(f"[ 1.000000] {line}" for line in lines), StreamKind.KERNEL)
    entries = [KernelRecord("n1", Stamp(1, 1), line, seq=n, evidence=True) for n, line in enumerate([*lines, "other"])]
    kept, other = from_kernel(entries)
    assert record.text == kept.text == "\n".join(lines)
    assert (kept.evidence, kept.source, kept.node, other.text) == (True, Source.KERNEL, "n1", "other")


def test_of_a_long_stream_the_tail_and_the_telling_lines_are_read():
    line = b"an ordinary line of output that says nothing at all, again and again\n"
    data = line * 30000 + b"RuntimeError: in the middle\n" + line * 30000 + b"the last words\n"
    records = read(data, StreamKind.OUT, rank=0)
    assert len(records) < 30000
    middle = next(r for r in records if "in the middle" in r.text)
    assert middle.offset == len(line) * 30000
    assert records[-1].text == "the last words"


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe\x00\x9f", b"x" * 10_000_000, b"\r" * 1000, b"[" * 5000])
def test_hostile_bytes_are_read_without_harm(data):
    assert all(len(record.text) <= 1 << 15 for record in read(data))
