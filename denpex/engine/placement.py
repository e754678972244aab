"""Which GPU is whose: a PCI address in a kernel message -> the node's GPU -> the job -> the rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

from denpex.engine.ranks import Rank
from denpex.model import Gpu, NodeInfo


def same_pci(a: str, b: str) -> bool:
    """Compare PCI addresses as NVML ("00000000:3B:00.0") and the driver ("0000:3b:00") write them."""
    return _pci(a) == _pci(b)


def _pci(text: str) -> tuple[int | str, str]:
    parts = re.sub(r"\.[0-9a-f]$", "", text.strip().lower()).split(":")
    domain = parts[-3] if len(parts) > 2 else "0"
    return (int(domain, 16) if re.fullmatch(r"[0-9a-f]{1,8}", domain) else domain), ":".join(parts[-2:])


def gpu_at(node: NodeInfo | None, pci: str | None) -> Gpu | None:
    """Return the node's GPU with this address."""
    if node is None or not pci:
        return None
    return next((gpu for gpu in node.gpus if same_pci(gpu.pci, pci)), None)


def is_jobs(node: NodeInfo | None, gpu: Gpu | None) -> bool | None:
    """Tell whether Slurm gave this GPU to the job; None where that is not known.

    Slurm names GPUs by UUID or by GRES index, which is NVML's order where it detects them and the order of the
    device files (the minor number) where the site listed those.
    """
    if node is None or gpu is None or not node.job_gpus:
        return None
    if gpu.uuid and gpu.uuid in node.job_gpus:
        return True
    numbers = [text for text in node.job_gpus if text.isdigit()]
    if not numbers:
        return False
    by_index = str(gpu.index) in numbers
    by_minor = by_index if gpu.minor is None else str(gpu.minor) in numbers
    return by_index if by_index == by_minor else None


def rank_of(gpu: Gpu, node: NodeInfo, ranks: Sequence[Rank]) -> Rank | None:
    """Return the rank of this node that used the GPU, None where the records do not say.

    ``ranks``: all ranks of the job on the node. What a task saw (CUDA_VISIBLE_DEVICES) is numbered from 0 within the
    job's GPUs where Slurm constrains devices, and by the node's numbers where it does not; both must agree.
    """
    if len(ranks) == 1:
        return ranks[0]
    by_uuid = [rank for rank in ranks if gpu.uuid and gpu.uuid in rank.gpus]
    if len(by_uuid) == 1 and len(by_uuid[0].gpus) == 1:
        return by_uuid[0]
    readings = []
    for constrained in (True, False):
        found = [rank for rank in ranks if _uses(rank, gpu, node, constrained, ranks)]
        if len(found) > 1:
            return None
        if found:
            readings.append(found[0])
    return readings[0] if readings and all(rank is readings[0] for rank in readings) else None


def _uses(rank: Rank, gpu: Gpu, node: NodeInfo, constrained: bool, ranks: Sequence[Rank]) -> bool:
    seen = rank.gpus
    if len(seen) > 1 and len(seen) == len(ranks) and rank.local_rank is not None and rank.local_rank < len(seen):
        seen = (seen[rank.local_rank],)  # every task sees all of them, and takes its own by its local rank
    if len(seen) != 1 or not seen[0].isdigit() or len(seen[0]) > 4:
        return False
    number = int(seen[0])
    if constrained:
        if number >= len(node.job_gpus):
            return False
        given = node.job_gpus[number]
        return given == gpu.uuid or given == str(gpu.index)
    return number == gpu.index
