"""scripts/faults: plans are the same for a seed, verdicts are judged fairly, and evidence can be taken away."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from denpex import library
from denpex.diagnose import diagnose
from denpex.engine import evidence
from denpex.engine import verdict as verdicts
from tests.unit import scenes

FOLDER = Path(__file__).parents[2] / "scripts" / "faults.d"
sys.path.insert(0, str(FOLDER))

import again  # noqa: E402 - the command's own modules, as it finds them
import catalog  # noqa: E402
import fit  # noqa: E402
import judge  # noqa: E402
import report  # noqa: E402

FAULTS = {fault.id: fault for fault in catalog.load()}
PLACED = {rank: {"node": f"n{1 + rank // 2}", "gpu": rank % 2} for rank in range(8)}


def plan(fault, rank=2):
    return catalog.Plan(FAULTS[fault], 0, rank, 5, 8, "srun", "all", False)


def verdict(failure_class, category, rank=None, node=None, gpu=None, confidence=0.95, origins=(), scope="rank"):
    origin = None if rank is None and node is None else {"rank": rank, "node": node, "gpu": gpu and {"index": gpu - 1}}
    return {"failure_class": failure_class, "category": category, "confidence": confidence, "scope": scope,
            "origin": origin, "origins": [{"rank": r} for r in origins]}  # fmt: skip


def outcome(fault, document, rank=2):
    judged = judge.judge(plan(fault, rank), PLACED, document)
    return judged.origin_right, judged.class_right, judged.wrong_and_sure


def test_there_are_enough_faults_and_enough_that_count():
    assert len(FAULTS) >= 48
    assert sum(not fault.needs for fault in FAULTS.values()) >= 36


def test_a_plan_is_the_seeds():
    fault = FAULTS["exception"]
    assert catalog.plan(fault, 1, 7) == catalog.plan(fault, 1, 7)
    assert len({(p.rank, p.step) for p in (catalog.plan(fault, 0, seed) for seed in range(20))}) > 5


def test_a_plan_keeps_to_what_its_fault_says():
    for fault in FAULTS.values():
        for seed in range(20):
            made = catalog.plan(fault, 0, seed)
            assert made.launcher in fault.launchers
            assert made.rank < made.world
    assert {catalog.plan(FAULTS["disk-full"], 0, seed).rank for seed in range(9)} == {0}


def test_a_broken_fault_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "x.yaml").write_text("title: t\nclasses: [no-such-class]\norigin: rank\ntorch: {fault: none}\n")
    monkeypatch.setattr(catalog, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"x\.yaml"):
        catalog.load()


@pytest.mark.parametrize(
    ("fault", "document", "expected"),
    [
        ("exception", verdict("user-code-exception", "ml_numerical", 2, "n2"), (True, True, False)),
        ("exception", verdict("user-code-exception", "ml_numerical", 3, "n2"), (False, True, True)),
        ("exception", verdict("user-code-exception", "ml_numerical", 3, "n2", confidence=0.6), (False, True, False)),
        ("exception", verdict("unknown", "unknown", confidence=0.3), (False, False, False)),
        ("exception", verdict("disk-full", "environment_configuration", origins=(2, 3)), (False, False, False)),
        ("exception", {}, (False, False, False)),
        ("off-the-bus", verdict("gpu-fell-off-bus", "hardware", 2, "n2", gpu=1), (True, True, False)),
        ("off-the-bus", verdict("gpu-fell-off-bus", "hardware", 2, "n2", gpu=2), (False, True, True)),
        ("off-the-bus", verdict("gpu-fell-off-bus", "hardware", 2, "n2"), (False, True, False)),
        ("node-lost", verdict("node-unresponsive", "hardware", node="n2", scope="node"), (True, True, False)),
        ("node-lost", verdict("node-unresponsive", "hardware", origins=(2, 3), scope="ranks"), (True, True, False)),
        ("node-lost", verdict("node-unresponsive", "hardware", node="n1", scope="node"), (False, True, True)),
        ("same-everywhere", verdict("user-code-exception", "ml_numerical", scope="job"), (True, True, False)),
        ("same-everywhere", verdict("user-code-exception", "ml_numerical", 0, "n1"), (False, True, True)),
        ("healthy", verdict("no-failure", "none", scope="none"), (True, True, False)),
        ("healthy", verdict("process-killed", "environment_configuration", 1, "n1"), (False, False, True)),
        ("log-lost", verdict("unknown", "unknown", confidence=0.3), (True, True, False)),
        ("log-lost", verdict("user-code-exception", "ml_numerical", 5, "n3"), (False, True, True)),
        ("weight-bit-flip", verdict("no-failure", "none", scope="none"), (True, False, False)),
        ("weight-bit-flip", verdict("process-killed", "environment_configuration", 3, "n2"), (False, False, True)),
    ],
)
def test_verdicts_are_judged(fault, document, expected):
    assert outcome(fault, document) == expected


def node(folder, name="n1"):
    run = folder / "spool" / name / "1.0.100"
    (run / "user/streams").mkdir(parents=True)
    (run / "tasks").mkdir()
    return run


def test_baselines_read_what_was_captured(tmp_path):
    for name, rank, said, ended, code in (("n1", 0, 500, 900, 1), ("n2", 1, 400, 950, 1), ("n3", 2, 600, 700, 0)):
        run = node(tmp_path, name)
        words = b"step 1\nValueError: x\n"
        (run / f"user/streams/0.{rank}.err").write_bytes(words)
        (run / f"user/streams/0.{rank}.err.idx").write_text(f"0 {said - 1} 0\n7 {said} 0\nend {len(words)} eof\n")
        end = {"event": "end", "step": "0", "rank": rank, "realtime_ns": ended, "exit_code": code, "signal": None}
        (run / "user/claims.jsonl").write_text(json.dumps(end) + "\n")
    assert judge.baselines(tmp_path) == {"first error line": 1, "first bad exit": 0, "torchelastic's rule": 0}


def test_evidence_is_taken_away(tmp_path):
    run = node(tmp_path)
    for rank in (0, 1):
        (run / f"user/streams/0.{rank}.err").write_bytes(b"x\n")
    (run / "tasks/batch.out").write_bytes(b"srun: error: n1: task 0: Exited with exit code 1\n")
    (run / "user/claims.jsonl").write_text('{"event": "start"}\n{"event": "end", "exit_code": 1}\n')
    again.take_away(tmp_path / "spool", "exit", "seed")
    assert (run / "user/claims.jsonl").read_text() == '{"event": "start"}\n'
    assert not (run / "tasks/batch.out").exists()
    again.take_away(tmp_path / "spool", "log:1", "seed")
    assert len(list((run / "user/streams").iterdir())) == 1


def test_kinds_of_evidence_are_checked():
    assert again.kinds("fr, exit,log:2") == ["fr", "exit", "log:2"]
    for wrong in ("fr,nonsense", "log", "exit:1", "log:x"):
        with pytest.raises(ValueError, match="--minus does not know"):
            again.kinds(wrong)


def entry(origin_right, class_right, confidence, abstained=False, counted=True, wrong_place=False):
    return {"fault": "f", "counted": counted, "expected": {"origin": "rank"}, "origin_right": origin_right,
            "class_right": class_right, "category_right": class_right, "abstained": abstained,
            "wrong_place": wrong_place, "confidence": confidence,
            "baselines": dict.fromkeys(judge.BASELINES, False)}  # fmt: skip


def test_the_figures():
    runs = [
        entry(True, True, 0.9), entry(True, False, 0.8), entry(False, False, 0.0, abstained=True),
        entry(False, True, 0.95, wrong_place=True), entry(False, False, 0.3, counted=False),
    ]  # fmt: skip
    s = report.summary(runs)
    assert (s["runs"], s["counted_runs"], s["origin_right"], s["class_right"]) == (5, 4, 0.5, 0.5)
    assert (s["wrong_place"], s["wrong_place_at_0.9"]) == (1, 1)
    assert s["brier"] == pytest.approx((0.1**2 + 0.8**2 + 0.95**2) / 3, abs=1e-4)


@pytest.fixture(scope="module")
def weighed():
    """Return a case of the engine: rank 2 raised, the others lost it."""
    seen = []
    patterns = library.load()
    with pytest.MonkeyPatch.context() as patch:
        real = verdicts.verdict
        patch.setattr(verdicts, "verdict", lambda case, *rest: (seen.append(case), real(case, *rest))[1])
        diagnose(scenes.exception(2).snapshot(), patterns, library.matcher(patterns))
    return seen[0]


def test_a_sample_is_the_engines_own_score(weighed):
    made = fit.sample("exception", weighed, 2)
    values = np.array(list(fit.standing().values()))
    engine = sorted({s.score for s in evidence.weigh(weighed).suspects})
    assert sorted((made.rest + made.terms @ values)[:-1]) == pytest.approx(engine)
    assert made.truth == int(np.argmax(made.rest + made.terms @ values))
    with fit.weights({"ORIGIN_GENERIC": 0.5}):
        assert max(s.score for s in evidence.weigh(weighed).suspects) < max(engine)
    assert fit.sample("exception", weighed, 99) is None


def test_a_fit_takes_the_truth_and_keeps_near_what_stands(weighed):
    wrong = fit.sample("exception", weighed, 1)
    start = np.array(list(fit.standing().values()))
    near, far = (fit.fit([wrong] * 20, hold) for hold in (0.01, 2.0))
    assert abs(near - start).max() < abs(far - start).max()
    assert fit.loss([wrong], far)[0] < fit.loss([wrong], start)[0]
    assert all(np.sign(far[start != 0]) == np.sign(start[start != 0]))
