"""Runs a fault as one job, does root's part of it, and keeps what the nodes left and what was said."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalog import Plan
from lab import LAB, NODES_OF_A_JOB, STATE, lab, owner
from root import Root

LONGEST_S = 240
_HERE = Path(__file__).parent
_ACCOUNTING = (
    "import json, sys; from dataclasses import asdict; from denpex import slurm; "
    "print(json.dumps(asdict(slurm.job(sys.argv[1], float(sys.argv[2]) if sys.argv[2] else None))))"
)


@dataclass(frozen=True)
class Run:
    """A finished run: what was said, and what was done where."""

    plan: Plan
    job: str
    verdict: dict[str, Any]  # {}: there was none in time
    placed: dict[int, dict[str, Any]]  # rank -> {node, gpu}, as the ranks themselves noted
    seconds: float


class Attempt:
    """One run of a plan on a slot's nodes."""

    def __init__(self, plan: Plan, nodes: list[str], keep: Path) -> None:
        """``keep``: where the runs' evidence is kept."""
        self._plan, self._nodes, self._keep = plan, nodes, keep / plan.key
        self._home = STATE / "home" / "alice" / "faults" / plan.key
        self._port = random.randrange(20000, 40000)
        self._root = Root(plan, nodes, self._home, self._port)

    def run(self) -> Run:
        """Submit, help the fault along, wait for the verdict, mend what was broken, keep everything."""
        began = time.monotonic()
        shutil.rmtree(self._home, ignore_errors=True)
        self._home.mkdir(parents=True)
        (self._home / "plan.json").write_text(json.dumps(self._plan.document()), encoding="utf-8")
        for path in (self._home.parent, self._home):
            shutil.chown(path, *owner())
        try:
            self._root.act(self._plan.fault.before)
            job = lab("run", "--", "sbatch", "--parsable", stdin=self._script()).strip().split(";")[0]
            self._root.job = job
            verdict = self._await_verdict(job)
        finally:
            self._root.undo()
            self._await_nodes()
        placed = {}
        for path in self._home.glob("place.*"):
            placed[int(path.suffix[1:])] = json.loads(path.read_text(encoding="utf-8"))
        run = Run(self._plan, job, verdict, placed, time.monotonic() - began)
        self._keep_evidence(run)
        return run

    def _script(self) -> str:
        """Return the batch script, as a user would write it."""
        plan = self._plan
        per_node = plan.world // NODES_OF_A_JOB
        program = _HERE / ("torch_job.py" if plan.fault.torch else "replay_job.py")
        srun = "srun" if plan.fault.all_finish else "srun --kill-on-bad-exit=1"
        if plan.launcher == "srun":
            per_task = "--gpus-per-task=1 " if plan.fault.gpus else ""
            start = f"{srun} {per_task}--ntasks-per-node={per_node} --ntasks={plan.world} python {program}"
        else:
            # torch's dynamic rendezvous takes a node whose clock is 15 s behind for dead, so it gets its places here.
            run = (
                f"python -m torch.distributed.run --nnodes={NODES_OF_A_JOB} --nproc-per-node={per_node} "
                "--node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT"
            )
            start = f"{srun} --ntasks-per-node=1 --ntasks={NODES_OF_A_JOB} bash -c '{run} {program}'"
        options = [
            f"--job-name={plan.fault.id}", f"--nodelist={','.join(self._nodes)}", f"--nodes={NODES_OF_A_JOB}",
            f"--ntasks-per-node={per_node}", "--mem=2500M", "--time=5",
            *([f"--gpus-per-node={per_node}"] if plan.fault.gpus else []), *plan.fault.options,
        ]  # fmt: skip
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            f"cd {Path('/home/alice/faults') / plan.key}",
            "export FAULT_DIR=$PWD GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1",
            *([] if plan.fault.torch.get("fault") == "buffered" else ["export PYTHONUNBUFFERED=1"]),
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"export MASTER_PORT={self._port}",
            start,
        ]
        return "\n".join(lines) + "\n"

    def _await_verdict(self, job: str) -> dict[str, Any]:
        log = STATE / "hosts/ctl/var/log/worker.out"
        end = time.monotonic() + LONGEST_S
        asked, done = self._home / "mark.root", self._home / "mark.root.done"
        while time.monotonic() < end:
            if asked.exists() and not done.exists():
                self._root.act(self._plan.fault.root)
                done.touch()
            if f"denpex worker: job {job} (start" in log.read_text(encoding="utf-8", errors="replace"):
                document = json.loads(lab("run", "--", "denpex", "show", "--json", job))
                if isinstance(document, dict) and document.get("failure_class"):
                    return document
            time.sleep(0.02)
        lab("run", "--", "scancel", job, check=False)
        return {}

    def _await_nodes(self) -> None:
        """Wait until the nodes can take the next job."""
        end = time.monotonic() + 90
        words = ("ctl", "--", "sinfo", "-h", "-N", "-n", ",".join(self._nodes), "-p", "main", "-o", "%T")
        while time.monotonic() < end and set(lab(*words).split()) != {"idle"}:
            time.sleep(0.3)

    def _keep_evidence(self, run: Run) -> None:
        """Keep the nodes' directories, the scheduler's record and the verdict, for a diagnosis with less evidence."""
        shutil.rmtree(self._keep, ignore_errors=True)
        self._keep.mkdir(parents=True)
        for node in self._nodes:
            for path in (STATE / "hosts" / node / "var/spool/denpex/lab" / node).glob(f"{run.job}.*"):
                shutil.copytree(path, self._keep / "spool" / node / path.name)
        start = str(run.verdict["job"]["start"] or "") if run.verdict else ""
        python = str(LAB.parents[1] / ".venv/bin/python")
        accounting = lab("ctl", "--", python, "-c", _ACCOUNTING, run.job, start, check=False)
        (self._keep / "job.json").write_text(accounting or "null", encoding="utf-8")
        (self._keep / "verdict.json").write_text(json.dumps(run.verdict), encoding="utf-8")
        (self._keep / "placed.json").write_text(json.dumps(run.placed), encoding="utf-8")
        shutil.rmtree(self._home, ignore_errors=True)
