"""`denpex run`: what the command sees and what its caller sees is what they would see without it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# As hooks/srun starts it on a node.
START = (
    "import os, sys; sys.path.insert(0, sys.argv.pop(1)); from denpex.node import run; os._exit(run.main(sys.argv[1:]))"
)


class Node:
    """A node's spool with one open run, and tasks that are started in it."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.run_directory = place / "spool" / "7.0.1"
        self.user = self.run_directory / "user"
        (self.user / "streams").mkdir(parents=True)
        (place / "run" / "jobs").mkdir(parents=True)
        (place / "run" / "jobs" / "7").write_text(f"{self.run_directory}\n")
        self.configure(place, **settings)
        self.environment = {
            "PATH": os.environ["PATH"], "DENPEX_ETC": str(place), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURMD_NODENAME": "n2",
            "CUDA_VISIBLE_DEVICES": "0,1",
        }  # fmt: skip

    def configure(self, place: Path, **settings: Any) -> None:
        written = {"run_dir": str(place / "run"), "spool_min_free": 1, **settings}
        (place / "node.json").write_text(json.dumps(written))

    def words(self, *command: str) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", START, str(ROOT), "--", *command]

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"env": self.environment, "capture_output": True, "timeout": 30, "check": False} | options
        return subprocess.run(self.words(*command), **options)

    def start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self.words(*command), **{"env": self.environment} | options)
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def stream(self, name: str = "0.3.out") -> bytes:
        return (self.user / "streams" / name).read_bytes()

    def claims(self, event: str = "") -> list[dict[str, Any]]:
        path = self.user / "claims.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if event in ("", line["event"])]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def wait_for(what: Callable[[], Any], seconds: float = 10) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def test_bytes_pass_and_are_kept_exactly(node: Node, tmp_path: Path) -> None:
    data = os.urandom(5_000_000)
    (tmp_path / "data").write_bytes(data)
    done = node.run("cat", str(tmp_path / "data"))
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()
    assert node.stream() == data
    assert node.stream("0.3.out.idx").endswith(b"end 5000000 eof\n")
    assert node.stream("0.3.err.idx") == b"end 0 eof\n"


def test_each_read_has_its_receive_time(node: Node) -> None:
    before = time.time_ns()
    node.run("sh", "-c", "echo one; sleep 0.3; echo two")
    first, second, end = node.stream("0.3.out.idx").decode().splitlines()
    assert (first.split()[0], second.split()[0], end) == ("0", "4", "end 8 eof")
    at = [[int(word) for word in line.split()[1:]] for line in (first, second)]
    assert before <= at[0][0] < at[1][0] <= time.time_ns()
    assert 0.28e9 < at[1][1] - at[0][1] < 5e9


def test_standard_input_is_the_commands(node: Node) -> None:
    assert node.run("cat", input=b"hi\n").stdout == b"hi\n"


def test_the_start_and_the_end_are_stated(node: Node) -> None:
    node.run("sh", "-c", "exit 3")
    start, end = node.claims()
    expected = {
        "event": "start", "step": "0", "rank": 3, "node": "n2", "local_rank": 1, "world": 4, "gpus": ["0", "1"],
        "command": "sh -c exit 3", "tty": False,
    }  # fmt: skip
    assert expected.items() <= start.items()
    assert start["pid"] != start["wrapper_pid"]
    assert {"event": "end", "exit_code": 3, "signal": None, "core": False}.items() <= end.items()
    assert start["realtime_ns"] < end["realtime_ns"]
    assert start["raw_ns"] < end["raw_ns"]


@pytest.mark.parametrize("code", [0, 1, 7, 126, 255])
def test_the_exit_code_is_the_commands(node: Node, code: int) -> None:
    assert node.run("sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "ABRT", "USR1", "PIPE", "INT", "HUP"])
def test_a_death_by_signal_is_passed_up_as_one(node: Node, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    # What nohup or a shell's "&" has ignored stays ignored in all that the tests start.
    was = None if name == "KILL" else signal.signal(number, signal.SIG_DFL)
    try:
        assert node.run("sh", "-c", f"kill -{name} $$").returncode == -number
    finally:
        if was is not None:
            signal.signal(number, was)
    assert node.claims("end")[0]["signal"] == signal.Signals[f"SIG{name}"]


def test_a_program_that_is_not_there_ends_with_errno_as_under_slurmstepd_and_is_captured(node: Node) -> None:
    done = node.run("/nonexistent/program")
    assert done.returncode == 2
    assert done.stderr == b"denpex run: /nonexistent/program: No such file or directory\n"
    assert node.stream("0.3.err") == done.stderr
    assert node.run("/etc/passwd").returncode == 13


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGRTMIN])
def test_a_signal_is_passed_on_once_and_stated(node: Node, number: int) -> None:
    script = (
        "import os, signal, time\n"
        f"signal.signal({int(number)}, lambda *_: os.write(1, b'got it\\n'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(0.3); time.sleep(0.1)"
    )
    process = node.start(sys.executable, "-c", script, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.stdout.read() == b"got it\n"
    assert process.wait(10) == 0
    assert [claim["signal"] for claim in node.claims("signal")] == [number]


def test_a_stopped_command_is_stated_as_stopped_and_then_as_going_on(node: Node) -> None:
    process = node.start("sleep", "30")
    pid = wait_for(lambda: node.claims("start"))[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: [claim["state"] for claim in node.claims("state")] == ["T"])
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: len(node.claims("state")) == 2)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL


def test_one_file_for_output_and_error_keeps_their_order(node: Node, tmp_path: Path) -> None:
    script = "for i in $(seq 200); do echo out $i; echo err $i >&2; done"
    with (tmp_path / "both").open("wb") as both:
        node.run("sh", "-c", script, capture_output=False, stdout=both, stderr=subprocess.STDOUT)
    expected = "".join(f"out {i}\nerr {i}\n" for i in range(1, 201)).encode()
    assert (tmp_path / "both").read_bytes() == expected
    assert node.stream() == expected
    assert not (node.user / "streams" / "0.3.err").exists()


def test_a_reader_that_leaves_ends_the_command_by_sigpipe(node: Node) -> None:
    process = node.start("yes", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    assert process.wait(10) == -signal.SIGPIPE
    assert b"end" not in node.stream("0.3.out.idx")


def test_an_output_on_a_full_disk_neither_ends_the_command_nor_the_capture(node: Node) -> None:
    with open("/dev/full", "wb") as full:
        done = node.run("sh", "-c", "echo one; sleep 0.1; echo two; exit 5", capture_output=False, stdout=full)
    assert done.returncode == 5
    assert node.stream() == b"one\ntwo\n"
    assert "No space left" in node.claims("gap")[0]["what"]


def test_a_slow_reader_gets_every_byte_after_the_commands_end(node: Node) -> None:
    process = node.start("head", "-c", "3000000", "/dev/zero", stdout=subprocess.PIPE)
    assert process.stdout is not None
    time.sleep(0.9)  # longer than what is silent is waited for
    assert process.poll() is None
    assert len(process.stdout.read()) == 3_000_000
    assert process.wait(10) == 0


def test_what_the_command_leaves_behind_delays_nothing_and_loses_nothing(node: Node) -> None:
    process = node.start("sh", "-c", "(sleep 1.5; echo late; echo later) & echo early; exit 4", stdout=subprocess.PIPE)
    began = time.monotonic()
    assert process.wait(10) == 4
    assert time.monotonic() - began < 1.4
    assert process.stdout is not None
    assert process.stdout.read() == b"early\nlate\nlater\n"
    wait_for(lambda: b"end 17 eof" in node.stream("0.3.out.idx"))
    assert node.stream() == b"early\nlate\nlater\n"


def test_beyond_the_limit_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    from denpex.ingest import streams
    from denpex.ingest.tree import file_at

    node = Node(tmp_path, capture_max_task=40_000)
    script = "for i in range(20_000): print('line', i, flush=i % 50 == 0)"
    whole = node.run(sys.executable, "-c", script).stdout
    folder = node.user / "streams"
    assert sum(path.stat().st_size for path in folder.glob("*.out*") if path.suffix != ".idx") <= 40_000
    tails = {n: blob for n in (0, 1) if (blob := file_at(folder, f"0.3.out.tail{n}")) is not None}
    head, index = file_at(folder, "0.3.out"), file_at(folder, "0.3.out.idx")
    assert head is not None
    assert index is not None
    kept = streams.assemble(head, index, tails)
    ends = [at for at, _ in kept.pieces[1:]] + [len(kept.data)]
    for (at, offset), end in zip(kept.pieces, ends, strict=True):
        assert kept.data[at:end] == whole[offset : offset + end - at]
    assert kept.data.endswith(b"line 19999\n")
    assert kept.data.startswith(b"line 0\n")
    notes = [line for line in index.read(1 << 20).data.splitlines() if line[:1].isdigit()]
    assert len(notes) < 400  # those of forgotten bytes are gone: the program wrote 400 times, mostly in the middle
    assert index.read(1 << 20).data.endswith(f"end {len(whole)} eof\n".encode())


def test_a_spool_that_cannot_be_written_changes_nothing(node: Node) -> None:
    (node.user / "streams").rmdir()
    done = node.run("sh", "-c", "echo fine; exit 6")
    assert (done.stdout, done.stderr, done.returncode) == (b"fine\n", b"", 6)
    assert "not captured" in node.claims("gap")[0]["what"]


def test_a_spool_that_fills_up_changes_nothing(node: Node) -> None:
    # A limit on file sizes stands for the full disk: writing fails in the middle.
    script = 'ulimit -f 64; exec "$@"'
    command = node.words("sh", "-c", "ulimit -f unlimited 2>/dev/null; head -c 1000000 /dev/zero; exit 2")
    done = subprocess.run(["bash", "-c", script, "x", *command], env=node.environment, capture_output=True, timeout=30)
    assert (len(done.stdout), done.returncode) == (1_000_000, 2)
    assert "cannot be written" in node.claims("gap")[0]["what"]


def test_a_failed_task_states_which_disks_are_full(node: Node) -> None:
    from denpex.node import disks

    node.run("sh", "-c", "exit 1")
    assert [claim["mount"] for claim in node.claims("disk-full")] == disks.full()


def test_a_disk_without_room_is_left_alone(node: Node, tmp_path: Path) -> None:
    node.configure(tmp_path, spool_min_free=1 << 60)
    assert node.run("echo", "fine").stdout == b"fine\n"
    assert list((node.user / "streams").iterdir()) == []
    assert "spool_min_free" in node.claims("gap")[0]["what"]


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_ID": "8"}, {"SLURM_JOB_ID": "../7"}, {"SLURM_STEP_ID": "../../x"}, {"SLURM_PROCID": "x"},
        {"DENPEX_DISABLE": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_without_an_open_run_the_command_runs_alone(node: Node, change: dict[str, str]) -> None:
    done = node.run("sh", "-c", "echo $DENPEX_TASK$TORCH_FR_BUFFER_SIZE; exit 9", env=node.environment | change)
    assert (done.stdout, done.stderr, done.returncode) == (b"\n", b"", 9)
    assert node.claims() == []
    assert not (node.user / "fr").exists()


def recorder(prefix: Path) -> dict[str, str]:
    """Return the flight recorder's settings of a captured task."""
    return {
        "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(prefix), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(prefix),
    }  # fmt: skip


def environment(node: Node, **more: str) -> dict[str, str]:
    """Return what a captured task sees."""
    lines = node.run("/usr/bin/env", env=node.environment | more).stdout.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_only_a_mark_the_fault_handler_and_the_flight_recorder_are_added_to_the_environment(node: Node) -> None:
    added = {"DENPEX_TASK": "7.0.3", "PYTHONFAULTHANDLER": "1", **recorder(node.user / "fr" / "0.rank_")}
    seen = dict(line.split("=", 1) for line in node.run("/usr/bin/env").stdout.decode().splitlines())
    assert seen == node.environment | added
    chosen = node.environment | {"PYTHONFAULTHANDLER": ""}
    assert b"PYTHONFAULTHANDLER=\n" in node.run("/usr/bin/env", env=chosen).stdout


def test_the_flight_recorder_dumps_into_the_run_of_the_step(node: Node) -> None:
    seen = environment(node, SLURM_STEP_ID="12")
    Path(seen["TORCH_FR_DUMP_TEMP_FILE"] + "3").write_bytes(b"")
    assert (node.user / "fr" / "12.rank_3").exists()
    assert (node.user / "fr").stat().st_mode & 0o777 == 0o700
    assert (node.user / "fr").stat().st_uid == os.getuid()


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, ["TORCH_FR_BUFFER_SIZE"]),
        ({"TORCH_FR_BUFFER_SIZE": "9"}, ["TORCH_NCCL_TRACE_BUFFER_SIZE"]),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/x/y"}, ["TORCH_FR_DUMP_TEMP_FILE"]),
        ({"TORCH_FR_DUMP_TEMP_FILE": ""}, ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, []),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_user_has_set_of_the_recorder_stays(node: Node, chosen: dict[str, str], left: list[str]) -> None:
    """Of two names for one setting the first counts: with the other one set, it stays unset."""
    expected = {name: value for name, value in recorder(node.user / "fr" / "0.rank_").items() if name not in left}
    seen = environment(node, **chosen)
    assert {name: value for name, value in seen.items() if name.startswith("TORCH_")} == expected | chosen


def test_a_step_of_a_captured_script_dumps_into_its_own_node_and_step(node: Node) -> None:
    seen = environment(node, **recorder(Path("/var/spool/denpex/c/n1/7.0.1/user/fr/batch.rank_")))
    assert seen["TORCH_FR_DUMP_TEMP_FILE"] == str(node.user / "fr" / "0.rank_")


def test_where_the_recorders_directory_cannot_be_made_nothing_is_set(node: Node) -> None:
    (node.user / "fr").write_bytes(b"")
    assert not [name for name in environment(node) if name.startswith("TORCH_")]


def test_inside_a_captured_task_nothing_is_captured_twice(node: Node) -> None:
    inner = node.words("echo", "once")
    assert node.run(*inner).stdout == b"once\n"
    assert len(node.claims("start")) == 1


def test_a_second_command_of_one_batch_script_gets_files_of_its_own(node: Node) -> None:
    environment = {name: value for name, value in node.environment.items() if name != "SLURM_STEP_ID"}
    node.run("echo", "first", env=environment | {"SLURM_PROCID": "0"})
    node.run("echo", "second", env=environment | {"SLURM_PROCID": "0"})
    assert node.stream("batch.0.out") == b"first\n"
    assert node.stream("batch-1.0.out") == b"second\n"
    assert [(claim["step"], claim["world"]) for claim in node.claims("start")] == [("batch", 1), ("batch-1", 1)]


def test_inherited_signal_settings_reach_the_command(node: Node) -> None:
    script = "trap '' HUP CHLD; exec \"$@\""
    show = "grep -E 'SigIgn|SigBlk' /proc/self/status"
    plain = subprocess.run(["bash", "-c", script, "x", "sh", "-c", show], capture_output=True).stdout
    words = ["bash", "-c", script, "x", *node.words("sh", "-c", f"{show}; exit 3")]
    done = subprocess.run(words, env=node.environment, capture_output=True, timeout=30)
    assert (done.stdout, done.returncode) == (plain, 3)


def test_closed_descriptors_stay_closed(node: Node) -> None:
    words = ["bash", "-c", 'exec "$@" <&- 2>&-', "x", *node.words("sh", "-c", "ls /proc/self/fd | head -n 1; exit 3")]
    done = subprocess.run(words, env=node.environment, capture_output=True, timeout=30)
    assert done.returncode == 3
    assert node.stream()  # ls itself opened the directory as 0
    assert not (node.user / "streams" / "0.3.err").exists()


def test_inherited_descriptors_reach_the_command(node: Node) -> None:
    # PMI passes one (PMI_FD).
    read, write = os.pipe()
    node.run("bash", "-c", f"echo through >&{write}", pass_fds=[write])
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"through\n"


# A shell with job control: runs its arguments in the foreground; when they stop, says so and has them go on.
SHELL = """
import os, signal, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    time.sleep(0.2)
    os.execvp(sys.argv[1], sys.argv[1:])
os.setpgid(pid, pid)
os.tcsetpgrp(0, pid)
status = os.waitpid(pid, os.WUNTRACED)[1]
if os.WIFSTOPPED(status):
    os.write(1, b"stopped\\n")
    os.killpg(pid, signal.SIGCONT)
    status = os.waitpid(pid, 0)[1]
sys.exit(os.waitstatus_to_exitcode(status))
"""


def terminal(node: Node, *command: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a task at a terminal of 33 lines and 101 columns; return it and the terminal's other end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    words = ["setsid", "--ctty", sys.executable, "-c", SHELL, *node.words(*command)]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=node.environment)
    node.started.append(process)
    os.close(theirs)
    return process, ours


def read_until(fd: int, text: bytes) -> bytes:
    data = b""
    while text not in data:
        assert select.select([fd], [], [], 10)[0], data
        data += os.read(fd, 4096)
    return data


def test_at_a_terminal_the_command_has_a_terminal_of_the_same_size_that_follows_it(node: Node) -> None:
    script = (
        "import os, signal, time\n"
        "show = lambda *_: os.write(1, b'%d %d %d %d\\n' % (os.isatty(1), os.isatty(2), *os.get_terminal_size(1)))\n"
        "signal.signal(signal.SIGWINCH, show); show(); time.sleep(0.3); time.sleep(0.3); time.sleep(0.3)"
    )
    process, ours = terminal(node, sys.executable, "-c", script)
    assert b"1 1 101 33\r\n" in read_until(ours, b"\n")
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
    read_until(ours, b"1 1 60 20\r\n")
    assert process.wait(10) == 0
    os.close(ours)
    assert node.claims("start")[0]["tty"] is True
    assert b"1 1 101 33\n" in node.stream()
    assert b"\r" not in node.stream()


def test_ctrl_c_arrives_once(node: Node) -> None:
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'interrupt\\n'))\n"
        "print('ready', flush=True); time.sleep(0.3); time.sleep(0.3); print('end', flush=True)"
    )
    process, ours = terminal(node, sys.executable, "-c", script)
    read_until(ours, b"ready")
    os.write(ours, b"\x03")
    assert read_until(ours, b"end").count(b"interrupt") == 1
    assert process.wait(10) == 0
    os.close(ours)


def test_ctrl_z_stops_both_and_both_go_on(node: Node) -> None:
    script = "import sys, time; print('ready', flush=True); time.sleep(0.5); print('end', flush=True); sys.exit(3)"
    process, ours = terminal(node, sys.executable, "-c", script)
    read_until(ours, b"ready")
    os.write(ours, b"\x1a")
    assert b"stopped" in read_until(ours, b"end")
    assert process.wait(10) == 3
    os.close(ours)
    assert node.claims("state")[0]["state"] == "T"


def test_a_script_that_is_not_executable_runs_under_the_python_on_path(node: Node, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    done = node.run(str(tmp_path / "train.py"), "--lr", "1")
    assert done.stdout == b"['--lr', '1']\n"


def test_a_program_in_the_working_directory_is_found_as_srun_finds_it(node: Node, tmp_path: Path) -> None:
    (tmp_path / "prog").write_text("#!/bin/sh\necho here\n")
    (tmp_path / "prog").chmod(0o755)
    assert node.run("prog", cwd=tmp_path).stdout == b"here\n"


def test_hostile_words_and_environments_pass(node: Node) -> None:
    words = [b"a b", b"\n", b"\xff\xfe", b"--", b"-n", b"'\"$(x)", b"*"]
    script = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    command = [os.fsencode(word) for word in node.words(sys.executable, "-c", script)] + words
    environment = {os.fsencode(k): os.fsencode(v) for k, v in node.environment.items()} | {b"ODD": b"\xff"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=30)
    assert done.stdout == b"\0".join(words)
    assert "\ufffd" in node.claims("start")[0]["command"]


OUTSIDE = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def outside(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = OUTSIDE | {"XDG_STATE_HOME": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-m", "denpex", "run", *words],
        env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip


def test_outside_slurm_a_run_is_kept_with_its_seal(tmp_path: Path) -> None:
    done = outside(tmp_path, "--", "echo", "fine")
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
    (run,) = (tmp_path / "denpex" / "runs" / "local").glob("*/0.0.*")
    assert {path.name for path in run.iterdir()} >= {"meta.json", "DONE", "user"}
    assert (run / "user" / "streams" / "local.0.out").read_text() == "fine\n"
    assert (run.stat().st_mode & 0o777) == 0o700


def test_outside_slurm_the_last_twenty_runs_are_kept(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / "local" / os.uname().nodename.split(".")[0] / f"0.0.{number}").mkdir(parents=True)
    outside(tmp_path, "--spool", str(tmp_path), "--", "true")
    assert len(list((tmp_path / "local").glob("*/0.0.*"))) == 20


def test_outside_slurm_a_failure_explains_itself_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise IndexError('list index out of range')\n")
    done = outside(tmp_path, "--", "train.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "IndexError: list index out of range" in done.stderr
    assert "ml_numerical/" in done.stderr
    assert "IndexError" in outside(tmp_path, "--no-verdict", "--", "train.py").stderr


def test_outside_slurm_a_command_that_cannot_start_ends_as_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    done = outside(tmp_path, "--no-verdict", "--", "no-such-command-here")
    assert (done.returncode, done.stderr) == (127, "denpex run: no-such-command-here: No such file or directory\n")
    assert outside(tmp_path, "--no-verdict", "--", "./data").returncode == 126


def test_outside_slurm_a_place_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = outside(tmp_path, "--spool", str(tmp_path / "file"), "--", "sh", "-c", "echo fine; exit 3")
    assert (done.stdout, done.returncode) == ("fine\n", 3)
    assert "nothing is captured" in done.stderr


def test_denpex_disable_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OUTSIDE, "DENPEX_DISABLE", "1")
    assert outside(tmp_path, "--", "echo", "x").stdout == "x\n"
    assert list(tmp_path.iterdir()) == []


def test_the_usage_is_shown_for_what_is_not_understood(tmp_path: Path) -> None:
    assert outside(tmp_path, "--frobnicate", "--", "true").returncode == 2
    assert outside(tmp_path).returncode == 2
    assert outside(tmp_path, "--help").stdout.startswith("usage: denpex run")


def test_the_start_costs_less_than_60_ms_of_processor_time(node: Node) -> None:
    def once(words: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, env=node.environment, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    plain = min(once(["/bin/true"]) for _ in range(5))
    # One undisturbed start is enough: other work on the machine only adds.
    assert any(once(node.words("/bin/true")) - plain < 0.06 for _ in range(30))
