"""Root's part of a fault: what a kernel, a driver, an administrator, a network or another job does to a job."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from catalog import Plan
from lab import LAB, STATE, lab

_BUS_OF_FIRST_GPU = 0x3B  # tests/native/nvml_stub.c


class Root:
    """Does a fault's actions, each a verb with one value, at the origin's node; undoes what would outlive the run."""

    def __init__(self, plan: Plan, nodes: Sequence[str], home: Path, port: int) -> None:
        """``home``: the run's directory, where ranks note their places; ``port``: that of the process group."""
        self._plan, self._nodes, self._home, self._port = plan, nodes, home, port
        self._clocks: dict[str, float] = {}  # as they were before the fault stepped them
        self._cut: set[str] = set()
        self.job = ""

    def act(self, actions: Sequence[dict[str, Any]]) -> None:
        """Do actions in order; raises ValueError for an unknown verb."""
        place = self._home / f"place.{self._plan.rank}"
        known = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {"node": self._nodes[0], "gpu": 0}
        for action in actions:
            (verb, value), *others = action.items()
            method = getattr(self, f"_do_{verb}", None)
            if method is None:
                raise ValueError(f"{self._plan.fault.id}: there is no action '{verb}'")
            method(known["node"], value, dict(others).get("gpu", known["gpu"]))

    def undo(self) -> None:
        """Undo what the next job on these nodes must not find."""
        for node in self._cut:
            for there in self._nodes:
                lab("node", node, "--", "ip", "route", "del", "blackhole", _address(there), check=False)
            lab("node", node, "--", "ip", "link", "set", "eth0", "up", check=False)
        for node, seconds in self._clocks.items():
            lab("clock", node, str(seconds))
        for node in self._nodes:
            (STATE / "hosts" / node / "var/lib/lab/nvml").write_text("-1 count 4\n", encoding="utf-8")

    def _do_kernel(self, node: str, text: str, gpu: int) -> None:
        now = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        lines = text.replace("$bus", f"{_BUS_OF_FIRST_GPU + gpu:02x}").strip().splitlines()
        with (STATE / "hosts" / node / "var/log/denpex-kernel.log").open("a", encoding="utf-8") as file:
            file.writelines(f"<3>[{now:12.6f}] {line}\n" for line in lines)

    def _do_nvml(self, node: str, values: dict[str, int], gpu: int) -> None:
        with (STATE / "hosts" / node / "var/lib/lab/nvml").open("a", encoding="utf-8") as file:
            file.writelines(f"{gpu} {name} {number}\n" for name, number in values.items())

    def _do_scancel(self, _node: str, words: str, _gpu: int) -> None:
        lab("run", "--", "scancel", *words.replace("$job", self.job).split())

    def _do_preempt(self, _node: str, partition: str, _gpu: int) -> None:
        words = (f"--partition={partition}", f"--nodelist={','.join(self._nodes)}", f"--nodes={len(self._nodes)}")
        lab("run", "--user", "bob", "--", "sbatch", *words, "--exclusive", "--mem=1000M", stdin="#!/bin/sh\nsleep 1\n")

    def _do_clock(self, node: str, seconds: float, _gpu: int) -> None:
        file = STATE / "hosts" / node / "var/lib/lab/skew"
        was = int.from_bytes(file.read_bytes(), "little", signed=True) / 1e9
        self._clocks.setdefault(node, was)
        lab("clock", node, str(was + seconds))

    def _do_lose_streams(self, node: str, _value: object, _gpu: int) -> None:
        runs = STATE / "hosts" / node / "var/spool/denpex/lab" / node
        for path in runs.glob(f"{self.job}.*/user/streams/0.{self._plan.rank}.*"):
            path.unlink()

    def _do_listen(self, node: str, seconds: int, _gpu: int) -> None:
        code = f"import socket, time; s = socket.create_server(('', {self._port})); time.sleep({seconds})"
        words = [str(LAB), "node", node, "--", "setsid", "--fork", "/usr/bin/python3", "-c", code]
        subprocess.run(words, check=True, timeout=20, stdout=subprocess.DEVNULL)
        time.sleep(0.3)

    def _do_full_disk(self, node: str, place: str, _gpu: int) -> None:
        mount = f"mountpoint -q {place} || mount -t tmpfs -o size=1m,mode=1777 small {place}"
        lab("node", node, "--", "sh", "-c", f"mkdir -p {place}; {mount}")

    def _do_cut(self, node: str, _value: object, _gpu: int) -> None:
        other = next(name for name in self._nodes[1:] if name != node)
        self._cut = {node, other}
        for here, there in ((node, other), (other, node)):
            lab("node", here, "--", "ip", "route", "add", "blackhole", _address(there))

    def _do_lose_node(self, node: str, _value: object, _gpu: int) -> None:
        self._cut = {node}
        lab("node", node, "--", "ip", "link", "set", "eth0", "down")


def _address(node: str) -> str:
    """Return a node's address, as scripts/lab gives them."""
    return f"10.77.0.{10 + int(node[1:])}/32"
