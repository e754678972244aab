"""Says, rank by rank and with real timing, what a job on GPUs would say; what it says stands in the fault's file.

Every rank prints healthy steps until the plan's step. The origin then tells the others that it happened, so that each
rank's lines come with their delays after that moment, each by its own node's clock.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import time
from pathlib import Path
from string import Template
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from task import Task

STEP_SECONDS = 0.04
BUS_OF_FIRST_GPU = 0x3B  # tests/native/nvml_stub.c


def glog() -> str:
    """Return the time as torch's C++ log lines begin with it."""
    now = time.time()
    return time.strftime("%m%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e9):09d}"


def fields(task: Task, step: int) -> dict[str, object]:
    """Return what the fault's texts may name."""
    return {
        "rank": task.rank, "world": task.world, "local": task.local_rank, "host": socket.gethostname(),
        "pid": os.getpid(), "step": step, "seq": 40 + 3 * step, "next": 41 + 3 * step, "glog": glog(),
        "now": time.strftime("%Y-%m-%d %H:%M:%S"), "device": task.local_rank, "origin": task.plan["rank"],
        "bus": f"{BUS_OF_FIRST_GPU + task.gpu():02x}",
    }  # fmt: skip


def dump(task: Task, last: int, odd: int) -> None:
    """Write what torch's flight recorder of this rank would hold when a watchdog dumps it.

    ``last``: the number of its last collective; ``odd``: how many elements more its last one has than it should. The
    format is that of torch 2.13 (a pickle, version 2.10); the place is where the capture has torch put it.
    """
    prefix = os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if not prefix:
        return
    now = time.time_ns()
    entries = []
    for seq in range(max(1, last - 40), last + 1):
        over = seq < last
        size = 4_194_304 if seq % 3 else 1024
        created = now - 2_000_000_000 - (last - seq) * 13_000_000
        entries.append({
            "record_id": seq - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq,
            "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:all_reduce", "is_p2p": False, "retired": over,
            "input_sizes": [[size if over else size + odd]], "output_sizes": [[size if over else size + odd]],
            "input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"], "timeout_ms": 2000, "frames": [],
            "time_created_ns": created, "time_discovered_started_ns": created + 50_000,
            "time_discovered_completed_ns": created + 9_000_000 if over else None,
            "state": "completed" if over else "started",
        })  # fmt: skip
    ranks = str(list(range(task.world)))
    status = {"last_enqueued_collective": last, "last_started_collective": last, "last_completed_collective": last - 1}
    document = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": status},
        "entries": entries,
    }
    Path(f"{prefix}{task.rank}").write_bytes(pickle.dumps(document, protocol=2))


def play(task: Task, lines: list[Any], step: int) -> None:
    """Do a role's part: a text is printed, a mapping is a pause, a word with root, or an end."""
    for item in lines:
        if isinstance(item, str):
            print(Template(item).substitute(fields(task, step)).rstrip("\n"), file=sys.stderr, flush=True)
            continue
        (verb, value), *_ = item.items()
        if verb == "dump":
            dump(task, 41 + 3 * step + value.get("after", 0), value.get("odd", 0))
        elif verb == "wait":
            time.sleep(value)
        elif verb == "root":
            task.ask_root(value)
        elif verb == "exit":
            sys.stderr.flush()
            os._exit(value)
        elif verb == "signal":
            os.kill(os.getpid(), signal.Signals[value])
        elif verb == "hang":
            time.sleep(3600)


def main() -> None:
    """Be one rank of the replay."""
    task = Task()
    script = task.plan["replay"]
    task.log.info("initialized process group, world size %d", task.world)
    task.mark(f"joined.{task.rank}")
    for rank in range(task.world):
        task.await_mark(f"joined.{rank}", 60)
    for step in range(task.step):
        if step % 2 == 0:
            task.log.info(
                "iteration %d/ 1000 | elapsed time per iteration (ms): 40.2 | lm loss: %.4f", step, 9 - 0.1 * step
            )
        task.noise(step)
        time.sleep(STEP_SECONDS)
    if task.is_origin:
        play(task, script.get("before", []), task.step)
        task.mark("happened")
        play(task, script.get("origin", []), task.step)
    else:
        task.await_mark("happened")
        same_node = (task.home / f"place.{task.plan['rank']}").read_text(encoding="utf-8").find(f'"{task.node}"') >= 0
        role = "same_node" if same_node and "same_node" in script else "others"
        play(task, script.get(role, script.get("origin", [])), task.step)


if __name__ == "__main__":
    main()
