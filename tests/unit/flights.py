"""Makes flight-recorder dumps as PyTorch's NCCL recorder writes them, from what each rank called."""

from __future__ import annotations

import pickle

S = 10**9
START = 1_796_130_010 * S
ALL = ("0", "default_pg")


class Recorder:
    """One rank's recorder; ``t`` are seconds after START by the rank's own clock."""

    def __init__(self, groups, skew=0.0):
        self.groups, self.skew = groups, skew
        self.entries = []
        self.sequence = {}

    def ns(self, t):
        return START + int((t + self.skew) * S)

    def call(self, t, op="all_reduce", size=16, group=ALL, done=True, dtype="Float", **changes):
        """Record one collective."""
        self.sequence[group] = number = self.sequence.get(group, 0) + 1
        self.entries.append({
            "record_id": len(self.entries), "pg_id": list(self.groups).index(group), "process_group": group,
            "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{op}",
            "input_sizes": [[size]], "input_dtypes": [dtype], "output_sizes": [[size]], "output_dtypes": [dtype],
            "time_created_ns": self.ns(t), "time_discovered_started_ns": self.ns(t) if done else None,
            "time_discovered_completed_ns": self.ns(t + 0.01) if done else None, "retired": done, "is_p2p": False,
            "state": "completed" if done else "scheduled", "timeout_ms": 600000, "frames": [],
            **changes,
        })  # fmt: skip

    def send(self, t, op="send 0->1", group=ALL, done=True):
        """Record one point-to-point call, which does not count among the collectives."""
        before = self.sequence.get(group, 0)
        self.call(t, op, group=group, done=done, is_p2p=True, collective_seq_id=before, p2p_seq_id=1)
        self.sequence[group] = before

    def dump(self):
        """Return the dump's content."""
        return {
            "version": "2.10", "comm_lib_version": "2.27.5", "entries": self.entries,
            "pg_config": {
                name: {"name": name, "desc": desc, "ranks": str(ranks)} for (name, desc), ranks in self.groups.items()
            },
            "pg_status": {"0": {"last_enqueued_collective": 0, "last_completed_collective": 0}},
            "nccl_comm_state": {},
        }  # fmt: skip

    def pickle(self):
        """Return the dump as torch writes it."""
        return pickle.dumps(self.dump(), protocol=2)
