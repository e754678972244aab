"""The faults, one file each, and the plan of one run: which rank, step, launcher and noise a seed gives."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from denpex.taxonomy import CATEGORY_OF

FOLDER = Path(__file__).parent / "faults"
_LAUNCHER_WEIGHTS = (3, 1)
_WORLD_WEIGHTS = (2, 1)
PARTS = Path(__file__).parent / "parts.yaml"
ORIGINS = {
    "rank": "one rank",
    "gpu": "one rank with its GPU",
    "node": "a node, or exactly its ranks",
    "link": "the two nodes of a link, or the link",
    "job": "the whole job: no rank",
    "external": "something outside: no rank",
    "nobody": "nobody",
}


@dataclass(frozen=True)
class Fault:
    """One kind of fault: how it is made, and what a right verdict says of it."""

    id: str
    title: str
    classes: tuple[str, ...]  # accepted failure classes, best first
    origin: str  # a key of ORIGINS
    torch: dict[str, Any] = field(default_factory=dict)  # what torch_job.py does ...
    replay: dict[str, Any] = field(default_factory=dict)  # ... or what replay_job.py says
    root: list[dict[str, Any]] = field(default_factory=list)  # what root does when a rank marks "root"
    before: list[dict[str, Any]] = field(default_factory=list)  # ... before the job is submitted
    options: tuple[str, ...] = ()  # of sbatch
    launchers: tuple[str, ...] = ("srun", "torchrun")
    worlds: tuple[int, ...] = (4, 8)
    gpus: bool = False
    all_finish: bool = False  # srun lets the other tasks end by themselves
    needs: str = ""  # evidence that nothing collects yet: the row must abstain, and does not count
    may_abstain: bool = False  # the evidence was taken away on purpose: to abstain is right too

    @property
    def category(self) -> str:
        """The category of the best class."""
        return str(CATEGORY_OF[self.classes[0]])


@dataclass(frozen=True)
class Plan:
    """One run of a fault."""

    fault: Fault
    repeat: int
    rank: int
    step: int
    world: int
    launcher: str
    prints: str  # "all", or "rank0": only rank 0 logs its progress
    noise: bool

    @property
    def key(self) -> str:
        """A name for the run's files."""
        return f"{self.fault.id}.{self.repeat}"

    def document(self) -> dict[str, Any]:
        """Return what the job itself is told."""
        fault = self.fault
        return {
            "rank": self.rank, "step": self.step, "prints": self.prints, "noise": self.noise,
            "torch": fault.torch, "replay": fault.replay,
        }  # fmt: skip


def load() -> list[Fault]:
    """Return all faults in the order of their files; raises ValueError with the file's name."""
    parts = yaml.safe_load(PARTS.read_text(encoding="utf-8"))
    return [_fault(path, parts) for path in sorted(FOLDER.glob("*.yaml"))]


def _fault(path: Path, parts: dict[str, list[Any]]) -> Fault:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for role, lines in document.get("replay", {}).items():
        if isinstance(lines, list):
            document["replay"][role] = _whole(lines, parts, path)
    for name in ("classes", "options", "launchers", "worlds"):
        if name in document:
            document[name] = tuple(document[name])
    try:
        fault = Fault(id=path.stem, **document)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error
    unknown = [name for name in fault.classes if name not in CATEGORY_OF]
    if unknown or not fault.classes or fault.origin not in ORIGINS or bool(fault.torch) == bool(fault.replay):
        raise ValueError(f"{path}: needs classes of the taxonomy, an origin of {sorted(ORIGINS)}, and torch or replay")
    return fault


def _whole(lines: list[Any], parts: dict[str, list[Any]], path: Path) -> list[Any]:
    """Put in the parts that a role names."""
    found = []
    for line in lines:
        if isinstance(line, dict) and "use" in line:
            if line["use"] not in parts:
                raise ValueError(f"{path}: {PARTS.name} has no part '{line['use']}'")
            found += _whole(parts[line["use"]], parts, path)
        else:
            found.append(line)
    return found


def plan(fault: Fault, repeat: int, seed: int) -> Plan:
    """Return the ``repeat``-th run of a fault; the same for the same seed."""
    draw = random.Random(f"{seed}/{fault.id}/{repeat}")
    # Mostly the launcher and the size that cost this machine least.
    launcher = draw.choices(fault.launchers, _LAUNCHER_WEIGHTS[: len(fault.launchers)])[0]
    world = 8 if launcher == "torchrun" else draw.choices(fault.worlds, _WORLD_WEIGHTS[: len(fault.worlds)])[0]
    settings = {**fault.torch, **fault.replay}
    return Plan(
        fault=fault,
        repeat=repeat,
        rank=int(settings.get("rank", draw.randrange(world))),
        step=int(settings.get("step", draw.randrange(4, 17))),
        world=world,
        launcher=launcher,
        prints=draw.choice(("all", "rank0")),
        noise=bool(settings.get("noise", draw.random() < 0.5)),
    )
