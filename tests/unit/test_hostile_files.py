"""`denpex diagnose` on what nobody should hand it: a verdict or a sentence, bounded in time and memory, nothing run."""

from __future__ import annotations

import bz2
import ctypes
import gzip
import io
import json
import lzma
import os
import pickle
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from denpex.render import terminal
from tests.unit.flights import ALL, Recorder
from tests.unit.runs import S, closed, traceback
from tests.unit.test_ingest_spool import Spool, lines

ROOT = Path(__file__).parents[2]
MOST_S = 30.0
MOST_BYTES = 2 << 30  # of address space, with the interpreter and the pattern database
MARK = "executed"  # what a payload would leave behind
_BEYOND_MODES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_CAPBSET_DROP = 24

Make = Callable[[Path], "Path | list[str]"]


@dataclass(frozen=True)
class Case:
    """``says``: what a gap, or the one sentence, must hold; ``truth``: class and rank, None: nobody may be named."""

    make: Make
    says: str
    status: int
    truth: tuple[str, int] | None


CASES: dict[str, Case] = {}


def refused(says: str, status: int = 1) -> Callable[[Make], Make]:
    """Declare an input that ends with one sentence."""
    return _case(says, status, None)


def read(says: str = "", truth: tuple[str, int] | None = None) -> Callable[[Make], Make]:
    """Declare an input that ends with a verdict."""
    return _case(says, 0, truth)


def _case(says: str, status: int, truth: tuple[str, int] | None) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        CASES[make.__name__.strip("_")] = Case(make, says, status, truth)
        return make

    return add


FAILED = ("user-code-exception", 2)
STEPS = "".join(f"INFO step {n} loss 0.{900 - n}\n" for n in range(0, 200, 5))


def job(folder: Path, *, but: int | None = None) -> Path:
    """Write the output of a job whose rank 2 raised; rank ``but`` is left to the case."""
    for rank in range(4):
        if rank != but:
            last = traceback(2, "IndexError: list index out of range") if rank == 2 else closed(rank)
            (folder / f"rank_{rank}.log").write_text(STEPS + last)
    return folder


# Compressed data and archives.


@read("breaks off")
def a_gz_that_breaks_off(folder):
    noise = "".join(f"INFO step {n} loss {n * 7919 % 1009}\n" for n in range(20_000))
    data = gzip.compress(noise.encode())
    (folder / "rank_0.log.gz").write_bytes(data[: len(data) // 2])
    return folder / "rank_0.log.gz"


@read("breaks off", FAILED)
def an_xz_that_breaks_off_beside_a_failure(folder):
    (folder / "rank_1.log.xz").write_bytes(lzma.compress(STEPS.encode() * 200)[:-20])
    return job(folder, but=1)


@read("damaged", FAILED)
def a_bz2_with_a_wrong_byte_beside_a_failure(folder):
    data = bytearray(bz2.compress(STEPS.encode() * 200))
    data[len(data) // 2] ^= 0xFF
    (folder / "rank_1.log.bz2").write_bytes(data)
    return job(folder, but=1)


@read("run `zstd -d` on it first")
def a_zst_that_breaks_off(folder):
    (folder / "rank_0.log.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04")
    return folder / "rank_0.log.zst"


@read("more than 2048 MiB")
def a_gz_bomb(folder):
    (folder / "rank_0.log.gz").write_bytes(gzip.compress(b" " * (64 << 20)) * 40)
    return folder / "rank_0.log.gz"


@read("it unpacks to 264 MiB")
def a_gz_of_more_than_is_read_of_a_file(folder):
    member = gzip.compress((b"INFO step 7 " + b"." * 1011 + b"\n") * (1 << 13))
    (folder / "rank_0.log.gz").write_bytes(member * 33)
    return folder / "rank_0.log.gz"


@read("", FAILED)
def a_gz_in_a_gz_in_a_gz_beside_a_failure(folder):
    data = STEPS.encode()
    for _ in range(20):
        data = gzip.compress(data)
    (folder / "rank_1.log.gz").write_bytes(data)
    return job(folder, but=1)


@read("breaks off|first 2 files|unexpected end", FAILED)
def a_tar_that_breaks_off(folder):
    job(folder)
    with tarfile.open(folder / "a.tar", "w") as tar:
        for rank in (2, 3, 0):
            tar.add(folder / f"rank_{rank}.log", f"rank_{rank}.log")
    data = (folder / "a.tar").read_bytes()
    (folder / "a.tar").write_bytes(data[: data.find(b"rank_0.log") + 300])
    return folder / "a.tar"


@read("it is not text", FAILED)
def a_tar_that_holds_itself_many_times(folder):
    job(folder)
    inner = folder / "a.tar"
    for _ in range(5):
        with tarfile.open(folder / "b.tar", "w") as tar:
            if inner.exists():
                for number in range(4):
                    tar.add(inner, f"again{number}.log")
            for log in folder.glob("*.log"):
                tar.add(log, log.name)
        (folder / "b.tar").replace(inner)
    return inner


@read("leads out|it is a link|not a plain file", FAILED)
def a_tar_whose_members_are_no_logs(folder):
    job(folder)
    secret = folder / "secret"
    secret.write_text(traceback(0, "ValueError: the secret"))
    with tarfile.open(folder / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, link in (
            ("../rank_0.log", tarfile.REGTYPE, ""),
            (f"rank_4.log/../../{MARK}", tarfile.REGTYPE, ""),
            ("rank_5.log", tarfile.SYMTYPE, str(secret)),
            ("rank_6.log", tarfile.LNKTYPE, str(secret)),
            ("rank_7.log", tarfile.FIFOTYPE, ""),
            ("rank_8.log", tarfile.BLKTYPE, ""),
            ("rank_9.log", tarfile.GNUTYPE_SPARSE, ""),
            ("rank_10.log", tarfile.CONTTYPE, ""),
            ("d\x1b[2J/rank_11\n.log", tarfile.SYMTYPE, ""),
            ("x/" * 2000 + "rank_12.log", tarfile.REGTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mtime = kind, link, -1
            tar.addfile(info)
        for rank in range(4):
            info = tarfile.TarInfo(f"/{folder}/rank_{rank}.log")
            data = (folder / f"rank_{rank}.log").read_bytes()
            info.size, info.mtime = len(data), 1 << 40
            tar.addfile(info, io.BytesIO(data))
    return folder / "a.tar.gz"


@refused("impossible|not text|no log was found|damaged|invalid")
def a_tar_whose_extension_headers_lie(folder):
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("rank_0.log")
        info.pax_headers = {"size": "9" * 20, "mtime": "nan", "path": "\x00../x", "GNU.sparse.map": "1,2,3"}
        tar.addfile(info)
    return folder / "a.tar"


# Lines and characters.


@read()
def one_line_of_200_mb(folder):
    with (folder / "rank_0.log").open("wb") as file:
        for _ in range(200):
            file.write(b"a" * 1_000_000)
    return folder / "rank_0.log"


@read("longer than 256 MiB")
def a_log_with_a_hole_of_a_tebibyte(folder):
    (folder / "rank_0.log").write_text(STEPS * 100)
    os.truncate(folder / "rank_0.log", 1 << 40)
    return folder / "rank_0.log"


@read("", ("user-code-exception", 0))
def nuls_between_the_lines(folder):
    text = (STEPS + traceback(0, "IndexError: list index out of range")).replace("\n", "\n\0\0\0")
    (folder / "rank_0.log").write_text(text)
    return folder / "rank_0.log"


@refused("it is not text")
def utf_16_without_a_mark(folder):
    (folder / "rank_0.log").write_bytes(STEPS.encode("utf-16-le"))
    return folder / "rank_0.log"


@read()
def utf_16_with_half_a_character(folder):
    (folder / "rank_0.log").write_bytes(b"\xff\xfe" + (STEPS + "\ud83d").encode("utf-16-le", "surrogatepass") + b"\x00")
    return folder / "rank_0.log"


@read("", ("user-code-exception", 0))
def bytes_that_are_no_utf_8(folder):
    torn = bytes(range(128, 256)) + b"\xed\xa0\x80\xf4\x90\x80\x80\xc0\xaf\n"
    said = traceback(0, "IndexError: caf\udce9 \udcff list index").encode("utf-8", "surrogateescape")
    (folder / "rank_0.log").write_bytes(torn * 200 + said + torn)
    return folder / "rank_0.log"


@read("", ("user-code-exception", 0))
def lines_that_end_with_a_carriage_return_alone(folder):
    (folder / "rank_0.log").write_bytes(
        (STEPS + traceback(0, "IndexError: list index out of range")).replace("\n", "\r").encode()
    )
    return folder / "rank_0.log"


@read()
def nothing_but_carriage_returns(folder):
    (folder / "rank_0.log").write_bytes(b"\r" * (8 << 20))
    return folder / "rank_0.log"


@read()
def escapes_that_never_end(folder):
    for rank, bait in enumerate((b"\x1b[" + b"1;" * (1 << 20), b"\x1b]0;" + b"a" * (2 << 20), b"\x1b]" * (1 << 20))):
        (folder / f"rank_{rank}.log").write_bytes(STEPS.encode() + bait)
    (folder / "rank_3.log").write_bytes(b"\x1b" * (1 << 20) + b"\x9b31m" * 9999)
    return folder


@read()
def bait_for_expressions(folder):
    for number, bait in enumerate((
        " " * 1_000_000, "a" * 1_000_000, "[" * 500_000 + "]" * 500_000, "([{" * 200_000, "Xid" * 500_000,
        "NVRM: Xid (PCI:" * 50_000, "Error: " * 200_000, "[rank0]: " * 100_000, "[rank" * 200_000,
        "Traceback (most recent call last):\n" * 20_000, "  File \"" * 100_000, "12345:" * 200_000,
        "2026-12-01T" * 100_000, "it/s]" * 200_000, "[Rank 7" * 150_000, "=" * 1_000_000 + ":", "\t \t" * 300_000,
        "NCCL WARN " * 100_000, "=nan " * 200_000, "(pid=" * 200_000, "CUDA error: " * 100_000, "-" + "\n" * 99_999,
        "During handling of the above exception, another exception occurred:\n" * 10_000, "|" * 1_000_000,
        "JobId=" * 100_000, "JobID|State|\n" + "1|FAILED|\n" * 100_000, "oom-kill:constraint=" * 50_000,
    )):  # fmt: skip
        (folder / f"worker{number}.log").write_text(bait)
    return folder


@read("", FAILED)
def bait_in_every_part_of_a_job(folder):
    job(folder)
    for bait in (" " * 300_000, "a" * 300_000, "[" * 300_000, "x: " * 100_000):
        for log in folder.glob("*.log"):
            log.write_text(bait + "\n" + log.read_text())
    return folder


@read("", ("user-code-exception", 0))
def dates_far_away(folder):
    stamps = (
        "0000-00-00T00:00:00Z", "0001-01-01T00:00:00+99:99", "9999-12-31T23:59:59.999999999Z",
        "9999-12-31 23:59:59-99:99", "2026-02-31T25:61:61Z", "[1970-01-01T00:00:00.0Z",
        "I9999 99:99:9999999999.999999999 x", "-292277022399-01-01",
    )  # fmt: skip
    (folder / "rank_0.log").write_text(
        "".join(f"{stamp} INFO step {n}\n" for n, stamp in enumerate(stamps))
        + traceback(0, "IndexError: list index out of range")
    )
    (folder / "slurm.txt").write_text(
        "JobId=7 JobName=x\n JobState=FAILED StartTime=9999-12-31T23:59:59 EndTime=0000-00-00T00:00:00\n"
        " SubmitTime=1969-12-31T23:59:59 TimeLimit=99999-99999:99:99 NodeList=n[0-999999999] ExitCode=999:999\n"
    )
    return folder


# What is no file, and files that nobody can read.


@refused("it is a pipe")
def a_pipe(folder):
    os.mkfifo(folder / "rank_0.log")
    return folder / "rank_0.log"


@refused("No such device|it is a socket")
def a_socket(folder):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "rank_0.log"))
    return folder / "rank_0.log"


@refused("it is a device")
def an_endless_device(_):
    return Path("/dev/zero")


@refused("cannot be read")
def memory_of_a_process(_):
    return Path("/proc/self/mem")


@refused("symbolic links")
def a_link_to_itself(folder):
    (folder / "rank_0.log").symlink_to("rank_0.log")
    return folder / "rank_0.log"


@read("it is a link", FAILED)
def a_directory_that_links_to_itself(folder):
    (folder / "again").symlink_to(folder)
    return job(folder)


@refused("No such file")
def a_link_to_nothing(folder):
    (folder / "rank_0.log").symlink_to(folder / "gone")
    return folder / "rank_0.log"


@refused("Permission denied")
def a_file_without_read_access(folder):
    (folder / "rank_0.log").write_text(STEPS)
    (folder / "rank_0.log").chmod(0)
    return folder / "rank_0.log"


@read("Permission denied", FAILED)
def a_file_without_read_access_beside_a_failure(folder):
    job(folder)
    (folder / "rank_1.log").chmod(0)
    (folder / "inner").mkdir(mode=0)
    return folder


@refused("Permission denied")
def a_file_in_a_directory_without_access(folder):
    (folder / "inner").mkdir(mode=0)
    return folder / "inner" / "rank_0.log"


@refused("name too long")
def a_name_that_is_too_long(folder):
    return folder / ("a" * 5000)


@refused("there is no file or directory")
def a_name_below_a_file(folder):
    return job(folder) / "rank_0.log" / "rank_1.log"


@refused("an empty name")
def a_name_of_no_character(_):
    return [""]


@refused("is not a job id", 2)
def a_job_id_that_is_none(folder):
    return ["--job-id", "abc\x1b[2J", str(job(folder))]


@read()
def an_empty_file(folder):
    (folder / "rank_0.log").touch()
    return folder / "rank_0.log"


@refused("no log was found")
def an_empty_directory(folder):
    return folder


@read("", FAILED)
def ten_thousand_empty_files(folder):
    for number in range(10_000):
        (folder / f"{number:05}x.log").touch()
    return job(folder)


@read()
def three_thousand_silent_ranks(folder):
    for rank in range(3000):
        (folder / f"rank_{rank}.log").touch()
    return folder


@read("", FAILED)
def names_with_line_ends_and_escapes(folder):
    inner = folder / "a\n\x1b]0;owned\x07\x1b[2J\u202e"
    inner.mkdir()
    job(inner)
    for name in (b"x\xff\xfe\n.log", b"a" * 251 + b".log", b"\x1b[31m.log", b"-rf.log", b"$(touch executed).log"):
        (inner / os.fsdecode(name)).write_text(STEPS)
    return inner


@refused("there is no file or directory")
def a_missing_name_with_line_ends_and_escapes(folder):
    return folder / "a\n\x1b[2J\udcff"


# Dumps of the flight recorder.


def recorder() -> Recorder:
    found = Recorder({ALL: [0, 1]})
    for number in range(4):
        found.call(number, done=number < 3)
    return found


class _Payload:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self._mark}",)


@read("more than plain data", FAILED)
def a_pickle_that_would_run_a_command(folder):
    job(folder)
    for name, protocol in (("nccl_trace_rank_0", 2), ("nccl_trace_rank_1", 4), ("rank_3.pkl", 0)):
        content = {"entries": [], "pg_config": _Payload(folder / MARK)}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    return folder


@read("no flight recorder's dump", FAILED)
def pickles_that_claim_more_than_they_hold(folder):
    job(folder)
    for rank, data in enumerate((
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", b"\x80\x02}j\xff\xff\xff\xff.", b"\x80\x02" + b"(" * 5000,
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", recorder().pickle()[:-100], b"\x80\x05.", b"",
        b"\x80\x02}X\x07\x00\x00\x00entriesK\x01s.", b"\x80\x04\x95" + b"\xff" * 8 + b"}.",
    )):  # fmt: skip
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder


def _doubled(times: int) -> list:
    """Return a list that takes little memory and whose text would fill any."""
    found: list = ["x" * 100]
    for _ in range(times):
        found = [found, found]
    return found


@read("", FAILED)
def pickles_whose_text_would_fill_the_memory(folder):
    job(folder)
    for rank, change in enumerate(("process_group", "pg_id", "input_dtypes", "input_sizes", "profiling_name", "state")):
        found = recorder()
        found.groups = {ALL: [0, 1, 2, 3]}
        for entry in found.entries:
            entry[change] = _doubled(40)
            if change == "pg_id":
                entry["process_group"] = None
        (folder / f"nccl_trace_rank_{rank}").write_bytes(found.pickle())
    return folder


@read("no flight recorder's dump", FAILED)
def json_that_is_nested_without_end(folder):
    job(folder)
    (folder / "nccl_trace_rank_0.json").write_text('{"entries": ' + "[" * 500_000)
    (folder / "nccl_trace_rank_1.json").write_text('{"pg_config": ' + '{"a":' * 200_000)
    (folder / "rank_3.json").write_text('{"pg_status": 1, "entries": ' + "[" * 90_000 + "]" * 90_000 + "}")
    return folder


@read()
def json_with_numbers_beyond_all_bounds(folder):
    for rank, number in enumerate(("1" + "0" * 5000, "NaN", "-Infinity", "1e999", "9" * 400, "-1", str(1 << 70))):
        text = json.dumps(recorder().dump())
        for key in ("collective_seq_id", "record_id", "time_created_ns", "op_id"):
            text = text.replace(f'"{key}": ', f'"{key}": {number}, "was_{key}": ')
        text = text.replace("[[16]]", f"[[{number}]]").replace('"ranks": "[0, 1]"', f'"ranks": [{number}]')
        (folder / f"nccl_trace_rank_{rank}.json").write_text(text)
    (folder / "train.log").write_text(STEPS)
    return folder


@read()
def a_dump_of_a_rank_that_cannot_be(folder):
    (folder / "nccl_trace_rank_999999").write_bytes(recorder().pickle())
    (folder / "train.log").write_text(STEPS)
    return folder


@read("more than 131072 ranks", FAILED)
def a_pickle_of_groups_that_share_a_million_ranks(folder):
    job(folder)
    found = recorder().dump()
    ranks = [0] * (1 << 20)
    found["pg_config"] = {str(n): {"name": str(n), "desc": "", "ranks": ranks} for n in range(128)}
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(found, protocol=2))
    return folder


# Spools.


def spool(folder: Path) -> tuple[Spool, Path, Path]:
    """Write the spool of a job whose rank 1, on n2, raised."""
    box = Spool(folder / "spool")
    runs = box.run("n1"), box.run("n2")
    for rank, run in enumerate(runs):
        said = (closed(0) if rank == 0 else traceback(1, "IndexError: list index out of range")).encode()
        data = STEPS.encode() + said
        streams = run / "user" / "streams"
        (streams / f"0.{rank}.err").write_bytes(data)
        (streams / f"0.{rank}.err.idx").write_text(
            f"0 {1000 * S} 5\n{len(STEPS)} {1010 * S - rank * S} {10 * S - rank * S}\nend {len(data)} eof\n"
        )
        box.claim(
            run,
            {"event": "start", "rank": rank, "pid": 40 + rank, "command": "python train.py", "world": 2},
            {"event": "end", "rank": rank, "exit_code": 1, "realtime_ns": (1011 - rank) * S, "raw_ns": (11 - rank) * S},
        )
    return box, *runs


RAISED = ("user-code-exception", 1)


@read("is not a whole JSON object", RAISED)
def a_spool_whose_other_node_has_a_broken_meta(folder):
    box, first, _ = spool(folder)
    (first / "meta.json").write_bytes(b'{"format": 1, "node": "n1", "job')
    return box.root


@read("is not a whole JSON object", RAISED)
def a_run_directory_with_a_broken_meta(folder):
    _, _, second = spool(folder)
    (second / "meta.json").write_bytes(b"[" * 300_000)
    return second


@read("", RAISED)
def a_meta_of_nothing_that_can_be(folder):
    box, first, _ = spool(folder)
    meta = json.loads((first / "meta.json").read_text())
    meta |= {
        "gpus": [None, {"index": 1 << 90}], "uid": 1e308, "opened_ns": -(1 << 62), "boot_id": ["x"], "user": {},
        "nodelist": "n[0-999999999],n2[", "job_gpus": [[[]]], "restart": float("nan"), "slurm_version": "\x1b[2J",
    }  # fmt: skip
    (first / "meta.json").write_text(json.dumps(meta))
    return box.root


@read("name no task", RAISED)
def claims_of_negative_and_monstrous_ranks(folder):
    box, first, second = spool(folder)
    for rank in (-1, -(1 << 62), 1 << 62, 1 << 70, 10**9, True, "1", 1.0, None, [0]):
        box.claim(first, {"event": "start", "rank": rank}, {"event": "end", "rank": rank, "exit_code": 1})
    box.claim(second, {"event": "start", "rank": 99_999, "world": 100_000}, '{"event": "end", "rank": NaN}', "{" * 9000)
    for name in ("0.-1.err", "0.9999999.err", "0.999999.err", "..err", "0.1.err.idx.idx"):
        (first / "user" / "streams" / name).write_text(STEPS)
    return box.root


@read("", RAISED)
def indices_that_run_backwards_and_beyond(folder):
    box, first, second = spool(folder)
    streams = first / "user" / "streams"
    (streams / "0.0.err.idx").write_text(f"900000000 {1000 * S} 5\n0 {1 << 62} 7\n5 -1 -1\nend 99999999 eof\n")
    (streams / "0.0.out").write_text(STEPS)
    (streams / "0.0.out.idx").write_text(f"0 {'9' * 30} 1\n10 {'9' * 19} {'9' * 19}\nend 5 eof\n")
    (streams / "0.0.out.tail0").write_bytes(b"tail\n" * 100)
    (streams / "batch.out").write_text(STEPS)
    (streams / "batch.out.idx").write_text(
        "cut -5 -1\ncut 5 99999999999\ncut 1 2\ntail 0 -99\ntail x y\n1 2 3 4\nend end end\n"
    )
    (second / "user" / "streams" / "0.1.out").write_text(STEPS)
    (second / "user" / "streams" / "0.1.out.idx").write_bytes(os.urandom(5000))
    return box.root


@read("", RAISED)
def an_index_of_times_beyond_all_dates(folder):
    box, _, second = spool(folder)
    index = second / "user" / "streams" / "0.1.err.idx"
    index.write_text(f"0 {'9' * 18} {'9' * 18}\n{len(STEPS)} {'9' * 28} {'9' * 28}\nend {len(STEPS) + 900} eof\n")
    return box.root


@read("", RAISED)
def clock_samples_of_nothing_that_can_be(folder):
    box, *both = spool(folder)
    most = (1 << 63) - 1
    for run in both:
        lines(run / "clock.jsonl", *(
            {"method": "sntp", "reference": "x", "lo_ns": low, "hi_ns": high, "realtime_ns": real, "raw_ns": raw}
            for low, high, real, raw in (
                (-most, most, most, -most), (most, most, -most, most), (0, -1, 0, 0), (-most, -most, 0, most),
                (1, 2, 3, 4), (most, most, most, most), (float("nan"), 1e999, 1, 1),
            )
        ))  # fmt: skip
    return box.root


@read("1 earlier runs of this job were not read")
def two_nodes_of_one_name(folder):
    box, first, second = spool(folder)
    for run, name in ((first, "n2"), (second, "n2")):
        meta = json.loads((run / "meta.json").read_text())
        (run / "meta.json").write_text(json.dumps(meta | {"node": name}))
    return box.root


@read("", RAISED)
def a_spool_full_of_what_is_no_file(folder):
    box, first, second = spool(folder)
    os.mkfifo(first / "kernel.jsonl")
    (first / "clock.jsonl").mkdir()
    (first / "gaps.jsonl").symlink_to("/dev/zero")
    (second / "user" / "fr").symlink_to("/proc")
    (second / "user" / "streams" / "0.0.err").symlink_to("/etc/passwd")
    (second / "tasks.jsonl").symlink_to("tasks.jsonl")
    return box.root


def _bounded() -> None:
    """Bound the command, and let file modes bind it also where the tests are root's."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for capability in _BEYOND_MODES:
        LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0)


LIBC = ctypes.CDLL(None)


def _diagnosed(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "denpex", "diagnose", "--json", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=MOST_S,
        preexec_fn=_bounded,
        cwd=folder,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "in"
    place.mkdir()
    yield place
    for inner in place.rglob("*"):  # pytest keeps the last folders, which need not be large
        if inner.is_dir() and not inner.is_symlink():
            inner.chmod(0o700)
    shutil.rmtree(place)


@pytest.mark.parametrize("name", CASES)
def test_what_is_hostile_ends_with_a_verdict_or_a_sentence(folder, tmp_path, name):
    case = CASES[name]
    made = case.make(folder)
    before = set(tmp_path.rglob("*"))
    done = _diagnosed(made if isinstance(made, list) else [str(made)], tmp_path)
    assert "Traceback (most recent" not in done.stderr, done.stderr
    assert done.returncode == case.status, done.stderr or done.stdout
    assert set(tmp_path.rglob("*")) == before
    if case.status:
        _is_a_sentence(done, case.says)
    else:
        assert done.stderr == ""
        _is_honest(done.stdout, case)


def _is_a_sentence(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.stdout == ""
    assert done.stderr.startswith("denpex diagnose: ")
    assert done.stderr.endswith("\n")
    assert done.stderr[:-1].isprintable(), done.stderr
    assert len(done.stderr) < 2000
    assert any(word in done.stderr for word in says.split("|")), done.stderr


def _is_honest(text: str, case: Case) -> None:
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in the verdict"))
    gaps = " ".join(gap["what"] for gap in document["gaps"])
    assert any(word in gaps for word in case.says.split("|")), gaps
    assert 0 <= document["confidence"] <= 1
    named = document["origin"] and document["origin"]["rank"]
    if case.truth is None:
        assert named is None, document["summary"]
        assert not document["origins"], document["summary"]
        assert document["failure_class"] in ("unknown", "no-failure"), document["summary"]
    else:
        assert (document["failure_class"], named) == case.truth, document["summary"]
    shown = terminal.report(document, color=False, width=80)
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert len(shown) < 100_000
