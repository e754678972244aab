"""What earlier runs had on the same GPUs: evidence beside a rank's own failure, never without one."""

from __future__ import annotations

from collections.abc import Sequence

from denpex.engine import placement
from denpex.engine import weights as w
from denpex.engine.scene import Scene
from denpex.engine.suspect import Suspect
from denpex.model import Event, Role, Snapshot, Source

PAST = "history"
"""The pattern of an earlier run's fault; its field ``uuid`` is the GPU."""

# What a fault that stayed in a GPU looks like to the next process on it, and its own words do not tell from others.
# An out-of-memory error is one only where the rank had not come to work yet.
_LOOKS_LIKE_IT = frozenset({"cuda-launch-failure", "gpu-hardware-fault"})
_AT_ONCE = frozenset({"cuda-out-of-memory"})
_DAY_S = 86_400


def events(snapshot: Snapshot) -> list[Event]:
    """Return one event, without a time of this run, for each fault that earlier runs had."""
    found = []
    for past in snapshot.history:
        days = ((snapshot.job.start or past.ended) - past.ended) / _DAY_S
        found.append(
            Event(
                id="",
                role=Role.CONTEXT,
                source=Source.HISTORY,
                text=f"job {past.job_id} ended {days:.1f} days before with {past.failure_class} on GPU {past.gpu}",
                failure_class=past.failure_class,
                pattern=PAST,
                node=past.node,
                fields={"uuid": past.gpu, "job": past.job_id},
            )
        )
    return found


def weigh(scene: Scene, suspects: Sequence[Suspect]) -> None:
    """Read a failure that a faulty GPU explains as that, where the rank's GPU was faulty in an earlier run.

    The rank must fail of it by itself, and no other rank of the same: what many fail of is not one GPU's.
    """
    past = {event.fields["uuid"]: event for event in scene.case.events if event.pattern == PAST}
    alike = [s for s in suspects if s.fatal and s.says_why and _may_be_the_gpu(s)] if past else []
    if len(alike) != 1 or alike[0].kernel:
        return
    (s,) = alike
    node = scene.case.nodes.get(s.rank.node or "")
    for gpu in node.gpus if node is not None else ():
        event = past.get(gpu.uuid)
        if event is None or node is None or placement.is_jobs(node, gpu) is False:
            continue
        if placement.rank_of(gpu, node, scene.case.on(s.rank.node)) is s.rank:
            seen, known = s.failure_class, event.failure_class or "unknown"
            s.add(w.HISTORY, f"job {event.fields['job']} had {known} on its GPU, which shows as {seen}", event)
            s.reasons.insert(0, s.reasons.pop())  # it decides the class
            s.classes[known] = s.classes.pop(seen)
            s.gpu = gpu.pci
            return


def _may_be_the_gpu(s: Suspect) -> bool:
    at_once = s.rank.progress.count == 0
    return s.failure_class in _LOOKS_LIKE_IT or (s.failure_class in _AT_ONCE and at_once)
